/**
 * `node agent/main.ts --config FILE [--log-file FILE]`: runs the agent, which makes this computer a host of VMs. A signal stops the agent, but
 * its VMs continue to run. `node agent/main.ts doctor [--config FILE] [--output json]` checks the computer instead, and changes nothing.
 */
import '../base/threads.ts';
import '../base/heap.ts';
import { mkdirSync } from 'node:fs';
import { ReasonedError } from '../api/v1alpha1/reasons.ts';
import { ConfigError } from '../base/config.ts';
import { programLogger } from '../base/log.ts';
import { surviveRejections } from '../kube/program.ts';
import { keepReserve } from '../base/files.ts';
import { runAgent, createParts } from './agent.ts';
import { parseCommandLine } from './commandline.ts';
import { loadConfig } from './config.ts';
import { checkHost } from './doctor/doctor.ts';
import { HostUnfitError } from './fitness.ts';
import { boundLog } from './logfile.ts';
import { rememberOwner } from './owner.ts';
import { LockedError, lockDataDirectory } from './processes/lock.ts';
import { UserRangeError } from './processes/users.ts';
import { JoinError } from './identity/identity.ts';

const EXIT_FAILURE = 1;
/** Exit code for a wrong configuration or command line. A restart does not help until a person corrects the mistake. */
const EXIT_MISUSE = 2;

/** Runs the command of the command line. Returns the exit code. @throws ConfigError when the command line is wrong. */
async function runCommand(): Promise<number> {
  const command = parseCommandLine(process.argv.slice(2));
  return command.name === 'run'
    ? await run(command.config, command.logFile)
    : await checkHost(command.config, command.output, print);
}

/** Resolves when the text is written. Otherwise the end of the process could cut it off. */
async function print(text: string): Promise<void> {
  await new Promise<void>((resolve) => void process.stdout.write(text, () => resolve()));
}

async function run(file: string, logFile: string | undefined): Promise<number> {
  const config = loadConfig(file);
  const logger = programLogger({
    program: 'berth-agent',
    level: config.logLevel,
    levelFile: { file, read: () => loadConfig(file).logLevel },
  });
  surviveRejections(logger);
  if (logFile !== undefined) {
    boundLog(logFile, logger);
  }
  // Mode 0711 lets helper programs that run as other users reach their own folders in the data directory. These users cannot read secrets,
  // because only the agent's user can read the files and folders with secrets.
  mkdirSync(config.dataDirectory, { recursive: true, mode: 0o711 });
  // The reserve file must exist before the lock file. On a full disk, the agent empties the reserve file to get space for the lock file.
  keepReserve(config.dataDirectory);
  const unlock = lockDataDirectory(config.dataDirectory);
  rememberOwner(config);
  const stop = new AbortController();
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.once(signal, () => {
      logger.info({ signal }, 'The agent stops; its machines continue to run');
      stop.abort(new Error(`Stopped by ${signal}`));
    });
  }
  try {
    await runAgent(config, await createParts(config, logger), logger, stop.signal);
  } catch (error) {
    if (!stop.signal.aborted) {
      throw error;
    }
  } finally {
    unlock();
  }
  return 0;
}

/** Returns whether a person can correct the cause of the error. Such an error is printed in one line, without a stack. */
function isForPeople(error: unknown): error is Error {
  return [ConfigError, LockedError, JoinError, HostUnfitError, ReasonedError, UserRangeError].some(
    (kind) => error instanceof kind,
  );
}

async function main(): Promise<void> {
  try {
    process.exitCode = await runCommand();
  } catch (error) {
    const text = isForPeople(error) ? error.message : String(error instanceof Error ? error.stack : error);
    process.stderr.write(`${text}\n`);
    process.exitCode = error instanceof ConfigError ? EXIT_MISUSE : EXIT_FAILURE;
  }
  // `process.exit` is necessary, because an open socket of a hypervisor or an open log would keep the process alive.
  process.exit();
}

// The build of executables turns this file into a CommonJS module, so `await` is not possible at the top level.
void main();
