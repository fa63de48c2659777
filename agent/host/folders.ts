/** Checks that folders in the configuration do not overlap with the folders of the agent. */
import { realpathSync } from 'node:fs';
import { basename, dirname, join, relative } from 'node:path';
import { isMissing } from '../../base/errors.ts';

interface Folders {
  dataDirectory: string;
  images: { sharedRoots: readonly string[]; storageFolder?: string | undefined };
  emulator?: { sdk: string } | undefined;
}

/**
 * Returns a message for each folder of `images.sharedRoots`, and for the Android SDK, if the folder overlaps with a folder of the agent.
 * Every user can use files of the shared roots as images, and each emulator can read the SDK. But the agent's folders contain its keys and
 * the disks of VMs, so others must not read them. The function follows symbolic links.
 */
export function folderMistakes({ dataDirectory, images, emulator }: Folders): string[] {
  const { sharedRoots, storageFolder } = images;
  const own = { dataDirectory, ...(storageFolder && { 'images.storageFolder': storageFolder }) };
  const mistakes = (setting: string, folder: string, consequence: string): string[] =>
    Object.entries(own)
      .filter(([, other]) => overlap(realPath(folder), realPath(other)))
      .map(([name, other]) => `${setting}: ${folder} and ${name} (${other}) overlap. ${consequence}`);
  const shared = 'Because of this, users who make Images could read files of the agent';
  return [
    ...sharedRoots.flatMap((root) => mistakes('images.sharedRoots', root, shared)),
    ...(emulator === undefined
      ? []
      : mistakes('emulator.sdk', emulator.sdk, 'Because of this, emulators could read files of the agent')),
  ];
}

function overlap(one: string, other: string): boolean {
  return holds(one, other) || holds(other, one);
}

function holds(folder: string, path: string): boolean {
  const way = relative(folder, path);
  return way !== '..' && !way.startsWith('../');
}

/** Returns the path with symbolic links resolved. If the last part of the path does not exist, only the existing part is resolved. */
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
