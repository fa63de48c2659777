/** A host with the driver for emulators, an SDK with the stand-in for the Android emulator, and a network namespace without a network. */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomInt, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { pino } from 'pino';
import type { EmulatorLaunchPlan, MachineFolder } from '../../agent/drivers/driver.ts';
import { EmulatorDriver } from '../../agent/drivers/emulator/driver.ts';
import { EMULATOR_API_VERSION, type EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import { makeSdk, makeSdkFolder, type StandInSdk } from '../standins/emulator/sdk.ts';

const OWNER = {
  namespace: 'platform-default',
  name: 'phone',
  uid: 'b5c8f1de-0000-4000-8000-000000000002',
};
/**
 * Range of the Linux users of machines, outside the users of the system. Each host begins at a random user. Processes that a failed test
 * left behind therefore have other users. Files of tests that run at the same time choose from different parts of the range.
 */
const [FIRST_USER, LAST_USER] = [61_000, 64_900];
const PARTS = 4;
const PART_USERS = Math.floor((LAST_USER - FIRST_USER) / PARTS);
const FIRST_OF_PART = FIRST_USER + PART_USERS * (Number(process.env['VITEST_POOL_ID'] ?? 0) % PARTS);
/** Largest number of machines of one host. */
const MACHINES = 10;
const MEMORY_BYTES = 2560 * 1024 * 1024;
const WRAPPER_MODE = 0o755;

export class DriverHost implements AsyncDisposable {
  readonly directory: string;
  readonly sdk: StandInSdk;
  driver: EmulatorDriver;
  readonly #namespace: ChildProcess;
  #program: string | undefined;
  #user = randomInt(FIRST_OF_PART, FIRST_OF_PART + PART_USERS - MACHINES);

  private constructor(directory: string, sdk: StandInSdk, namespace: ChildProcess) {
    this.directory = directory;
    this.sdk = sdk;
    this.#namespace = namespace;
    this.driver = this.#make();
  }

  static async make(): Promise<DriverHost> {
    const directory = await mkdtemp(join(tmpdir(), 'berth-emulators-'));
    const architecture = process.arch === 'arm64' ? 'arm64' : 'amd64';
    const sdk = await makeSdk(join(await makeSdkFolder(), 'sdk'), { architecture, mode: 'sleeping' });
    const script = 'ip link set lo up && echo up && exec sleep 3600';
    const namespace = spawn('unshare', ['--net', 'sh', '-c', script], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await once(namespace.stdout, 'data');
    return new DriverHost(directory, sdk, namespace);
  }

  /** Closes the driver and makes another one, as a restart of the agent does. */
  async restartAgent(): Promise<void> {
    await this.driver.close();
    this.driver = this.#make();
  }

  /** Runs lines of a shell script before the emulator, as the user of each machine. */
  async wrap(lines: readonly string[]): Promise<void> {
    this.#program = join(this.sdk.root, 'wrapper');
    const script = ['#!/bin/sh', ...lines, `exec ${this.sdk.program} "$@"`, ''].join('\n');
    await writeFile(this.#program, script, { mode: WRAPPER_MODE });
    await this.restartAgent();
  }

  machine(uid: string = randomUUID()): { folder: MachineFolder; plan: EmulatorLaunchPlan } {
    this.#user += 1;
    const user = this.#user;
    return {
      folder: { uid, path: join(this.directory, 'data', 'machines', uid) },
      plan: {
        guest: { emulator: emulatorDocument() },
        runAs: { uid: user, gid: user },
        cpu: 1,
        memoryBytes: MEMORY_BYTES,
        network: {
          kind: 'namespace',
          path: `/proc/${this.#namespace.pid}/ns/net`,
          address: '198.51.100.16',
          dnsServer: '198.51.100.1',
        },
      },
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const folder of await this.driver.list()) {
      await this.driver.delete(folder);
    }
    await this.driver.close();
    this.#namespace.kill('SIGKILL');
    await rm(this.directory, { recursive: true, force: true });
    await rm(dirname(this.sdk.root), { recursive: true, force: true });
  }

  #make(): EmulatorDriver {
    const logger = pino({ level: process.env['LOG_LEVEL'] ?? 'silent' });
    const options = { dataDirectory: join(this.directory, 'data'), sdk: this.sdk.root, logger };
    return new EmulatorDriver({ ...options, program: this.#program });
  }
}

function emulatorDocument(changes: Partial<EmulatorMachine> = {}): EmulatorMachine {
  return {
    apiVersion: EMULATOR_API_VERSION,
    emulator: OWNER,
    vm: { ...OWNER, name: 'desktop' },
    platform: 'android-36',
    device: 'pixel_9',
    imageType: 'google_apis',
    exposure: 'PairedVM',
    ...changes,
  };
}

/** Returns the ids of all processes of a Linux user, with the state of each, for example `S` or `T`. */
export async function processesOf(user: number): Promise<Map<number, string>> {
  const found = new Map<number, string>();
  for (const pid of (await readdir('/proc')).filter((name) => /^\d+$/.test(name))) {
    const text = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
    const [, state = ''] = /^State:\s+(\S)/m.exec(text) ?? [];
    if (new RegExp(`^Uid:\\s+${user}\\s`, 'm').test(text) && state !== 'Z') {
      found.set(Number(pid), state);
    }
  }
  return found;
}
