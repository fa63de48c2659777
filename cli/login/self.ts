/** Finds the command line with which other programs start this command. */
import { access, constants } from 'node:fs/promises';
import { isSea } from 'node:sea';

/**
 * Returns the program and its first arguments. If the script of this command is executable, the program is the script and not Node.js. An
 * update of Node.js can change the path of Node.js, but not the path of the script.
 */
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
