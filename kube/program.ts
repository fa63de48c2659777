/** Starts a program of the control plane, stops it at a signal, reports a failure to start, and survives rejected promises. */
import { parseArgs } from 'node:util';
import type { Logger } from 'pino';
import { ConfigError } from '../base/config.ts';
import { type LogOptions, programLogger } from '../base/log.ts';

/** Exit code if the configuration or the arguments contain a mistake, which the caller must correct. */
const EXIT_CONFIGURATION = 2;
const EXIT_FAILURE = 1;

/** A program that has been started. */
export interface Running {
  /** Ends the work of the program. The process exits afterwards. */
  stop(): Promise<void>;
}

/**
 * Starts a program and stops it at SIGTERM or SIGINT. After such a signal, the exit code is 0, or 1 if the stop fails. A signal during the
 * start ends the process at once. `start` gets a function that ends the process at once with a failure.
 *
 * @throws Error of `start`
 */
export async function runUntilSignal(
  logger: Logger,
  start: (fail: () => void) => Promise<Running>,
): Promise<void> {
  surviveRejections(logger);
  const exit = (code: number) => {
    logger.flush();
    process.exit(code);
  };
  let running: Running | undefined;
  const stop = async () => {
    try {
      await running?.stop();
      exit(0);
    } catch (error) {
      logger.error({ err: error }, 'stopped with an error');
      exit(EXIT_FAILURE);
    }
  };
  // The handlers come before the start, because a program in a container is process 1, for which Linux ignores signals without a handler.
  process.once('SIGTERM', () => void stop());
  process.once('SIGINT', () => void stop());
  running = await start(() => exit(EXIT_FAILURE));
}

/** What a program starts with. */
export interface StartArguments<Config> {
  readonly config: Config;
  readonly kubeconfigPath: string | undefined;
  readonly logger: Logger;
  /** Ends the process at once with a failure. */
  readonly fail: () => void;
}

export interface Program<Config> {
  /** Name in the log, for example `berth-operator`. */
  readonly name: string;
  /** Reads the configuration. `path` is undefined for the defaults. @throws ConfigError */
  readonly loadConfig: (path: string | undefined) => Config;
  readonly start: (start: StartArguments<Config>) => Promise<Running>;
}

/**
 * Runs a program with the arguments `--config FILE` and `--kubeconfig FILE` until a signal. The level of its log follows the file. If the
 * program cannot start, its reason is written and the process exits.
 */
export async function runProgram<Config extends { readonly logLevel: NonNullable<LogOptions['level']> }>(
  program: Program<Config>,
): Promise<void> {
  const { name, loadConfig, start } = program;
  try {
    const { values } = parseArgs({ options: { config: { type: 'string' }, kubeconfig: { type: 'string' } } });
    const { config: file, kubeconfig: kubeconfigPath } = values;
    const config = loadConfig(file);
    const logger = programLogger({
      program: name,
      level: config.logLevel,
      levelFile: file === undefined ? undefined : { file, read: () => loadConfig(file).logLevel },
    });
    await runUntilSignal(logger, async (fail) => await start({ config, kubeconfigPath, logger, fail }));
  } catch (error) {
    exitWith(error);
  }
}

/**
 * Writes the reason why the program could not start, and exits. The stack is left out if the caller made a mistake, or if `isForPeople` is
 * true for the error.
 */
export function exitWith(error: unknown, isForPeople: (error: unknown) => boolean = () => false): never {
  const isMistake = error instanceof ConfigError || (error instanceof TypeError && 'code' in error);
  const isShort = isMistake || isForPeople(error);
  process.stderr.write(
    `${error instanceof Error ? (isShort ? error.message : error.stack) : String(error)}\n`,
  );
  process.exit(isMistake ? EXIT_CONFIGURATION : EXIT_FAILURE);
}

let unhandled = 0;

/** Returns the number of rejected promises that no code handled, since the start of this process. */
export function unhandledRejections(): number {
  return unhandled;
}

/**
 * Logs rejected promises that no code handles, with their stacks, and lets the process continue. By default, Node.js ends the process after
 * such a rejection. With this default, one missing handler in the code for connections would let a caller end the operator or an agent
 * again and again. A rejection ends only its own chain of promises, so the other parts of the process are not damaged. An uncaught
 * exception still ends the process, because it might have left shared data half changed.
 */
export function surviveRejections(logger: Logger): void {
  process.on('unhandledRejection', (reason) => {
    unhandled += 1;
    logger.error(
      { err: reason },
      'A promise was rejected and no code handled it. This is a fault of the program',
    );
  });
}
