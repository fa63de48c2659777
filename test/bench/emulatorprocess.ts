/**
 * Starts emulators as the parts of an agent do, and the same program by hand, in turns. It runs in the network namespace of a host:
 *
 *     node emulatorprocess.ts '{"folder": …}'
 *
 * It prints EmulatorStarts as JSON.
 */
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pino } from 'pino';
import { askBooted } from '../../agent/drivers/emulator/adb.ts';
import type { EmulatorLaunchPlan } from '../../agent/drivers/driver.ts';
import {
  AVD_NAME,
  avdFiles,
  AVDS,
  commandLine,
  environment,
  FOLDERS,
} from '../../agent/drivers/emulator/arguments.ts';
import { EmulatorDriver } from '../../agent/drivers/emulator/driver.ts';
import { NATIVE } from '../../agent/drivers/emulator/sdk.ts';
import type { NatOptions } from '../../agent/network/nat/layout.ts';
import { NatNetwork } from '../../agent/network/nat/nat.ts';
import type { NamespaceNetwork } from '../../agent/network/network.ts';
import { EMULATOR_DEFAULTS } from '../../api/v1alpha1/fields.ts';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import { ADB_PORT } from '../../api/v1alpha1/names.ts';
import { waitFor } from '../../hack/wait.ts';
import { emulatorDocument } from '../fixtures/emulators.ts';

const MEMORY_BYTES = 4 * 1024 ** 3;
/** Time limit of a boot. The interval is short compared with the target. */
const BOOT = { deadlineMilliseconds: 60_000, intervalMilliseconds: 2 };
/** User of the machines. The agent has another one for each machine. */
const RUN_AS = { uid: 1_900_000_001, gid: 1_900_000_001 };
const LOOPBACK = '127.0.0.1';
const logger = pino({ level: 'silent' });

export interface EmulatorErrand {
  folder: string;
  /** Folder of the SDK, and the emulator's program in it. */
  sdk: string;
  program: string;
  nat: NatOptions;
  runs: number;
}

/** Times in milliseconds, one for each run. */
export interface EmulatorStarts {
  /** From the creation of machine and network until Android has booted. */
  byAgent: number[];
  /** Part of `byAgent` in which the network makes the namespace. */
  network: number[];
  /** From the start of the program by hand until Android has booted. */
  byHand: number[];
}

class Bench {
  readonly #errand: EmulatorErrand;
  readonly #driver: EmulatorDriver;
  readonly #network: NatNetwork;

  constructor(errand: EmulatorErrand) {
    this.#errand = errand;
    const { folder, nat, sdk } = errand;
    this.#driver = new EmulatorDriver({
      dataDirectory: join(folder, 'data'),
      sdk,
      program: undefined,
      logger,
    });
    this.#network = new NatNetwork(nat, async () => undefined, logger);
  }

  async run(): Promise<EmulatorStarts> {
    const times: EmulatorStarts = { byAgent: [], network: [], byHand: [] };
    await this.#network.setUp();
    try {
      // The first start reads the program from the disk, so it is not counted.
      await this.#byAgent();
      await this.#byHand();
      for (let run = 0; run < this.#errand.runs; run += 1) {
        const { network, whole } = await this.#byAgent();
        times.byAgent.push(whole);
        times.network.push(network);
        times.byHand.push(await this.#byHand());
      }
      return times;
    } finally {
      await this.#driver.close();
      await this.#network.close();
    }
  }

  async #byAgent(): Promise<{ network: number; whole: number }> {
    const uid = randomUUID();
    const folder = { uid, path: join(this.#errand.folder, 'data', 'machines', uid) };
    const emulator = machineFor(uid);
    const began = performance.now();
    await this.#driver.create(folder, { guest: { emulator }, runAs: RUN_AS });
    const created = performance.now();
    const network = await this.#network.attachNamespace(uid, {
      exposedPort: ADB_PORT,
      peer: undefined,
      ports: [],
    });
    const attached = performance.now();
    await this.#driver.start(folder, planFor(emulator, network));
    const whole = (await booted(network.address)) - began;
    await this.#driver.stop(folder, { graceMilliseconds: 0 });
    await this.#driver.delete(folder);
    await this.#network.detach(uid);
    return { network: attached - created, whole };
  }

  /** Runs the same command with the same environment in a folder with a new AVD, as a person has it. */
  async #byHand(): Promise<number> {
    const uid = randomUUID();
    const folder = join(this.#errand.folder, 'hand', uid);
    const avds = await makeAvd(folder, machineFor(uid));
    const log = await open(join(folder, 'log'), 'a');
    const [file, ...parameters] = commandLine({
      program: this.#errand.program,
      uid,
      cpu: EMULATOR_DEFAULTS.cpu,
      memoryBytes: MEMORY_BYTES,
      isAccelerated: false,
      dnsServer: LOOPBACK,
    });
    const began = performance.now();
    const child = spawn(file, parameters, {
      cwd: folder,
      env: { ...environment(folder, this.#errand.sdk), ANDROID_AVD_HOME: avds },
      stdio: ['ignore', log.fd, log.fd],
    });
    const ended = once(child, 'exit');
    try {
      return (await booted(LOOPBACK)) - began;
    } finally {
      child.kill('SIGKILL');
      await ended;
      await log.close();
    }
  }
}

function machineFor(uid: string): EmulatorMachine {
  const vm = { namespace: 'platform-default', name: 'vm', uid };
  return emulatorDocument(vm, 'phone');
}

function planFor(emulator: EmulatorMachine, network: NamespaceNetwork): EmulatorLaunchPlan {
  return {
    guest: { emulator },
    runAs: RUN_AS,
    cpu: EMULATOR_DEFAULTS.cpu,
    memoryBytes: MEMORY_BYTES,
    network,
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
async function booted(host: string): Promise<number> {
  const never = new AbortController().signal;
  return await waitFor(
    'the emulator to boot',
    async () => {
      const { kind } = await askBooted({ host, port: ADB_PORT }, never);
      return kind === 'booted' && performance.now();
    },
    BOOT,
  );
}

if (import.meta.main) {
  const errand = JSON.parse(process.argv[2] ?? '') as EmulatorErrand;
  process.stdout.write(JSON.stringify(await new Bench(errand).run()));
}
