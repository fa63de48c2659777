/** What of a cluster is on disk: `cluster.json` in its state folder. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { writeWholeSync } from '../../base/files.ts';
import { codeOf, isMissing } from '../../base/errors.ts';
import type { ProcessIdentity } from './processes.ts';
import type { Provider } from './providers/provider.ts';
import type { Tools } from './toolchain/toolchain.ts';

export interface ClusterState {
  name: string;
  provider: Provider;
  tools: Tools;
  lasting: boolean;
  /** Network namespaces that were made for it; control groups of the same names belong to its nodes. */
  namespaces?: string[];
}

/** Where clusters live unless told otherwise. */
export const CLUSTERS = join(import.meta.dirname, '..', '..', '.berth');
/** Names are folder names and parts of object names. */
const NAME = /^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$/;

export function directoryOf(name: string, stateDirectory: string | undefined): string {
  if (!NAME.test(name)) {
    throw new Error(`cluster name "${name}" must match ${NAME.source}`);
  }
  return stateDirectory ?? join(CLUSTERS, name);
}

export function writeState(directory: string, state: ClusterState): void {
  writeWholeSync(join(directory, 'cluster.json'), JSON.stringify(state));
}

/** Undefined when there is no cluster in this folder, or one that never came up. */
export function readState(directory: string): ClusterState | undefined {
  return readJson(join(directory, 'cluster.json')) as ClusterState | undefined;
}

/** Records the process without which this cluster has no reason to be. */
export function writeOwner(directory: string, owner: ProcessIdentity): void {
  writeWholeSync(join(directory, 'owner.json'), JSON.stringify(owner));
}

export function readOwner(directory: string): ProcessIdentity | undefined {
  return readJson(join(directory, 'owner.json')) as ProcessIdentity | undefined;
}

function readJson(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, 'utf8'));
  } catch (error) {
    if (isMissing(error) || codeOf(error) === 'ENOTDIR') {
      return undefined;
    }
    throw error;
  }
}
