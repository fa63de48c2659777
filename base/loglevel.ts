/** The level of a program's log, which follows the configuration file while the program runs. */
import { readFileSync } from 'node:fs';
import type { Level, Logger } from 'pino';
import { messageOf } from './errors.ts';

/**
 * Time between two looks at the file. A kubelet needs about a minute to bring a changed ConfigMap into a Pod, so a shorter time would hardly
 * be noticed.
 */
const LOOK_MILLISECONDS = 10_000;

export interface LevelFile {
  /** Path of the configuration file. */
  readonly file: string;
  /** Reads the file and returns the level in it. @throws Error when the file is not usable. */
  readonly read: () => Level;
}

/**
 * Looks at the file from time to time. When its text has changed, calls `set` with the level in it. While the file cannot be read or is not
 * usable, the level stays, and the log tells that once. The timer does not keep the process alive.
 */
export function followLevel({ file, read }: LevelFile, logger: Logger, set: (level: Level) => void): void {
  let known = textOf(file);
  const look = (): void => {
    const text = textOf(file);
    if (text === known) {
      return;
    }
    known = text;
    try {
      set(read());
    } catch (error) {
      logger.warn(
        { reason: messageOf(error) },
        'The log keeps its level, because the configuration file is not usable',
      );
    }
  };
  setInterval(look, LOOK_MILLISECONDS).unref();
}

/** Returns the text of the file, or undefined if the file cannot be read. */
function textOf(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return undefined;
  }
}
