/** Finds the context of a kubeconfig in which the command keeps the credentials of its user. */
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { homeFolder } from '../../base/files.ts';
import { kubeconfigsIn } from '../../kube/credentials.ts';
import type { Globals } from '../globals.ts';
import type { Settings } from '../config/settingsfile.ts';
import type { Terminal } from '../terminal.ts';

/** Name of the context if neither a flag nor the settings name a context. */
const CONTEXT = 'berth';

export interface Place {
  /** Path of the kubeconfig. The file might not exist yet. */
  readonly file: string;
  readonly context: string;
}

/**
 * Returns the name of the context, and the path of its kubeconfig. If no flag names the kubeconfig, it is the file that kubectl would
 * change. This is the first file in `KUBECONFIG` that exists, or the last file if none exists. An empty flag counts as absent.
 */
export function placeOf(
  { environment }: Pick<Terminal, 'environment'>,
  { kubeconfig, context }: Pick<Globals, 'kubeconfig' | 'context'>,
  settings: Settings,
): Place {
  const files = kubeconfigsIn(environment);
  const named = kubeconfig || (files.find((file) => existsSync(file)) ?? files.at(-1));
  return {
    file: resolve(named ?? join(homeFolder(environment), '.kube', 'config')),
    context: context || (settings.context ?? CONTEXT),
  };
}
