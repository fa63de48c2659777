/**
 * A machine with layers under its disk, whose agents die at any step of their work. Only the hypervisors, their processes and qemu-img are
 * simulated. A test file puts the modules of `qemumodules.ts` in place before it uses the machine.
 */
import { existsSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pino } from 'pino';
import { expect } from 'vitest';
import type { BaseImage } from '../../agent/disks/disk.ts';
import { type VmLaunchPlan, WarmStartRefused } from '../../agent/drivers/driver.ts';
import { QemuDriver, type QemuDriverOptions } from '../../agent/drivers/qemu/driver.ts';
import { type Layer, layersFrom, readMachineFile } from '../../agent/drivers/qemu/state.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { machineDocument } from '../fixtures/machines.ts';
import { Life, liveAs } from './lives.ts';
import { contentOf, memoryOf } from './simulateddisk.ts';
import { SimulatedHost } from './simulatedqemu.ts';

const MEMORY_BYTES = 2 ** 20;
/** Folder in memory, because the agent writes its files to the disk at once. */
const PARENT = '/dev/shm';
/** Uid of the machine. */
export const UID = 'vm';
const logger = pino({ level: 'silent' });
const { signal } = new AbortController();

export class LayeredMachine {
  /** Content that each snapshot showed when it was seen first. */
  readonly seen = new Map<string, number>();
  readonly #host: { world: SimulatedHost };
  directory = '';
  image: BaseImage = { path: '', digest: 'sha256:0', format: 'raw', virtualSizeBytes: 4096 };

  constructor(host: { world: SimulatedHost }) {
    this.#host = host;
  }

  /** Makes an empty host. Call this function before each test. */
  readonly begin = (): void => {
    this.directory = mkdtempSync(join(PARENT, 'berth-layers-'));
    this.#host.world = new SimulatedHost(MEMORY_BYTES);
    const path = join(this.directory, 'base');
    writeFileSync(path, JSON.stringify({ own: { count: 0, prepared: 0 } }));
    this.image = { ...this.image, path };
    this.seen.clear();
  };

  /** Removes all that is left. Call this function after each test. */
  readonly end = (): void => {
    [...this.#host.world.processes.values()].forEach((one) => one.end());
    rmSync(this.directory, { recursive: true });
  };

  get folder(): { uid: string; path: string } {
    return { uid: UID, path: join(this.directory, 'machines', UID) };
  }

  launchPlan(): VmLaunchPlan {
    const vm = machineDocument({ namespace: 'team', name: UID, uid: UID }, {});
    const network = {
      kind: 'tap',
      macAddress: '52:54:00:00:00:01',
      address: undefined,
      device: 'tap0',
    } as const;
    return {
      guest: { vm, diskSizeBytes: undefined, iso: undefined },
      cpu: 1,
      memoryBytes: MEMORY_BYTES,
      network,
    };
  }

  makeDriver(options: Partial<QemuDriverOptions> = {}): QemuDriver {
    return new QemuDriver({ dataDirectory: this.directory, logger, ...options });
  }

  /** Runs `work` as an agent of its own that dies at the step `last`. Returns whether it has died. */
  async asAgent(
    work: (driver: QemuDriver) => Promise<unknown>,
    last?: number,
    options: Partial<QemuDriverOptions> = {},
  ): Promise<boolean> {
    const life = new Life(last);
    this.#host.world.life = life;
    return await liveAs(life, this.makeDriver(options), async (driver) => {
      await work(driver);
    });
  }

  /** Runs `work` once for each of its steps, as an agent that dies there, and then `check`. Returns the number of steps. */
  async dieAtEach(
    work: (driver: QemuDriver) => Promise<unknown>,
    check: (last: number) => Promise<void>,
  ): Promise<number> {
    for (let last = 1; ; last += 1) {
      const hasDied = await this.asAgent(work, last);
      await check(last);
      if (!hasDied) {
        return last;
      }
    }
  }

  /** Does what the agent does for a VM that is to run. */
  readonly bringUp = async (driver: QemuDriver): Promise<void> => {
    const state = await driver.inspect(this.folder);
    if (state.kind === 'running') {
      return;
    }
    if (state.kind === 'suspended') {
      await driver.resume(this.folder, this.launchPlan());
      return;
    }
    if (state.kind === 'absent' || !existsSync(join(this.folder.path, 'state.json'))) {
      await driver.create(this.folder, this.launchPlan(), this.image);
    }
    try {
      await driver.startFromMemory(this.folder, this.launchPlan(), undefined);
      return;
    } catch (error) {
      if (!(error instanceof WarmStartRefused)) {
        throw error;
      }
    }
    await driver.start(this.folder, this.launchPlan());
  };

  /** Takes a snapshot; does nothing if the machine cannot have it now. Returns whether it was taken. */
  async take(driver: QemuDriver, uid: string, memory: boolean): Promise<boolean> {
    try {
      await driver.takeSnapshot(this.folder, uid, signal, { memory });
      return true;
    } catch (error) {
      if (!(error instanceof ReasonedError && ['MemoryNotSaved', 'NoMachine'].includes(error.reason))) {
        throw error;
      }
      return false;
    }
  }

  /** Takes a snapshot with memory that fails after the guest was paused for it, and does what the agent does then. */
  async fail(driver: QemuDriver, uid: string): Promise<void> {
    this.#host.world.breaksMemory = true;
    try {
      expect(await this.take(driver, uid, true)).toBe(false);
      await driver.mergeLayers(this.folder, signal);
    } finally {
      this.#host.world.breaksMemory = false;
    }
  }

  async revert(driver: QemuDriver, uid?: string): Promise<void> {
    await driver.revert(this.folder, this.launchPlan(), this.image, uid);
  }

  async layers(): Promise<Layer[]> {
    return (await readMachineFile(this.folder.path))?.layers ?? [];
  }

  async snapshots(): Promise<Map<string, Layer>> {
    const layers = await this.layers();
    return new Map(layers.flatMap((layer) => (layer.snapshot ? [[layer.snapshot.uid, layer]] : [])));
  }

  async diskContent(): Promise<number> {
    const { disk = 'disk.qcow2' } = (await readMachineFile(this.folder.path)) ?? {};
    return contentOf(join(this.folder.path, disk)).count;
  }

  /** Returns the files of disks and of memories of snapshots, and those that the state file names. The next start removes a suspended memory. */
  async files(): Promise<{ found: string[]; named: string[] }> {
    const { disk = 'disk.qcow2', layers = [] } = (await readMachineFile(this.folder.path)) ?? {};
    const ofLayers = layers.flatMap(({ file, snapshot }) => [
      file,
      snapshot?.memory?.ram,
      snapshot?.memory?.state,
    ]);
    const found = readdirSync(this.folder.path).filter((name) =>
      /^(?:disk|memory-|image-memory|copy|migration)(?!.*tmp$)/.test(name),
    );
    return {
      found: found.toSorted(),
      named: [disk, ...ofLayers.filter((one) => one !== undefined)].toSorted(),
    };
  }

  /** Checks that all snapshots of the machine are whole, and show what they showed before. */
  async expectWhole(): Promise<void> {
    await this.asAgent(async (driver) => await driver.inspect(this.folder));
    const { world } = this.#host;
    expect(world.faults).toEqual([]);
    await this.#expectSealed();
    for (const [uid, { file, snapshot }] of await this.snapshots()) {
      const { count } = contentOf(join(this.folder.path, file));
      expect(count, `snapshot ${uid}`).toBe(this.seen.get(uid) ?? count);
      this.seen.set(uid, count);
      const { memory } = snapshot ?? {};
      if (memory !== undefined) {
        expect(memoryOf(join(this.folder.path, memory.ram)).count, `memory ${uid}`).toBe(count);
        expect(existsSync(join(this.folder.path, memory.state))).toBe(true);
      }
    }
    const marks = [...world.processes.values()].map(({ uid }) => uid);
    expect(marks.filter((uid) => uid !== UID)).toEqual([]);
  }

  /** Checks that nobody but root could write to a layer of a machine that runs. */
  async #expectSealed(): Promise<void> {
    if (process.getuid?.() !== 0 || this.#host.world.of(UID) === undefined) {
      return;
    }
    const layers = (await this.layers()).map(({ file }) => statSync(join(this.folder.path, file)));
    const open = layers.filter(({ uid, gid, mode }) => uid !== 0 || gid !== 0 || (mode & 0o222) !== 0);
    expect(open).toEqual([]);
  }

  /** Checks that no layer is left that could be one with the layer above it. A machine that runs merges only layers under its disk. */
  async expectMerged(): Promise<void> {
    const { parent } = (await readMachineFile(this.folder.path)) ?? {};
    const layers = await this.layers();
    const reached = this.#host.world.of(UID) === undefined ? layers : layersFrom({ layers }, parent);
    const needless = reached.filter(({ id, snapshot }) => {
      const above = layers.filter((one) => one.parent === id).length + (id === parent ? 1 : 0);
      return snapshot === undefined && id !== parent && above < 2;
    });
    expect(needless).toEqual([]);
  }
}
