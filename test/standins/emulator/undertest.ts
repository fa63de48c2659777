/**
 * The Android emulator as the tests of its contract run it: the stand-in, or the real program if the environment variable
 * `BERTH_EMULATOR` is `real`, as in `make real`.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, openSync, readFileSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  AVD_NAME,
  avdFiles,
  AVDS,
  commandLine,
  environment,
  FOLDERS,
} from '../../../agent/drivers/emulator/arguments.ts';
import { prepareStart } from '../../../agent/drivers/emulator/files.ts';
import type { Architecture } from '../../../agent/drivers/driver.ts';
import { imageFolder, NATIVE } from '../../../agent/drivers/emulator/sdk.ts';
import { EMULATOR_DEFAULTS } from '../../../api/v1alpha1/fields.ts';
import { waitFor } from '../../../hack/wait.ts';
import { makeSdk } from './sdk.ts';

export const IS_REAL = process.env['BERTH_EMULATOR'] === 'real';
/** Name of the program under test in titles. */
export const NAME = IS_REAL ? 'real emulator' : 'stand-in for the emulator';

/** Text of `-id`. */
export const MACHINE_ID = 'machine-of-the-test';
const CPUS = 2;
const MEMORY_BYTES = 4 * 1024 ** 3;
/** Forwarder of DNS that the guest gets. The tests resolve no name. */
const DNS_SERVER = '127.0.0.1';
/** The real program reads its files and opens its ports within seconds. */
const STARTS_MILLISECONDS = 60_000;

/** Returns the root of the SDK whose program is tested. @throws Error that says what of the real SDK is missing. */
export async function sdkUnderTest(folder: string): Promise<string> {
  if (!IS_REAL) {
    return (await makeSdk(join(folder, 'sdk'), { architecture: NATIVE, mode: 'sleeping' })).root;
  }
  const root = process.env['ANDROID_HOME'];
  if (root === undefined) {
    throw new Error('make real needs an Android SDK: set ANDROID_HOME to its folder');
  }
  const parts = [
    'emulator/emulator',
    'platforms',
    'platform-tools',
    imageFolder({ ...EMULATOR_DEFAULTS, architecture: NATIVE }),
  ];
  const missing = parts.filter((part) => !existsSync(join(root, part)));
  if (missing.length > 0) {
    throw new Error(
      `make real needs an SDK with an emulator and a system image; ${root} lacks: ${missing.join(', ')}`,
    );
  }
  return root;
}

interface HomeOptions {
  /** Architecture of the SDK; that of the processor if undefined. */
  architecture?: Architecture;
  /** Replaced keys of `config.ini`. */
  changes?: Readonly<Record<string, string>>;
}

/** A folder of an emulator's own, as the driver makes the folder of a machine. Its files, environment and options are the driver's. */
export class EmulatorHome implements AsyncDisposable {
  readonly folder: string;
  readonly program: string;
  readonly #environment: Readonly<Record<string, string>>;
  readonly #running = new Set<RunningEmulator>();

  private constructor(folder: string, sdk: string) {
    this.folder = folder;
    this.program = join(sdk, 'emulator', 'emulator');
    this.#environment = environment(folder, sdk);
  }

  /** Makes the folder with the driver's AVD. */
  static async make(
    sdk: string,
    { architecture = NATIVE, changes = {} }: HomeOptions = {},
  ): Promise<EmulatorHome> {
    const folder = await mkdtemp(join(tmpdir(), 'berth-emulator-'));
    const home = new EmulatorHome(folder, sdk);
    for (const name of [...Object.values(FOLDERS), AVDS]) {
      await mkdir(join(folder, name));
    }
    await mkdir(home.avd);
    const { ini, config } = avdFiles({ ...EMULATOR_DEFAULTS, architecture }, join(folder, AVDS));
    await writeFile(join(folder, AVDS, `${AVD_NAME}.ini`), ini);
    const added = Object.entries(changes).map(([key, value]) => `${key}=${value}\n`);
    const kept = config.split('\n').filter((line) => !Object.hasOwn(changes, line.split('=')[0] ?? ''));
    await writeFile(join(home.avd, 'config.ini'), `${kept.join('\n')}${added.join('')}`);
    return home;
  }

  /** Folder of the AVD. */
  get avd(): string {
    return join(this.folder, AVDS, `${AVD_NAME}.avd`);
  }

  /** Returns the driver's options, with changes. */
  options(changes: { memoryBytes?: number } = {}): string[] {
    const [, ...options] = commandLine({
      program: this.program,
      uid: MACHINE_ID,
      cpu: CPUS,
      memoryBytes: MEMORY_BYTES,
      isAccelerated: true,
      dnsServer: DNS_SERVER,
      ...changes,
    });
    return options;
  }

  /** Removes locks and writes the console's token, as the driver does before each start. */
  async prepare(token: string): Promise<void> {
    await prepareStart(this.folder, token, undefined);
  }

  /** Starts the program. */
  start(args: readonly string[], environment: Readonly<Record<string, string>> = {}): RunningEmulator {
    const logFile = join(this.folder, `log-${this.#running.size}`);
    const log = openSync(logFile, 'a');
    const child = spawn(this.program, args, {
      stdio: ['ignore', log, log],
      env: { ...this.#environment, ...environment },
    });
    closeSync(log);
    const running = new RunningEmulator(child, logFile);
    this.#running.add(running);
    return running;
  }

  /** Runs the program to its end. */
  async run(
    args: readonly string[],
    environment: Readonly<Record<string, string>> = {},
  ): Promise<{ code: number | null; output: string }> {
    const running = this.start(args, environment);
    return { code: await running.ended, output: running.output };
  }

  get discoveryFolder(): string {
    return join(this.folder, FOLDERS.runtime, 'avd', 'running');
  }

  /** Resolves when the emulator has its ports, and returns its discovery file. */
  async discovered(emulator: RunningEmulator): Promise<string> {
    const folder = this.discoveryFolder;
    const file = `pid_${emulator.pid}.ini`;
    const isThere = async () => (await readdir(folder)).includes(file);
    await waitFor(`${file} of the emulator`, isThere, { deadlineMilliseconds: STARTS_MILLISECONDS });
    return join(folder, file);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const emulator of this.#running) {
      await emulator.kill();
    }
    await rm(this.folder, { recursive: true, force: true });
  }
}

export class RunningEmulator {
  readonly #child: ChildProcess;
  readonly #logFile: string;
  /** Resolves with the exit code; null if a signal ended it. */
  readonly ended: Promise<number | null>;

  constructor(child: ChildProcess, logFile: string) {
    this.#child = child;
    this.#logFile = logFile;
    this.ended = once(child, 'exit').then(([code]) => code as number | null);
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** All that the emulator has printed. */
  get output(): string {
    return readFileSync(this.#logFile, 'utf8');
  }

  /** Ends the emulator by force. */
  async kill(): Promise<void> {
    if (this.#child.exitCode === null && this.#child.signalCode === null) {
      this.#child.kill('SIGKILL');
      await this.ended;
    }
  }
}

/** Returns whether somebody accepts a connection. */
export async function connects(port: number, host: string): Promise<boolean> {
  const socket = connect(port, host);
  try {
    await once(socket, 'connect');
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}
