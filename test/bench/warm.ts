/**
 * Measures starts of real guests from the memory of an image, compared with boots of the same image and with resumes. The driver starts the
 * guests, one and several at once. The test guest starts its guest agent only when it is asked to, so a boot serves its page before its guest
 * agent answers.
 */
import { loadavg } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import type { BaseImage, MemoryFiles } from '../../agent/disks/disk.ts';
import { allocatedBytes } from '../../agent/disks/diskio.ts';
import type { MachineFolder, VmLaunchPlan } from '../../agent/drivers/driver.ts';
import { QemuDriver } from '../../agent/drivers/qemu/driver.ts';
import { GuestConnection } from '../../agent/drivers/qemu/guestconnection.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { waitFor } from '../../hack/wait.ts';
import { guestBase, planFor, tell } from '../worlds/qemuguest.ts';
import { withFolder } from './folder.ts';
import { proportionalMegabytes } from './measure.ts';
import { measureWarmPods, type PodTimes } from './warmpods.ts';

const MEBIBYTE = 1024 ** 2;
/** Memory of the guests. */
const SIZES_MEBIBYTES = [256, 1024] as const;
/** Numbers of guests that start at once. */
const AT_ONCE = [1, 4] as const;
/** Part of its memory that the guest has filled with random bytes when it is saved, because zeros cost nothing. */
const FILLED_PART = 4;
/** Time limit of one wait. Four emulated guests on a busy machine boot in less. */
const LIMIT_MILLISECONDS = 300_000;
const PAGE_INTERVAL_MILLISECONDS = 50;
/** Time limit of one request for the page. Later requests do not wait for earlier ones. */
const PAGE_LIMIT_MILLISECONDS = 2_000;
const AGENT_INTERVAL_MILLISECONDS = 10;
/** A complete page of a guest that has its address. */
const WHOLE_PAGE = /^address=.+\n[^]*^disk_sectors=\d*\n$/m;

export const WAYS = ['warm', 'resume', 'cold'] as const;
export type Way = (typeof WAYS)[number];

/** Milliseconds from the call of the driver, one for each guest. */
export interface Times {
  /** To the first answer of the guest agent. */
  answered: number[];
  /** To the end of the call. A guest from memory then has its own identity. */
  called: number[];
  /** To the first whole page over a port. */
  page: number[];
}

export interface WarmGroup extends Record<Way, Times> {
  mebibytes: number;
  atOnce: number;
}

export interface WarmSize {
  mebibytes: number;
  /** Sizes of the files on the disk, without holes. */
  ramBytes: number;
  stateBytes: number;
  /** Proportional memory in MB of all guests of one round with their pages served, by the number of guests. */
  memory: { way: Way; atOnce: number; megabytes: number }[];
}

export interface Warm {
  accelerator: string;
  /** Mean number of processes that wanted to run, before and after the measurement. */
  load: [number, number];
  groups: WarmGroup[];
  sizes: WarmSize[];
  /** Starts through the whole agent. */
  pods: PodTimes;
}

type Image = BaseImage & { memory: MemoryFiles };

interface Machine {
  folder: MachineFolder;
  plan: VmLaunchPlan;
  port: number;
}

/** Starts at least `starts` guests in each way, and the ways in turns, so that other load of the machine affects all of them. */
export async function measureWarm(parent: string, starts: number): Promise<Warm> {
  return await withFolder(parent, async (folder) => {
    const bench = new WarmBench(folder);
    try {
      return { ...(await bench.measure(starts)), pods: await measureWarmPods(starts) };
    } finally {
      await bench.end();
    }
  });
}

class WarmBench {
  readonly #directory: string;
  readonly #driver: QemuDriver;
  /** Time at which a guest agent first answered, by folder of the machine. */
  readonly #answers = new Map<string, number>();
  #count = 0;

  constructor(directory: string) {
    this.#directory = directory;
    const logger = pino({ level: 'silent' });
    this.#driver = new QemuDriver({ dataDirectory: directory, architecture: 'amd64', logger });
    this.#noteAnswers();
  }

  async measure(starts: number): Promise<Omit<Warm, 'pods'>> {
    const [before = Number.NaN] = loadavg();
    // The first call asks once for the abilities of the host.
    const [platform] = await this.#driver.probe();
    const groups: WarmGroup[] = [];
    const sizes: WarmSize[] = [];
    for (const mebibytes of SIZES_MEBIBYTES) {
      const image = await this.#save(mebibytes);
      const [ramBytes, stateBytes] = [
        await allocatedBytes(image.memory.ram),
        await allocatedBytes(image.memory.state),
      ];
      const size: WarmSize = { mebibytes, ramBytes, stateBytes, memory: [] };
      for (const atOnce of AT_ONCE) {
        const group = { mebibytes, atOnce, warm: noTimes(), resume: noTimes(), cold: noTimes() };
        for (let round = 0; round < Math.ceil(starts / atOnce); round += 1) {
          await this.#round(image, group, size);
        }
        groups.push(group);
      }
      sizes.push(size);
    }
    const [after = Number.NaN] = loadavg();
    return { accelerator: platform?.accelerator ?? 'none', load: [before, after], groups, sizes };
  }

  async end(): Promise<void> {
    await this.#delete(await this.#driver.list());
    await this.#driver.close();
  }

  /** Notes each first answer where the driver itself receives it. Questions of the benchmark would delay the driver's own work. */
  #noteAnswers(): void {
    const open = GuestConnection.open.bind(GuestConnection);
    GuestConnection.open = async (folder, options) => {
      const connection = await open(folder, options);
      if (connection !== undefined && !this.#answers.has(folder)) {
        this.#answers.set(folder, performance.now());
      }
      return connection;
    };
  }

  /** Makes an image with the memory of a guest that runs. */
  async #save(mebibytes: number): Promise<Image> {
    const base = await guestBase('amd64');
    const machine = await this.#make(mebibytes, base);
    await this.#driver.start(machine.folder, machine.plan);
    await tell(machine.port, 'agent=0');
    const script = `dd if=/dev/urandom of=/filled bs=1M count=${mebibytes / FILLED_PART}`;
    await this.#driver.execute(machine.folder, {
      path: '/bin/sh',
      arguments: ['-c', script],
      reserve: () => true,
      signal: AbortSignal.timeout(LIMIT_MILLISECONDS),
    });
    const at = (end: string): string => join(this.#directory, `${mebibytes}.${end}`);
    const { memory, virtualSizeBytes } = await this.#driver.copyDisk(machine.folder, {
      target: at('raw'),
      memory: { ram: at('ram'), state: at('state') },
      signal: new AbortController().signal,
      onProgress: () => undefined,
    });
    if (memory === undefined) {
      throw new Error('the memory of the guest was not saved');
    }
    await this.#delete([machine.folder]);
    return { path: at('raw'), digest: 'sha256:unused', format: 'raw', virtualSizeBytes, memory };
  }

  async #make(mebibytes: number, base: BaseImage): Promise<Machine> {
    this.#count += 1;
    const uid = `bench-warm-${process.pid}-${this.#count}`;
    const port = await freePort();
    const plan = { ...planFor('amd64', port), memoryBytes: mebibytes * MEBIBYTE };
    const machine = { folder: { uid, path: join(this.#directory, 'machines', uid) }, plan, port };
    await this.#driver.create(machine.folder, plan, base);
    return machine;
  }

  /** Starts the guests of a group in each way once. Those from memory are then suspended and resumed. */
  async #round(image: Image, group: WarmGroup, size: WarmSize): Promise<void> {
    const { mebibytes, atOnce } = group;
    const driver = this.#driver;
    const make = async (): Promise<Machine[]> =>
      await Promise.all(Array.from({ length: atOnce }, async () => await this.#make(mebibytes, image)));
    const note = async (way: Way, machines: readonly Machine[]): Promise<void> => {
      size.memory.push({ way, atOnce, megabytes: await this.#memory(machines) });
    };
    const first = await make();
    await this.#timed(first, group.warm, async ({ folder, plan }) => {
      await driver.startFromMemory(folder, plan, image.memory);
    });
    await note('warm', first);
    for (const { folder } of first) {
      await driver.suspend(folder);
    }
    await this.#timed(first, group.resume, async ({ folder, plan }) => await driver.resume(folder, plan));
    await note('resume', first);
    await this.#delete(first.map(({ folder }) => folder));
    const second = await make();
    const boot = async ({ folder, plan }: Machine): Promise<void> => await driver.start(folder, plan);
    await this.#timed(second, group.cold, boot, true);
    await note('cold', second);
    await this.#delete(second.map(({ folder }) => folder));
  }

  /** Brings up all machines at once by `call`, and adds their times. `boots` says that the guests boot, without their guest agents. */
  async #timed(
    machines: readonly Machine[],
    times: Times,
    call: (machine: Machine) => Promise<void>,
    boots = false,
  ): Promise<void> {
    await Promise.all(
      machines.map(async (machine) => {
        this.#answers.delete(machine.folder.path);
        const began = performance.now();
        await call(machine);
        times.called.push(performance.now() - began);
        await firstPage(machine.port);
        times.page.push(performance.now() - began);
        if (boots) {
          await tell(machine.port, 'agent=0');
        }
        times.answered.push((await this.#firstAnswer(machine.folder)) - began);
      }),
    );
  }

  async #firstAnswer(folder: MachineFolder): Promise<number> {
    return await waitFor(
      'the guest agent to answer',
      async () => {
        if (!this.#answers.has(folder.path)) {
          const signal = AbortSignal.timeout(LIMIT_MILLISECONDS);
          await this.#driver.askGuest(folder, { facts: false, signal });
        }
        return this.#answers.get(folder.path);
      },
      { deadlineMilliseconds: LIMIT_MILLISECONDS, intervalMilliseconds: AGENT_INTERVAL_MILLISECONDS },
    );
  }

  /** Returns the proportional memory of the hypervisors in MB. Pages that they share count once in the sum. */
  async #memory(machines: readonly Machine[]): Promise<number> {
    const states = await Promise.all(machines.map(async ({ folder }) => await this.#driver.inspect(folder)));
    return states.reduce(
      (sum, state) => sum + (state.kind === 'running' ? proportionalMegabytes(state.pid) : Number.NaN),
      0,
    );
  }

  async #delete(folders: readonly MachineFolder[]): Promise<void> {
    for (const folder of folders) {
      await this.#driver.delete(folder);
    }
  }
}

function noTimes(): Times {
  return { answered: [], called: [], page: [] };
}

/** Waits for the page of a guest. */
async function firstPage(port: number): Promise<void> {
  let isThere = false;
  await waitFor(
    'the page of a guest',
    () => {
      void hasPage(port).then((has) => (isThere ||= has));
      return isThere;
    },
    { deadlineMilliseconds: LIMIT_MILLISECONDS, intervalMilliseconds: PAGE_INTERVAL_MILLISECONDS },
  );
}

async function hasPage(port: number): Promise<boolean> {
  try {
    const signal = AbortSignal.timeout(PAGE_LIMIT_MILLISECONDS);
    const response = await fetch(`http://127.0.0.1:${port}/`, { signal });
    return WHOLE_PAGE.test(await response.text());
  } catch {
    // The guest is not there yet.
    return false;
  }
}
