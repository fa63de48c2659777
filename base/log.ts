/**
 * Creates the logger of a program, which writes lines of JSON to standard output. Its level follows the configuration file while the program
 * runs.
 */
import { readFileSync } from 'node:fs';
import {
  destination,
  type Level,
  levels,
  type Logger,
  type LoggerOptions,
  pino,
  stdTimeFunctions,
} from 'pino';
import { messageOf } from './errors.ts';

const STANDARD_OUTPUT = 1;
/** Limit in bytes of the lines that wait to be written. Ten thousand lines fit into it. */
const WAITING_BYTES = 4 * 1024 * 1024;

/** Settings of a logger. */
export interface LogOptions {
  /** Name of the program. Each line has it as `program`, because lines about an object have the object's name as `name`. */
  readonly program: string;
  /** Least level of the lines that are written. The default is `info`. */
  readonly level?: Level;
  /** File that determines the level while the program runs. If absent, the level stays. */
  readonly levelFile?: LevelFile | undefined;
}

/**
 * Returns a logger whose lines tools for logs can read: the level is a word, and the time is in the format of RFC 3339. The logger does not
 * harm its program if standard output cannot be written, for example because its disk is full. Lines wait until they can be written, and
 * lines over the limit are lost. Each line is written at once and by this thread. So the lines keep their order, and the end of the process
 * loses none of them.
 */
export function programLogger({ program, level = 'info', levelFile }: LogOptions): Logger {
  // With a length of 0, `flush` does nothing. With `sync: false`, pino writes the waiting lines at the end of the process, and tries again
  // for ever if they cannot be written.
  const output = destination({ dest: STANDARD_OUTPUT, minLength: 1, maxLength: WAITING_BYTES, sync: true });
  // Without this listener, the error would end the process. The next line tries again.
  output.on('error', () => undefined);
  // A dropped line does not begin a write, so without this call nothing would be written any more.
  output.on('drop', () => output.flush());
  let least = levels.values[level] ?? 0;
  const options: LoggerOptions = {
    // A logger that was made by `child` keeps the level of that moment. So all loggers have the lowest level, and `logMethod` decides.
    level: 'trace',
    base: { program },
    timestamp: stdTimeFunctions.isoTime,
    formatters: { level: (label: string) => ({ level: label }) },
    hooks: {
      logMethod(parameters, method, number) {
        if (number >= least) {
          method.apply(this, parameters);
        }
      },
    },
  };
  const logger = pino(options, output);
  if (levelFile !== undefined) {
    followLevel(levelFile, logger, (next) => {
      const wanted = levels.values[next] ?? least;
      if (wanted !== least) {
        // With the lower of both levels, this line is written unless both levels are above it.
        least = Math.min(least, wanted);
        logger.info({ logLevel: next }, 'The level of the log has changed');
        least = wanted;
      }
    });
  }
  return logger;
}

/**
 * Time between two looks at the file. A kubelet needs about a minute to bring a changed ConfigMap into a Pod, so a shorter time would hardly
 * be noticed.
 */
const LOOK_MILLISECONDS = 10_000;

interface LevelFile {
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
