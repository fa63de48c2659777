/**
 * Bounds the log of an agent whose service manager writes the output into a file and never shortens it, as launchd does. The file is open for
 * appending, so the output goes on at its new end.
 */
import { copyFileSync, fstatSync, rmSync, statSync, truncateSync } from 'node:fs';
import type { Logger } from 'pino';
import { ConfigError } from '../base/config.ts';
import { isMissing, undefinedIfSync } from '../base/errors.ts';

const STANDARD_OUTPUT = 1;
/** Size at which the log is moved to the earlier log, in bytes. Both together have room for some weeks of a busy host. */
export const LOG_BYTES = 16 * 1024 * 1024;
/** Time between two looks at the size. At the level `trace`, a busy agent writes some megabytes in this time. */
const LOOK_MILLISECONDS = 10_000;

/**
 * Keeps the log file small. `path` is that of the standard output of this process. The timer does not keep the process alive.
 *
 * @throws ConfigError when the path is that of another file, which must not be shortened.
 */
export function boundLog(path: string, logger: Logger): void {
  if (!isOutput(path)) {
    throw new ConfigError('The command line', [
      `--log-file: ${path} is not the standard output of the agent`,
    ]);
  }
  const look = (): void => {
    try {
      // Somebody else could have moved the file.
      if (isOutput(path)) {
        shortenLog(path, logger);
      }
    } catch (error) {
      logger.warn({ err: error }, 'The log of the agent could not be shortened');
    }
  };
  look();
  setInterval(look, LOOK_MILLISECONDS).unref();
}

/**
 * Moves the content of a log that is too long into `PATH.1`, in place of the earlier content there. Without space for it, the content is
 * dropped, because machines need the disk. @throws Error when the log cannot be shortened.
 */
export function shortenLog(path: string, logger: Logger): void {
  if (statSync(path).size <= LOG_BYTES) {
    return;
  }
  const earlier = `${path}.1`;
  try {
    copyFileSync(path, earlier);
  } catch (error) {
    rmSync(earlier, { force: true });
    logger.warn({ err: error }, 'The earlier log of the agent is lost');
  }
  truncateSync(path);
}

function isOutput(path: string): boolean {
  const named = undefinedIfSync(isMissing, () => statSync(path));
  const { dev, ino } = fstatSync(STANDARD_OUTPUT);
  return named?.isFile() === true && named.dev === dev && named.ino === ino;
}
