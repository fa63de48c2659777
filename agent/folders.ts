/** Checks that folders in the configuration do not overlap with the folders of the agent. */
import { spawnSync } from 'node:child_process';
import { realpathSync } from 'node:fs';
import { basename, dirname, join, relative } from 'node:path';
import { codeOf, isOfSystem } from '../base/errors.ts';

/**
 * Time limit in milliseconds for the answer of a folder's file server. The limit is short, because the start of the agent waits for each
 * folder.
 */
const ANSWER_MILLISECONDS = 5_000;

interface Folders {
  dataDirectory: string;
  images: { sharedRoots: readonly string[]; storageFolder?: string | undefined };
  emulator?: { sdk: string } | undefined;
}

/**
 * Returns a message for each folder of `images.sharedRoots`, and for the Android SDK, if the folder overlaps with a folder of the agent.
 * Every user can use files of the shared roots as images, and each emulator can read the SDK. But the agent's folders contain its keys and
 * the disks of VMs, so others must not read them. The function follows symbolic links, except those to folders whose file server is down.
 */
export function folderMistakes(
  { dataDirectory, images, emulator }: Folders,
  answerMilliseconds = ANSWER_MILLISECONDS,
): string[] {
  const { sharedRoots, storageFolder } = images;
  const own = { dataDirectory, ...(storageFolder && { 'images.storageFolder': storageFolder }) };
  const known = new Map<string, string>();
  const real = (path: string): string => {
    const resolved = known.get(path) ?? (isSilent(path, answerMilliseconds) ? path : realPath(path));
    known.set(path, resolved);
    return resolved;
  };
  const mistakes = (setting: string, folder: string, consequence: string): string[] =>
    Object.entries(own)
      .filter(([, other]) => overlap(real(folder), real(other)))
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

/**
 * Reports whether the file server of a folder does not answer in time. A program asks the server, because a call of Node.js for a folder of a
 * dead server never returns, so the agent would not start.
 */
function isSilent(path: string, answerMilliseconds: number): boolean {
  const limits = { timeout: answerMilliseconds, killSignal: 'SIGKILL', stdio: 'ignore' } as const;
  return codeOf(spawnSync('stat', ['--file-system', '--', path], limits).error) === 'ETIMEDOUT';
}

/**
 * Returns the path with symbolic links resolved. If the last part of the path does not exist, or its file server is faulty, only the part
 * before it is resolved.
 */
function realPath(path: string): string {
  try {
    return realpathSync(path);
  } catch (error) {
    if (!isOfSystem(error) || dirname(path) === path) {
      throw error;
    }
    return join(realPath(dirname(path)), basename(path));
  }
}
