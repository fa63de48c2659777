/** Implements the driver for QEMU. All lasting data about a machine is in its folder. The driver object has only connections and timers. */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import type { Logger } from 'pino';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { isMissing, messageOf, messageWithoutPaths, undefinedIf } from '../../../base/errors.ts';
import { logsWritten } from '../../console/logwriter.ts';
import { type ConsoleLog, ConsoleStore } from '../../console/store.ts';
import type { BaseImage, MemoryFiles } from '../../disks/disk.ts';
import { allocatedBytes } from '../../disks/diskio.ts';
import { MachineCgroups } from '../../processes/cgroup.ts';
import type { OwnRoot } from '../../processes/ownroot.ts';
import { killForCertain } from '../../processes/process.ts';
import { processUser } from '../../processes/users.ts';
import {
  type Accelerator,
  type CopyOptions,
  type DiskCopy,
  type DiskSnapshot,
  type DriverOfVMs,
  type FoundMachine,
  type GuestAnswer,
  type GuestCommand,
  type GuestCommandResult,
  type GuestQuestion,
  type InspectOptions,
  type MachineFolder,
  type MachineState,
  type PortForward,
  type Reserve,
  type StopOptions,
  type VmLaunchPlan,
  type VmPlan,
  WarmStartRefused,
} from '../driver.ts';
import { requireLogWriter } from '../machineprocess.ts';
import { DiskCopies, markOf, SNAPSHOT_CHANGED } from './diskcopies.ts';
import { startedWith } from './displaycard.ts';
import { DisplayDpi } from './dpi.ts';
import { createFiles, enlargeDisk } from './files.ts';
import { MachineGuest } from './guest.ts';
import { type Hypervisor, pauseGuest, unpauseGuest } from './hypervisor.ts';
import { requireMemoryFiles } from './imagememory.ts';
import type { MachineContext } from './launch.ts';
import { MachineLayers, requireSnapshot, snapshotMemory } from './layers.ts';
import { QemuMachine } from './machine.ts';
import { requireSafe, requireSame } from './memorykey.ts';
import { type GuestPlatform, HostPlatforms } from './platform.ts';
import { type GuestIdentity, identityOf, type Renewed, renewGuest, sameIdentity } from './renewal.ts';
import { diskFile, findMachines, layersFrom, readMachineFile, requireMachineFile } from './state.ts';
import { MachineStreams } from './streams.ts';

/** Largest error of the clock after a start from memory. A larger error is corrected when the machine already runs. */
const LATE_CLOCK_MILLISECONDS = 1_000;

export interface QemuDriverOptions extends Partial<Pick<MachineContext, 'readers' | 'minimumFree'>> {
  /** Data directory, with the machines in `<dataDirectory>/machines`. */
  dataDirectory: string;
  logger: Logger;
  /** Architecture of machines that name no architecture. The default is the host's own architecture. */
  architecture?: 'amd64' | 'arm64' | undefined;
  /** Root directory for the processes of machines. These processes must outlive the agent's container. */
  ownRoot?: OwnRoot | undefined;
}

/** Connections and timers of the agent for one machine. They end with the agent's process. */
interface Held {
  machine: QemuMachine;
  copies: DiskCopies;
  layers: MachineLayers;
  console: ConsoleStore;
  streams: MachineStreams;
  guest: MachineGuest;
  dpi: DisplayDpi;
}

interface StartFromMemory {
  plan: VmLaunchPlan;
  memory: MemoryFiles;
  platform: GuestPlatform;
  identity: GuestIdentity;
}

export class QemuDriver implements DriverOfVMs {
  readonly name = 'qemu';
  readonly #root: string;
  readonly #context: MachineContext;
  readonly #held = new Map<string, Held>();
  readonly #handlers: ((uid: string) => void)[] = [];
  readonly #platforms: HostPlatforms;

  constructor(options: QemuDriverOptions) {
    this.#root = join(options.dataDirectory, 'machines');
    this.#platforms = new HostPlatforms(options);
    this.#context = {
      logger: options.logger,
      cgroups: new MachineCgroups(options.logger),
      ownRoot: options.ownRoot,
      isRoot: process.getuid?.() === 0,
      readers: options.readers,
      minimumFree: options.minimumFree ?? 0,
      changed: (uid) => this.#handlers.forEach((handler) => handler(uid)),
      follow: (folder, how) => {
        this.#of(folder).console.start();
        this.#of(folder).dpi.follow(how);
      },
    };
  }

  async probe(): Promise<Accelerator[]> {
    await requireLogWriter();
    const platforms = await this.#platforms.all();
    return platforms.map(({ architecture, accelerator }) => ({ architecture, accelerator }));
  }

  async create(folder: MachineFolder, plan: VmPlan, base: BaseImage | undefined): Promise<void> {
    await this.#of(folder).copies.exclusively(async () => await this.#make(folder, plan, base));
  }

  async #make(folder: MachineFolder, plan: VmPlan, base: BaseImage | undefined): Promise<void> {
    const platform = await this.#platforms.of(plan.guest.vm.architecture);
    const material = { plan: this.#owned(plan), base, platform };
    await this.#of(folder).machine.state.replace(await createFiles(this.#root, folder, material));
  }

  async start(folder: MachineFolder, plan: VmLaunchPlan, signal?: AbortSignal): Promise<void> {
    if ((await this.inspect(folder)).kind === 'running') {
      return;
    }
    const copies = this.#of(folder).copies;
    await copies.exclusively(async () => {
      await copies.tidy();
      await this.#start(folder, this.#owned(plan));
    }, signal);
  }

  async #start(folder: MachineFolder, plan: VmLaunchPlan): Promise<void> {
    const machine = this.#of(folder).machine;
    const state = await requireMachineFile(folder.path);
    const platform = await this.#platforms.of(state.architecture);
    await machine.dropHalfRenewed(this.#platforms);
    const wanted = plan.guest.diskSizeBytes ?? 0;
    if (wanted > (state.diskBytes ?? 0)) {
      await enlargeDisk(folder.path, state, { sizeBytes: wanted, isRoot: this.#context.isRoot });
      await machine.state.update({ diskBytes: wanted });
    }
    await machine.start(plan, platform);
  }

  async startFromMemory(
    folder: MachineFolder,
    plan: VmLaunchPlan,
    ofImage: MemoryFiles | undefined,
    signal?: AbortSignal,
  ): Promise<void> {
    const { copies, machine } = this.#of(folder);
    await copies.exclusively(async () => {
      await copies.tidy();
      const state = await requireMachineFile(folder.path);
      const platform = await this.#platforms.of(state.architecture);
      const ofSnapshot = snapshotMemory(folder, state);
      const memory = requirePresent(state.memoryOf === undefined ? ofImage : ofSnapshot);
      const [identity, source] =
        ofSnapshot === undefined
          ? ([identityOf(plan), 'image'] as const)
          : ([sameIdentity(plan), 'snapshot'] as const);
      await requireSame({ uid: folder.uid, plan: this.#owned(plan), state, platform, source }, memory);
      requireSafe(platform, memory, this.#context.ownRoot !== undefined);
      await requireMemoryFiles(memory, source);
      await machine.dropHalfRenewed(this.#platforms);
      await requireFresh(folder);
      await this.#startFromMemory(folder, { plan: this.#owned(plan), memory, platform, identity }, signal);
    }, signal);
  }

  async #startFromMemory(
    folder: MachineFolder,
    { plan, memory, platform, identity }: StartFromMemory,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const { machine, guest } = this.#of(folder);
    const began = performance.now();
    const milliseconds: Record<string, number> = {};
    const note = (step: string) => void (milliseconds[step] = Math.round(performance.now() - began));
    const { accelerator } = platform;
    const renew = async ({ guestAgent }: Hypervisor): Promise<Renewed> =>
      await renewGuest(guestAgent, identity, {
        accelerator,
        signal,
        onAnswer: () => note('answered'),
      });
    let renewed: Renewed;
    try {
      const launched = startedWith(plan, platform);
      const { diskSizeBytes = 0 } = plan.guest;
      const options = { launched, diskSizeBytes, memory, renew, note, signal };
      renewed = await machine.startFromMemory(plan, platform, options);
      note('renewed');
    } catch (error) {
      await machine.remake(platform);
      signal?.throwIfAborted();
      throw new WarmStartRefused('RenewalFailed', messageWithoutPaths(error));
    }
    const { uid } = folder;
    this.#context.logger.info(
      { uid, accelerator, milliseconds },
      'A guest continues from the memory of its image or snapshot',
    );
    void this.#completeRenewal(guest, renewed);
  }

  /** Does what no VM has to wait for. */
  async #completeRenewal(guest: MachineGuest, { wasThawed, lateMilliseconds }: Renewed): Promise<void> {
    if (!wasThawed) {
      await guest.thaw();
    }
    if (lateMilliseconds > LATE_CLOCK_MILLISECONDS) {
      await guest.setTime();
    }
  }

  async stop(folder: MachineFolder, options: StopOptions): Promise<void> {
    const { machine } = this.#of(folder);
    if (options.ignoresReadErrors === true) {
      machine.state.ignoreReadErrors();
    }
    const work = async () => await machine.stop(options);
    // If the machine has no process, a stop does not interrupt a copy, because the copy reads only the disk's file.
    await ((await machine.process()) === undefined ? work() : this.#ending(folder, 'stopped', work));
  }

  async pause(folder: MachineFolder): Promise<void> {
    await this.#ending(folder, 'paused', async () => await pauseGuest(this.#of(folder).machine));
  }

  async unpause(folder: MachineFolder, signal?: AbortSignal): Promise<void> {
    const { copies, machine, guest } = this.#of(folder);
    await copies.exclusively(async () => await unpauseGuest(machine), signal);
    void guest.setTime();
  }

  async suspend(folder: MachineFolder): Promise<void> {
    const { copies, machine, guest } = this.#of(folder);
    const suspending = this.#ending(folder, 'suspended', async () => {
      await copies.tidy();
      await machine.suspend();
    });
    // After a failure, the guest continues with a late clock. After a success, no guest is left and this call does nothing.
    await suspending.finally(() => void guest.setTime());
  }

  /** Interrupts copies of the disk, then runs `work`. A copy reads from the machine's process, which `work` ends or pauses. */
  async #ending(folder: MachineFolder, what: string, work: () => Promise<void>): Promise<void> {
    const copies = this.#of(folder).copies;
    await copies.interrupt(`The machine was ${what} while its disk was copied`);
    await copies.exclusively(work);
  }

  async resume(folder: MachineFolder, plan: VmLaunchPlan, signal?: AbortSignal): Promise<void> {
    const copies = this.#of(folder).copies;
    await copies.exclusively(async () => {
      await copies.tidy();
      const state = await requireMachineFile(folder.path);
      await this.#of(folder).machine.resume(this.#owned(plan), await this.#platforms.of(state.architecture));
    }, signal);
    void this.#of(folder).guest.setTime();
  }

  async revert(
    folder: MachineFolder,
    plan: VmPlan,
    base: BaseImage | undefined,
    snapshot?: string,
    signal?: AbortSignal,
  ): Promise<void> {
    const { copies, machine, layers } = this.#of(folder);
    await copies.exclusively(async () => {
      const file = await machine.state.read();
      if (snapshot !== undefined) {
        requireSnapshot(file ?? {}, snapshot);
      }
      // Nothing of the disk is needed any more, so a hypervisor that hangs is killed soon.
      await machine.stop({ graceMilliseconds: 0, discard: AbortSignal.abort() });
      await copies.tidy();
      if (file?.layers === undefined) {
        return await this.#make(folder, plan, base);
      }
      const platform = await this.#platforms.of(file.architecture);
      await layers.revert(this.#owned(plan), { base, platform, uid: snapshot });
    }, signal);
  }

  async takeSnapshot(
    folder: MachineFolder,
    uid: string,
    signal: AbortSignal,
    { memory }: { memory: boolean } = { memory: false },
  ): Promise<DiskSnapshot> {
    const { copies, layers, machine } = this.#of(folder);
    await layers.makeRoom(async () => await this.mergeLayers(folder, signal), signal);
    try {
      return await copies.runSnapshot(signal, async (freezing, either) => {
        await machine.dropHalfRenewed(this.#platforms);
        const file = memory ? await requireMachineFile(folder.path) : undefined;
        const platform = file && (await this.#platforms.of(file.architecture));
        return await layers.take(uid, { freezing, platform, signal: either });
      });
    } catch (error) {
      if (signal.aborted || error instanceof ReasonedError) {
        throw error;
      }
      throw new ReasonedError('SnapshotNotTaken', messageOf(error), { cause: error });
    }
  }

  async requireMemory(folder: MachineFolder, signal: AbortSignal): Promise<void> {
    await this.#of(folder).copies.requireMemory(signal);
  }

  async findSnapshot(folder: MachineFolder, uid: string): Promise<DiskSnapshot | undefined> {
    return await this.#of(folder).layers.find(uid);
  }

  async snapshotBytes(folder: MachineFolder): Promise<number> {
    return await this.#of(folder).layers.bytes();
  }

  async keepSnapshots(folder: MachineFolder, uids: ReadonlySet<string>, signal?: AbortSignal): Promise<void> {
    const { copies, layers } = this.#of(folder);
    await copies.exclusively(
      async () => {
        await copies.tidy();
        await layers.keepOnly(uids);
      },
      signal,
      SNAPSHOT_CHANGED,
    );
  }

  async mergeLayers(folder: MachineFolder, signal: AbortSignal): Promise<boolean> {
    const { copies, layers } = this.#of(folder);
    if (await layers.canMerge()) {
      await copies.runMerge(signal, async (either) => await layers.merge(markOf(folder.uid), either));
    }
    return await layers.isMerged();
  }

  async copyBytes({ path }: MachineFolder, snapshot?: string): Promise<number> {
    const file = await readMachineFile(path);
    if (file?.diskBytes === undefined) {
      return 0;
    }
    const { id } = snapshot === undefined ? { id: file.parent } : requireSnapshot(file, snapshot);
    const layers = layersFrom(file, id).map((layer) => layer.file);
    const own = snapshot === undefined ? [diskFile(file), ...layers] : layers;
    const files = [...own.map((name) => join(path, name)), ...(file.base ? [file.base.path] : [])];
    const sizes = await Promise.all(files.map(async (one) => await allocatedBytes(one)));
    return sizes.reduce((sum, bytes) => sum + bytes, 0);
  }

  async copyDisk(folder: MachineFolder, options: CopyOptions): Promise<DiskCopy> {
    return await this.#of(folder).copies.run(options);
  }

  async delete(folder: MachineFolder): Promise<void> {
    await this.#ending(folder, 'deleted', async () => {
      const { machine, copies, console, dpi, streams } = this.#of(folder);
      dpi.close();
      machine.state.ignoreReadErrors();
      const identity = await machine.process();
      streams.close();
      machine.close();
      await (identity && killForCertain(identity));
      await logsWritten(folder.path);
      await copies.tidy();
      console.close();
      this.#held.delete(folder.uid);
      // The machine's folder is removed last, because the agent repeats a failed removal only while this folder exists.
      await this.#context.cgroups.remove(folder.uid);
      await machine.state.removeFolder();
    });
  }

  async inspect(folder: MachineFolder, options?: InspectOptions): Promise<MachineState> {
    if ((await undefinedIf(isMissing, stat(folder.path))) === undefined) {
      return { kind: 'absent' };
    }
    const { machine, copies, dpi, streams } = this.#of(folder);
    const state = await machine.inspect(options);
    const tidied = Promise.all(machine.isSilent ? [] : [copies.tryTidy(), streams.forwards.tidy()]);
    // After the hypervisor's end, a cleanup can take minutes, so no inspection waits for it. Steps that need the cleanup wait themselves.
    await (state.kind === 'running' ? tidied : undefined);
    return dpi.addTo(state);
  }

  async hasProcess(folder: MachineFolder): Promise<boolean> {
    return (await this.#of(folder).machine.process()) !== undefined;
  }

  async list(): Promise<FoundMachine[]> {
    return await findMachines(this.#root, this.#context.logger);
  }

  onChange(handler: (uid: string) => void): void {
    this.#handlers.push(handler);
  }

  console(folder: MachineFolder): ConsoleLog {
    return this.#of(folder).console;
  }

  async askGuest(folder: MachineFolder, question: GuestQuestion): Promise<GuestAnswer> {
    return await this.#of(folder).guest.ask(question);
  }

  async execute(folder: MachineFolder, command: GuestCommand): Promise<GuestCommandResult> {
    return await this.#of(folder).guest.execute(command);
  }

  async connectConsole(folder: MachineFolder, options: { input: boolean }): Promise<Duplex> {
    return await this.#of(folder).streams.connectConsole(options);
  }

  async connectScreen(folder: MachineFolder): Promise<Duplex> {
    return await this.#of(folder).streams.connectScreen();
  }

  async screenshot(folder: MachineFolder, reserve: Reserve): Promise<Buffer> {
    return await this.#of(folder).streams.screenshot(reserve);
  }

  async forwardPort(folder: MachineFolder, guestPort: number): Promise<PortForward> {
    return await this.#of(folder).streams.forwards.open(guestPort);
  }

  async close(): Promise<void> {
    const held = [...this.#held.values()];
    await Promise.all(held.map(({ copies }) => copies.interrupt('The agent ended during the copy')));
    for (const { machine, console, dpi, streams } of held) {
      streams.close();
      machine.close();
      dpi.close();
      console.close();
    }
    this.#held.clear();
  }

  #of(folder: MachineFolder): Held {
    const known = this.#held.get(folder.uid);
    if (known !== undefined) {
      return known;
    }
    const { logger } = this.#context;
    const machine = new QemuMachine(folder, this.#context);
    const made = {
      machine,
      copies: new DiskCopies(folder, machine, { context: this.#context, platforms: this.#platforms }),
      layers: new MachineLayers(folder, machine, this.#context),
      console: new ConsoleStore(folder.path, { of: 'machine', logger }),
      streams: new MachineStreams(folder, machine, logger),
      guest: new MachineGuest(machine, logger),
      dpi: new DisplayDpi(folder, machine, this.#context),
    };
    this.#held.set(folder.uid, made);
    return made;
  }

  /** Returns the plan with the Linux user of the machine's process. If the plan has no `runAs`, `processUser` determines the user. */
  #owned<Plan extends VmPlan>(plan: Plan): Plan {
    return { ...plan, runAs: processUser(this.#context.isRoot, plan.runAs) };
  }
}

function requirePresent(memory: MemoryFiles | undefined): MemoryFiles {
  if (memory === undefined) {
    throw new WarmStartRefused('NotSupported', 'The host no longer has the memory of the snapshot');
  }
  return memory;
}

/**
 * Checks that no guest has written to the disk. The agent can have died between a start and its own record of it, so only the machine's state
 * file is sure. @throws WarmStartRefused when the machine has run.
 */
async function requireFresh({ path }: MachineFolder): Promise<void> {
  if ((await requireMachineFile(path)).fresh !== true) {
    throw new WarmStartRefused(
      'NotSupported',
      'The VM has run before, so its disk no longer fits the memory',
    );
  }
}
