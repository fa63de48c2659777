/**
 * Debian's ADB client for tests, with a server, a HOME and a port of its own. It never looks for emulators on the loopback ports by itself, because it
 * would show the same device twice.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { limitTime } from '../../base/exec.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { waitFor } from '../../hack/wait.ts';

/** Time limit of one command. adb itself may wait without limit for a device that accepts connections and does not answer. */
const COMMAND_MILLISECONDS = 20_000;
/** Time limit of one command for a connected device. An emulated guest on a busy machine takes long for a large file. */
const DEVICE_MILLISECONDS = 90_000;
/** Time limit until a device answers. An emulated guest takes seconds, and on a busy machine many. */
const CONNECT_MILLISECONDS = 120_000;

export interface AdbResult {
  code: number | null;
  stdout: string;
  stderr: string;
}

export class AdbClient implements AsyncDisposable {
  readonly #folder: string;
  readonly #enter: readonly string[];
  readonly #environment: NodeJS.ProcessEnv;

  private constructor(folder: string, enter: readonly string[], port: number) {
    this.#folder = folder;
    this.#enter = enter;
    this.#environment = {
      PATH: process.env['PATH'],
      HOME: folder,
      TMPDIR: folder,
      ANDROID_ADB_SERVER_PORT: String(port),
      // The server looks for emulators on loopback from 5555 up to this port, so on none.
      ADB_LOCAL_TRANSPORT_MAX_PORT: '5553',
    };
  }

  /** @param enter command in front of each `adb`, for example `nsenter --net=FILE` to be in a network namespace */
  static async open(enter: readonly string[] = []): Promise<AdbClient> {
    return new AdbClient(await mkdtemp(join(tmpdir(), 'berth-adb-')), enter, await freePort());
  }

  /** Runs `adb` with these arguments. The exit code of `adb connect` is 0 even if it failed. */
  async run(...args: readonly string[]): Promise<AdbResult> {
    return await this.#execute(args, COMMAND_MILLISECONDS);
  }

  /** Runs `adb` with these arguments for a connected device. */
  async runFor(address: string, args: readonly string[]): Promise<AdbResult> {
    return await this.#execute(['-s', address, ...args], DEVICE_MILLISECONDS);
  }

  async #execute(args: readonly string[], milliseconds: number): Promise<AdbResult> {
    const [program = 'adb', ...rest] = [...this.#enter, 'adb', ...args];
    const child = spawn(program, rest, {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: this.#environment,
    });
    limitTime(child, milliseconds);
    const ended = once(child, 'exit');
    const [stdout, stderr] = await Promise.all([text(child.stdout), text(child.stderr)]);
    const [code] = (await ended) as [number | null];
    return { code, stdout, stderr };
  }

  /** Connects to a device. @throws Error if it does not answer as a device within the time. */
  async connect(address: string, milliseconds = CONNECT_MILLISECONDS): Promise<AdbDevice> {
    await this.run('start-server');
    await waitFor(
      `ADB at ${address}`,
      async () => {
        const { stdout } = await this.run('connect', address);
        const state = await this.run('-s', address, 'get-state');
        if (state.stdout.trim() === 'device') {
          return true;
        }
        await this.run('disconnect', address);
        throw new Error(`${stdout.trim()}; ${state.stderr.trim()}`);
      },
      { deadlineMilliseconds: milliseconds },
    );
    return new AdbDevice(this, address);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.run('kill-server');
    await rm(this.#folder, { recursive: true, force: true });
  }
}

/** A connected device. */
export class AdbDevice {
  readonly #client: AdbClient;
  readonly #address: string;

  constructor(client: AdbClient, address: string) {
    this.#client = client;
    this.#address = address;
  }

  /** Runs `adb` with these arguments for this device. */
  async run(...args: readonly string[]): Promise<AdbResult> {
    return await this.#client.runFor(this.#address, args);
  }

  /** Runs a command in the device's shell, with the command's exit code. */
  async shell(command: string): Promise<AdbResult> {
    return await this.run('shell', command);
  }

  async property(name: string): Promise<string> {
    return (await this.shell(`getprop ${name}`)).stdout.trim();
  }
}
