/**
 * The Android emulator as the tests of its contract run it: the stand-in, or the real program if the environment variable
 * `BERTH_EMULATOR` is `real`, as in `make real`.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, openSync, readFileSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { waitFor } from '../../../hack/wait.ts';
import { makeSdk } from './sdk.ts';

export const IS_REAL = process.env['BERTH_EMULATOR'] === 'real';

const NAMES =
  process.arch === 'arm64' ? { abi: 'arm64-v8a', cpu: 'arm64' } : { abi: 'x86_64', cpu: 'x86_64' };
const IMAGE = join('system-images', 'android-36', 'google_apis', NAMES.abi);
/** The real program reads its files and opens its ports within seconds. */
const STARTS_MILLISECONDS = 60_000;

/** Returns the root of the SDK whose program is tested. @throws Error that says what of the real SDK is missing. */
export async function sdkUnderTest(folder: string): Promise<string> {
  if (!IS_REAL) {
    const architecture = process.arch === 'arm64' ? 'arm64' : 'amd64';
    return (await makeSdk(join(folder, 'sdk'), { architecture, mode: 'sleeping' })).root;
  }
  const root = process.env['ANDROID_HOME'];
  if (root === undefined) {
    throw new Error('make real needs an Android SDK: set ANDROID_HOME to its folder');
  }
  const parts = ['emulator/emulator', 'platforms', 'platform-tools', IMAGE];
  const missing = parts.filter((part) => !existsSync(join(root, part)));
  if (missing.length > 0) {
    throw new Error(
      `make real needs an SDK with an emulator and a system image; ${root} lacks: ${missing.join(', ')}`,
    );
  }
  return root;
}

/** A folder of an emulator's own, with all that its environment names. */
export class EmulatorHome implements AsyncDisposable {
  readonly folder: string;
  readonly program: string;
  readonly environment: Record<string, string>;
  readonly #running = new Set<RunningEmulator>();

  private constructor(folder: string, sdk: string) {
    this.folder = folder;
    this.program = join(sdk, 'emulator', 'emulator');
    this.environment = {
      PATH: process.env['PATH'] ?? '',
      HOME: folder,
      TMPDIR: join(folder, 'tmp'),
      XDG_RUNTIME_DIR: join(folder, 'run'),
      ANDROID_HOME: sdk,
      ANDROID_AVD_HOME: join(folder, 'avd'),
      ANDROID_EMULATOR_HOME: join(folder, '.android'),
      // Nobody listens on port 1, so that no ADB server hears of the emulator.
      ANDROID_ADB_SERVER_PORT: '1',
    };
  }

  static async make(sdk: string): Promise<EmulatorHome> {
    const folder = await mkdtemp(join(tmpdir(), 'berth-emulator-'));
    for (const name of ['tmp', 'run', 'avd', '.android']) {
      await mkdir(join(folder, name));
    }
    return new EmulatorHome(folder, sdk);
  }

  /** Makes an AVD and returns its folder. `changes` replaces keys of its `config.ini`. */
  async avd(name: string, changes: Readonly<Record<string, string>> = {}): Promise<string> {
    const folder = join(this.folder, 'avd', `${name}.avd`);
    const config = {
      AvdId: name,
      'abi.type': NAMES.abi,
      'disk.dataPartition.size': '6G',
      'fastboot.forceColdBoot': 'yes',
      'hw.cpu.arch': NAMES.cpu,
      'hw.cpu.ncore': '2',
      'hw.lcd.density': '420',
      'hw.lcd.height': '2424',
      'hw.lcd.width': '1080',
      'hw.ramSize': '4096',
      'image.sysdir.1': `${IMAGE}/`,
      'tag.id': 'google_apis',
      ...changes,
    };
    await mkdir(folder, { recursive: true });
    await writeFile(join(folder, 'config.ini'), ini(config));
    const pointer = { 'avd.ini.encoding': 'UTF-8', path: folder, target: 'android-36' };
    await writeFile(join(this.folder, 'avd', `${name}.ini`), ini(pointer));
    return folder;
  }

  /** Starts the program. */
  start(args: readonly string[], environment: Readonly<Record<string, string>> = {}): RunningEmulator {
    const logFile = join(this.folder, `log-${this.#running.size}`);
    const log = openSync(logFile, 'a');
    const child = spawn(this.program, args, {
      stdio: ['ignore', log, log],
      env: { ...this.environment, ...environment },
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

  /** Resolves when the emulator has its ports, and returns its discovery file. */
  async discovered(emulator: RunningEmulator): Promise<string> {
    const folder = join(this.folder, 'run', 'avd', 'running');
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

function ini(values: Readonly<Record<string, string>>): string {
  return Object.entries(values)
    .map(([key, value]) => `${key}=${value}\n`)
    .join('');
}
