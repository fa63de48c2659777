/** How other programs start this command again. */
import { access, constants } from 'node:fs/promises';
import { isSea } from 'node:sea';

/** Returns the program and its first arguments. A file that can be executed stays valid when Node.js is updated. */
export async function selfCommand(): Promise<readonly [string, ...string[]]> {
  const [, file = ''] = process.argv;
  if (isSea()) {
    return [process.execPath];
  }
  const isProgram = await access(file, constants.X_OK).then(
    () => true,
    () => false,
  );
  return isProgram ? [file] : [process.execPath, file];
}
