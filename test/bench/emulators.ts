/**
 * Measures the time that the driver adds to a start of an emulator: from the creation of its machine to Android's answer that it has booted,
 * compared with the same program by hand. Both run the stand-in for the Android emulator, which boots without a guest.
 */
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { chmod, mkdir, open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pino } from 'pino';
import { askBooted } from '../../agent/adb/booted.ts';
import type { EmulatorLaunchPlan } from '../../agent/drivers/driver.ts';
import { AVDS, commandLine, environment, FOLDERS } from '../../agent/drivers/emulator/arguments.ts';
import { AVD_NAME, avdFiles } from '../../agent/drivers/emulator/avd.ts';
import { EmulatorDriver } from '../../agent/drivers/emulator/driver.ts';
import { NATIVE } from '../../agent/drivers/emulator/sdk.ts';
import { EMULATOR_API_VERSION, type EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import { EMULATOR_DEFAULTS } from '../../api/v1alpha1/emulator.ts';
import { ADB_PORT } from '../../api/v1alpha1/names.ts';
import { waitFor } from '../../hack/wait.ts';
import { makeSdk, type StandInSdk } from '../standins/emulator/sdk.ts';
import { withFolder } from './folder.ts';
import { format, milliseconds, quantile } from './report.ts';
import type { Verdict } from './verdicts.ts';

const TARGET_MILLISECONDS = 300;
const MEMORY_BYTES = 4 * 1024 ** 3;
/** The stand-in answers after half a second. The interval is short beside the target. */
const BOOT = { deadlineMilliseconds: 60_000, intervalMilliseconds: 2 };
/** User of the machines, as the agent has one for each. */
const RUN_AS = { uid: 1_900_000_001, gid: 1_900_000_001 };
const LOOPBACK = '127.0.0.1';
const NOT_ROOT = 'only root can start emulators';

/** Times in milliseconds, one for each run. */
export interface EmulatorStarts {
  /** From the creation of the machine by the driver until it has booted. */
  driver: number[];
  /** From the start of the program by hand until it has booted. */
  byHand: number[];
}

/** Starts the stand-in by the driver and then by hand, in turns. Without root it measures nothing. */
export async function measureEmulators(parent: string, runs: number): Promise<EmulatorStarts> {
  const times: EmulatorStarts = { driver: [], byHand: [] };
  if (process.getuid?.() !== 0) {
    return times;
  }
  return await withFolder(parent, async (folder) => {
    // The users of machines run the program of the SDK.
    await chmod(folder, 0o755);
    const architecture = process.arch === 'arm64' ? 'arm64' : 'amd64';
    const sdk = await makeSdk(join(folder, 'sdk'), { architecture, mode: 'sleeping' });
    const bench = new Bench(folder, sdk);
    // The first start reads the program from the disk, so it is not counted.
    await bench.byDriver();
    await bench.byHand();
    for (let run = 0; run < runs; run += 1) {
      times.driver.push(await bench.byDriver());
      times.byHand.push(await bench.byHand());
    }
    await bench.close();
    return times;
  });
}

class Bench {
  readonly #folder: string;
  readonly #sdk: StandInSdk;
  readonly #driver: EmulatorDriver;

  constructor(folder: string, sdk: StandInSdk) {
    this.#folder = folder;
    this.#sdk = sdk;
    this.#driver = new EmulatorDriver({
      dataDirectory: join(folder, 'data'),
      sdk: sdk.root,
      program: undefined,
      logger: pino({ level: 'silent' }),
    });
  }

  async byDriver(): Promise<number> {
    const uid = randomUUID();
    const folder = { uid, path: join(this.#folder, 'data', 'machines', uid) };
    const plan = planFor(machineFor(uid));
    const began = performance.now();
    await this.#driver.create(folder, plan);
    await this.#driver.start(folder, plan);
    const time = (await booted()) - began;
    await this.#driver.stop(folder, { graceMilliseconds: 0 });
    await this.#driver.delete(folder);
    return time;
  }

  /** Runs the same command with the same environment in a folder with a new AVD, as a person has it. */
  async byHand(): Promise<number> {
    const uid = randomUUID();
    const folder = join(this.#folder, 'hand', uid);
    const avds = await makeAvd(folder, machineFor(uid));
    const log = await open(join(folder, 'log'), 'a');
    const [file, ...parameters] = commandLine({
      program: this.#sdk.program,
      uid,
      cpu: EMULATOR_DEFAULTS.cpu,
      memoryBytes: MEMORY_BYTES,
      isAccelerated: false,
      dnsServer: LOOPBACK,
    });
    const began = performance.now();
    const child = spawn(file, parameters, {
      cwd: folder,
      env: { ...environment(folder, this.#sdk.root), ANDROID_AVD_HOME: avds },
      stdio: ['ignore', log.fd, log.fd],
    });
    const ended = once(child, 'exit');
    try {
      return (await booted()) - began;
    } finally {
      child.kill('SIGKILL');
      await ended;
      await log.close();
    }
  }

  async close(): Promise<void> {
    await this.#driver.close();
  }
}

function machineFor(uid: string): EmulatorMachine {
  const owner = (name: string): EmulatorMachine['vm'] => ({ namespace: 'platform-default', name, uid });
  const { platform, device, imageType, exposure } = EMULATOR_DEFAULTS;
  return {
    apiVersion: EMULATOR_API_VERSION,
    emulator: owner('phone'),
    vm: owner('vm'),
    platform,
    device,
    imageType,
    exposure,
  };
}

/** Returns a plan in the network namespace of this process, because the program by hand runs there too. */
function planFor(emulator: EmulatorMachine): EmulatorLaunchPlan {
  return {
    guest: { emulator },
    runAs: RUN_AS,
    cpu: EMULATOR_DEFAULTS.cpu,
    memoryBytes: MEMORY_BYTES,
    network: {
      kind: 'namespace',
      path: `/proc/${process.pid}/ns/net`,
      address: LOOPBACK,
      dnsServer: LOOPBACK,
    },
  };
}

/** Makes an AVD and the folders that its environment names. Returns the folder of AVDs. */
async function makeAvd(folder: string, emulator: EmulatorMachine): Promise<string> {
  const avds = join(folder, AVDS);
  const { ini, config } = avdFiles({ ...emulator, architecture: NATIVE }, avds);
  await mkdir(join(avds, `${AVD_NAME}.avd`), { recursive: true });
  await writeFile(join(avds, `${AVD_NAME}.ini`), ini);
  await writeFile(join(avds, `${AVD_NAME}.avd`, 'config.ini'), config);
  for (const name of Object.values(FOLDERS)) {
    await mkdir(join(folder, name));
  }
  return avds;
}

/** Waits until Android has booted. Returns the time. */
async function booted(): Promise<number> {
  const never = new AbortController().signal;
  return await waitFor(
    'the emulator to boot',
    async () => {
      const { kind } = await askBooted({ host: LOOPBACK, port: ADB_PORT }, never);
      return kind === 'booted' && performance.now();
    },
    BOOT,
  );
}

export function emulatorsTable({ driver, byHand }: EmulatorStarts): string {
  const row = (label: string, values: readonly number[]): string[] => [
    label,
    ...[0, 0.5, 0.9].map((part) => milliseconds(quantile(values, part))),
  ];
  return format([
    [`start of the stand-in emulator, ${driver.length} runs`, 'least', 'median', 'p90'],
    row('creation by the driver to booted', driver),
    row('program by hand to booted', byHand),
    ['added by the driver', '', milliseconds(added({ driver, byHand })), ''],
  ]);
}

export function emulatorsVerdicts(starts: EmulatorStarts): Verdict[] {
  const measured = added(starts);
  const target = `at most ${TARGET_MILLISECONDS} ms`;
  return [
    {
      claim: 'emulators: added by the driver to a start of the stand-in, median',
      measured: milliseconds(measured),
      target: starts.driver.length === 0 ? `${target}; ${NOT_ROOT}` : target,
      reached: starts.driver.length === 0 ? undefined : measured <= TARGET_MILLISECONDS,
    },
  ];
}

function added({ driver, byHand }: EmulatorStarts): number {
  return quantile(driver, 0.5) - quantile(byHand, 0.5);
}
