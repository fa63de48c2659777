/**
 * The program `tart` as the tests of its contract run it: the stand-in, or the real program if the environment variable `BERTH_TART` is `real`,
 * as in `make real`. The real program needs an Apple computer, and two of its VMs, of which the tests run copies.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { constants, copyFileSync, existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { environment } from '../../agent/drivers/tart/program.ts';
import { softnetBeside, softnetObstacle } from '../../agent/network/softnet.ts';
import { findProgram } from '../../base/exec.ts';
import { waitFor } from '../../hack/wait.ts';
import { makeSoftnetProgram, makeTartImage, makeTartProgram } from './tarthost.ts';

export const IS_REAL = process.env['BERTH_TART'] === 'real';
/** Name of the program under test in titles. */
export const NAME = IS_REAL ? 'real tart' : 'stand-in for tart';
/** Time limit until a machine runs, or has ended. The memory of a real guest is several gigabytes. */
const STEP_MILLISECONDS = IS_REAL ? 300_000 : 60_000;

type System = 'darwin' | 'linux';

/** Variables with the names of the VMs of which `make real` runs copies. */
const VARIABLES: Readonly<Record<System, string>> = {
  darwin: 'BERTH_TART_MACOS',
  linux: 'BERTH_TART_LINUX',
};
/** Names of a VM's files in the folder of `tart`, by those in an image of Berth. */
const FILES = { 'disk.raw': 'disk.img', 'nvram.bin': 'nvram.bin', 'config.json': 'config.json' };

/** Returns why nothing can be run with the real program on this computer. Undefined if it can, or if the stand-in runs. */
export async function whyNoTart(): Promise<string | undefined> {
  if (!IS_REAL) {
    return undefined;
  }
  const why = 'nothing was run with the real tart:';
  if (process.platform !== 'darwin') {
    return `${why} it runs on Apple computers only, and this is ${process.platform}`;
  }
  if ((await findProgram('tart')) === undefined) {
    return `${why} it is not in PATH`;
  }
  const missing = Object.entries(VARIABLES).filter(([, name]) => !existsSync(sourceOf(name)));
  return missing.length === 0
    ? undefined
    : `${why} set ${missing.map(([system, name]) => `${name} to a stopped VM with ${system}`).join(', ')} (tart list)`;
}

/** Returns why `tart` cannot filter packets with `softnet` on this computer. Undefined if it can, or if the stand-in runs. */
export async function whyNoSoftnet(): Promise<string | undefined> {
  const tart = IS_REAL ? await findProgram('tart') : undefined;
  const obstacle = tart === undefined ? undefined : await softnetObstacle(softnetBeside(tart));
  return obstacle && `nothing was run with the real softnet: ${obstacle.finding}`;
}

/** Returns the folder of the VM that the variable names. */
function sourceOf(variable: string): string {
  return join(homedir(), '.tart', 'vms', process.env[variable] ?? 'none');
}

export interface Ended {
  readonly code: number | null;
  readonly output: string;
}

/** A folder of machines of its own for `tart`. */
export class TartUnderTest implements AsyncDisposable {
  readonly home: string;
  readonly #program: string;
  readonly #running: RunningTart[] = [];

  private constructor(home: string, program: string) {
    this.home = home;
    this.#program = program;
  }

  static async make(): Promise<TartUnderTest> {
    // Copies on write need the file system of the VMs. Paths of sockets are short.
    const home = mkdtempSync(IS_REAL ? join(homedir(), '.berth-') : join(tmpdir(), 'berth-tart-'));
    const own = join(home, 'tart-stand-in');
    if (!IS_REAL) {
      makeTartProgram(own);
      makeSoftnetProgram(home);
    }
    return new TartUnderTest(home, IS_REAL ? ((await findProgram('tart')) ?? '') : own);
  }

  /** Makes the files of a machine as the driver does: without a command of `tart`. */
  add(name: string, system: System): void {
    const folder = join(this.home, 'vms', name);
    mkdirSync(folder, { recursive: true });
    const image = join(this.home, `image-${system}`);
    if (!IS_REAL) {
      makeTartImage(image, system);
    }
    for (const [ours, theirs] of Object.entries(FILES)) {
      const source = IS_REAL ? join(sourceOf(VARIABLES[system]), theirs) : join(image, ours);
      copyFileSync(source, join(folder, theirs), constants.COPYFILE_FICLONE);
    }
  }

  has(name: string, file: string): boolean {
    return existsSync(join(this.home, 'vms', name, file));
  }

  /** Runs a command to its end. */
  async call(...parameters: string[]): Promise<Ended> {
    return await this.#start(parameters).ended;
  }

  /** Starts a machine with the options of the driver, and resolves when the program says that it runs. */
  async run(name: string, ...options: string[]): Promise<RunningTart> {
    const running = this.#start(['run', name, '--no-graphics', '--no-audio', '--no-clipboard', ...options]);
    await waitFor(`${name} to run`, async () => (await this.describe(name)).Running, {
      deadlineMilliseconds: STEP_MILLISECONDS,
    });
    return running;
  }

  async describe(name: string): Promise<{ Running: boolean; CPU: number; Memory: number; Display: string }> {
    const { output } = await this.call('get', name, '--format', 'json');
    return JSON.parse(output) as Awaited<ReturnType<TartUnderTest['describe']>>;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const running of this.#running) {
      running.send('SIGKILL');
      await running.ended;
    }
    rmSync(this.home, { recursive: true, force: true });
  }

  #start(parameters: readonly string[]): RunningTart {
    const running = new RunningTart(
      this.#program,
      parameters,
      environment({ path: this.#program, home: this.home }),
    );
    this.#running.push(running);
    return running;
  }
}

export class RunningTart {
  readonly #child: ChildProcess;
  /** Resolves when the process has ended. */
  readonly ended: Promise<Ended>;
  #output = '';

  constructor(program: string, parameters: readonly string[], environment: NodeJS.ProcessEnv) {
    const child = spawn(program, parameters, { stdio: ['ignore', 'pipe', 'pipe'], env: environment });
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text: string) => (this.#output += text));
    }
    this.#child = child;
    this.ended = once(child, 'close').then(([code]) => ({
      code: code as number | null,
      output: this.#output,
    }));
  }

  /** What the process has printed so far. */
  get printed(): string {
    return this.#output;
  }

  send(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }
}
