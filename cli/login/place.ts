/** Finds the context of a kubeconfig in which the command keeps the credentials of its user. */
import { delimiter, join, resolve } from 'node:path';
import { homeFolder } from '../../base/home.ts';
import type { Globals } from '../globals.ts';
import type { Settings } from '../settings.ts';
import type { Terminal } from '../terminal.ts';

/** Name of the context if neither a flag nor the settings name a context. */
const CONTEXT = 'berth';

export interface Place {
  /** Path of the kubeconfig. The file may not exist yet. */
  readonly file: string;
  readonly context: string;
}

/** Returns the context that the user names, in the first kubeconfig that kubectl would read. */
export function placeOf(
  { environment }: Pick<Terminal, 'environment'>,
  { kubeconfig, context }: Pick<Globals, 'kubeconfig' | 'context'>,
  settings: Settings,
): Place {
  const { KUBECONFIG: files = '' } = environment;
  const named = kubeconfig ?? files.split(delimiter).find((file) => file !== '');
  return {
    file: resolve(named ?? join(homeFolder(environment), '.kube', 'config')),
    context: context ?? settings.context ?? CONTEXT,
  };
}
