/** Folders whose files anybody may use as images must hold nothing of the agent: its keys and other people's disks lie beside. */
import { realpathSync } from 'node:fs';
import { basename, dirname, join, relative } from 'node:path';
import type { AgentConfig } from './config.ts';
import { isMissing } from '../../base/errors.ts';

/** One text for each shared root that holds, or lies in, a folder of the agent's own; links are followed. */
export function sharedRootMistakes({ dataDirectory, images }: AgentConfig): string[] {
  const { sharedRoots, storageFolder } = images;
  const own: [string, string][] = [
    ['dataDirectory', dataDirectory],
    ...(storageFolder === undefined ? [] : [['images.storageFolder', storageFolder] as [string, string]]),
  ];
  return sharedRoots.flatMap((root) =>
    own
      .filter(
        ([, folder]) => holds(realPath(root), realPath(folder)) || holds(realPath(folder), realPath(root)),
      )
      .map(
        ([setting, folder]) =>
          `images.sharedRoots: ${root} and ${setting} (${folder}) overlap: whoever may make Images could read what the agent keeps there`,
      ),
  );
}

function holds(folder: string, path: string): boolean {
  const way = relative(folder, path);
  return way !== '..' && !way.startsWith('../');
}

/** What is not there yet will be made below the folder that is. */
function realPath(path: string): string {
  try {
    return realpathSync(path);
  } catch (error) {
    if (!isMissing(error) || dirname(path) === path) {
      throw error;
    }
    return join(realPath(dirname(path)), basename(path));
  }
}
