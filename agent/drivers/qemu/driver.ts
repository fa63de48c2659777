/** Machines as QEMU processes. What is known of each lies in its folder; this class holds only connections. */
import { listFolders } from '../../../base/files.ts';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { isMissing } from '../../../base/errors.ts';
import type { BaseImage } from '../../disks/disk.ts';
import { CgroupTree } from '../../machines/cgroup.ts';
import { type ConsoleLog, ConsoleStore } from '../../machines/console.ts';
import { FILES, type MachineFile, makeMachineFolder, readMachineFile } from '../../machines/folder.ts';
import { logsWritten } from '../../machines/logwriter.ts';
import type { OwnRoot } from '../../machines/ownroot.ts';
import { killForCertain } from '../../machines/process.ts';
import { SHARED_RUN_AS } from '../../machines/users.ts';
import {
  type Accelerator,
  type CopyOptions,
  type DiskCopy,
  type Driver,
  type LaunchPlan,
  type MachineFolder,
  type MachineState,
  StartError,
} from '../driver.ts';
import { diskNode } from './arguments.ts';
import type { MachineContext } from './context.ts';
import { DiskCopies } from './diskcopies.ts';
import { copySparse, diskReader, giveDisk, growDisk, makeDisk } from './disk.ts';
import { requireLogWriter } from './launch.ts';
import { Machine } from './machine.ts';
import { pauseGuest, unpauseGuest } from './pause.ts';
import { Platforms } from './platforms.ts';
import type { StopOptions } from './power.ts';

export interface QemuDriverOptions {
  /** Machines lie in `<dataDirectory>/machines`. */
  dataDirectory: string;
  logger: Logger;
  /** Of machines that name none; the machine's own when absent. */
  architecture?: 'amd64' | 'arm64' | undefined;
  /** For machines that are to outlive the agent's container. */
  ownRoot?: OwnRoot | undefined;
  /** The group that may read images, where the agent is root. */
  readers?: number | undefined;
}

export class QemuDriver implements Driver {
  readonly name = 'qemu';
  readonly #root: string;
  readonly #logger: Logger;
  readonly #context: MachineContext;
  readonly #machines = new Map<string, Machine>();
  readonly #diskCopies = new Map<string, DiskCopies>();
  readonly #consoles = new Map<string, ConsoleStore>();
  readonly #handlers: ((uid: string) => void)[] = [];
  readonly #platforms: Platforms;

  constructor(options: QemuDriverOptions) {
    this.#root = join(options.dataDirectory, 'machines');
    this.#logger = options.logger;
    this.#platforms = new Platforms(options);
    this.#context = {
      logger: options.logger,
      cgroups: new CgroupTree(options.logger),
      ownRoot: options.ownRoot,
      isRoot: process.getuid?.() === 0,
      readers: options.readers,
      changed: (uid) => {
        for (const handler of this.#handlers) {
          handler(uid);
        }
      },
      tail: (folder) => this.#console(folder).start(),
    };
  }

  async probe(): Promise<Accelerator[]> {
    await requireLogWriter();
    const platforms = await this.#platforms.all();
    return platforms.map(({ architecture, accelerator }) => ({ architecture, accelerator }));
  }

  async create(folder: MachineFolder, plan: LaunchPlan, base: BaseImage | undefined): Promise<void> {
    await this.#copies(folder).exclusively(async () => await this.#make(folder, plan, base));
  }

  async #make(folder: MachineFolder, plan: LaunchPlan, base: BaseImage | undefined): Promise<void> {
    const platform = await this.#platforms.of(plan.machine.architecture);
    await makeMachineFolder(this.#root, folder.path);
    const diskBytes = await makeDisk(folder, plan, base);
    if (platform.firmware !== undefined) {
      await copySparse(platform.firmware.variables, join(folder.path, FILES.variables));
    }
    const { runAs } = this.#owned(plan);
    if (runAs !== undefined) {
      await giveDisk(folder.path, runAs);
    }
    const state: MachineFile = {
      version: 1,
      architecture: platform.architecture,
      machineType: platform.machineType,
      intent: 'stop',
      live: false,
      suspended: false,
      ...(base === undefined ? {} : { base: { path: base.path, format: base.format } }),
      ...(diskBytes === undefined ? {} : { diskBytes }),
    };
    await this.#machine(folder).state.replace(state);
  }

  async start(folder: MachineFolder, plan: LaunchPlan): Promise<void> {
    if ((await this.inspect(folder)).kind === 'running') {
      return;
    }
    const copies = this.#copies(folder);
    await copies.exclusively(async () => {
      await copies.tidy();
      await this.#start(folder, this.#owned(plan));
    });
  }

  async #start(folder: MachineFolder, plan: LaunchPlan): Promise<void> {
    const machine = this.#machine(folder);
    const state = await requireState(folder);
    const platform = await this.#platforms.of(state.architecture);
    const wanted = plan.diskSizeBytes;
    if (wanted !== undefined && state.diskBytes !== undefined && wanted > state.diskBytes) {
      const { isRoot } = this.#context;
      const as = await diskReader(folder.path, isRoot);
      await growDisk(folder.path, diskNode(state), { sizeBytes: wanted, as });
      await machine.state.update({ diskBytes: wanted });
    }
    await machine.start(plan, platform);
  }

  async stop(folder: MachineFolder, options: StopOptions): Promise<void> {
    const machine = this.#machine(folder);
    // The copy of a machine that does not run goes on.
    if ((await machine.process()) === undefined) {
      await machine.stop(options);
    } else {
      await this.#ending(folder, 'stopped', async () => await machine.stop(options));
    }
  }

  async pause(folder: MachineFolder): Promise<void> {
    await this.#ending(folder, 'paused', async () => await pauseGuest(this.#machine(folder)));
  }

  async unpause(folder: MachineFolder): Promise<void> {
    await this.#copies(folder).exclusively(async () => await unpauseGuest(this.#machine(folder)));
  }

  async suspend(folder: MachineFolder): Promise<void> {
    await this.#ending(folder, 'suspended', async () => {
      await this.#copies(folder).tidy();
      await this.#machine(folder).suspend();
    });
  }

  /** A copy reads from the process that is to end, or that is to stand still. */
  async #ending(folder: MachineFolder, what: string, work: () => Promise<void>): Promise<void> {
    const copies = this.#copies(folder);
    await copies.interrupt(`the machine was ${what} while its disk was copied`);
    await copies.exclusively(work);
  }

  async resume(folder: MachineFolder, plan: LaunchPlan): Promise<void> {
    const copies = this.#copies(folder);
    await copies.exclusively(async () => {
      await copies.tidy();
      const state = await requireState(folder);
      await this.#machine(folder).resume(this.#owned(plan), await this.#platforms.of(state.architecture));
    });
  }

  async revert(folder: MachineFolder, plan: LaunchPlan, base: BaseImage | undefined): Promise<void> {
    const copies = this.#copies(folder);
    await copies.exclusively(async () => {
      await this.#machine(folder).stop({ graceMilliseconds: 0 });
      await copies.tidy();
      await this.#make(folder, plan, base);
    });
  }

  async copyDisk(folder: MachineFolder, options: CopyOptions): Promise<DiskCopy> {
    return await this.#copies(folder).run(options);
  }

  async delete(folder: MachineFolder): Promise<void> {
    await this.#ending(folder, 'deleted', async () => await this.#remove(folder));
  }

  async #remove(folder: MachineFolder): Promise<void> {
    const machine = this.#machine(folder);
    const identity = await machine.process();
    machine.close();
    if (identity !== undefined) {
      await killForCertain(identity);
    }
    await logsWritten(folder.path);
    await this.#copies(folder).tidy();
    this.#diskCopies.delete(folder.uid);
    this.#machines.delete(folder.uid);
    this.#consoles.get(folder.uid)?.close();
    this.#consoles.delete(folder.uid);
    // The folder last: while it is there, a step that failed is done again.
    await this.#context.cgroups.remove(folder.uid);
    await machine.state.removeFolder();
  }

  async inspect(folder: MachineFolder): Promise<MachineState> {
    try {
      await stat(folder.path);
    } catch (error) {
      if (isMissing(error)) {
        return { kind: 'absent' };
      }
      throw error;
    }
    await this.#copies(folder).tryTidy();
    return await this.#machine(folder).inspect();
  }

  async list(): Promise<MachineFolder[]> {
    const names = await listFolders(this.#root);
    return names.map((uid) => ({ uid, path: join(this.#root, uid) }));
  }

  onChange(handler: (uid: string) => void): void {
    this.#handlers.push(handler);
  }

  console(folder: MachineFolder): ConsoleLog {
    return this.#console(folder);
  }

  async close(): Promise<void> {
    const copies = [...this.#diskCopies.values()];
    await Promise.all(copies.map(async (each) => await each.interrupt('the agent ended')));
    for (const machine of this.#machines.values()) {
      machine.close();
    }
    for (const store of this.#consoles.values()) {
      store.close();
    }
    this.#machines.clear();
    this.#diskCopies.clear();
    this.#consoles.clear();
  }

  #machine(folder: MachineFolder): Machine {
    let machine = this.#machines.get(folder.uid);
    if (machine === undefined) {
      machine = new Machine(folder, this.#context);
      this.#machines.set(folder.uid, machine);
    }
    return machine;
  }

  #copies(folder: MachineFolder): DiskCopies {
    let copies = this.#diskCopies.get(folder.uid);
    if (copies === undefined) {
      copies = new DiskCopies(folder, this.#machine(folder), this.#context);
      this.#diskCopies.set(folder.uid, copies);
    }
    return copies;
  }

  #console(folder: MachineFolder): ConsoleStore {
    let store = this.#consoles.get(folder.uid);
    if (store === undefined) {
      store = new ConsoleStore(folder.path, { logger: this.#logger });
      this.#consoles.set(folder.uid, store);
    }
    return store;
  }

  /** Root without a user for the machine never runs it as root. */
  #owned(plan: LaunchPlan): LaunchPlan {
    return { ...plan, runAs: this.#context.isRoot ? (plan.runAs ?? SHARED_RUN_AS) : undefined };
  }
}

async function requireState(folder: MachineFolder): Promise<MachineFile> {
  const state = await readMachineFile(folder.path);
  if (state === undefined) {
    throw new StartError('StartFailed', 'the machine was not created completely');
  }
  return state;
}
