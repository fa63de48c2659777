/** Reads and writes the state of a cluster on disk: `cluster.json` in its state folder. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { writeWholeSync } from '../../base/files.ts';
import { codeOf, isMissing } from '../../base/errors.ts';
import type { StartedProcess } from './processes.ts';
import type { Provider } from './providers/provider.ts';
import type { Tools } from './toolchain/toolchain.ts';

export interface ClusterState {
  name: string;
  provider: Provider;
  tools: Tools;
  lasting: boolean;
  /** Network namespaces that were created for the cluster. Control groups of the same names belong to its nodes. */
  namespaces?: string[];
}

/** Default folder of clusters. */
export const CLUSTERS = join(import.meta.dirname, '..', '..', '.berth');
/** Pattern of names. They are names of folders and parts of object names. */
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

/** Reads the state of a cluster. The result is undefined if the folder has no cluster, or one that never started completely. */
export function readState(directory: string): ClusterState | undefined {
  return readJson(join(directory, 'cluster.json')) as ClusterState | undefined;
}

/** Records the owner: when this process has ended, the cluster may be removed. */
export function writeOwner(directory: string, owner: StartedProcess): void {
  writeWholeSync(join(directory, 'owner.json'), JSON.stringify(owner));
}

export function readOwner(directory: string): StartedProcess | undefined {
  return readJson(join(directory, 'owner.json')) as StartedProcess | undefined;
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
