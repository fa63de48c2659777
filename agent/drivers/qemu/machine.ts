/** Controls one QEMU machine: starts, stops, suspends and resumes its process. */
import { sync } from '../../../base/files.ts';
import type { MemoryFiles } from '../../disks/disk.ts';
import { killForCertain, type ProcessIdentity, waitForExit } from '../../processes/process.ts';
import type {
  ExitReason,
  InspectOptions,
  MachineFolder,
  MachineState,
  RunningState,
  StopOptions,
  VmLaunchPlan,
} from '../driver.ts';
import { MachineProcess } from '../machineprocess.ts';
import { UNREADABLE } from '../statefile.ts';
import { DISK_NODE, NETWORK, processMark } from './arguments.ts';
import { resumedWith, startedWith } from './displaycard.ts';
import { newGeneration, remakeFiles, wholeSectors } from './files.ts';
import { goOn, guestPoweredOff, Hypervisor, inspectLive, powerOffGuest, quit } from './hypervisor.ts';
import {
  hypervisorLog,
  launchMachine,
  type MachineContext,
  type MachineStart,
  START_REASONS,
} from './launch.ts';
import { forgetMemory, restoreMemory, saveMemory } from './memory.ts';
import type { GuestPlatform, HostPlatforms } from './platform.ts';
import type { QmpConnection, QmpEvent } from './qmp.ts';
import { BEGUN, type MachineFile, QemuState } from './state.ts';

/** Time limit of a start. QEMU answers about 30 ms after its start, or after seconds on an overloaded host. */
const START_TIMEOUT_MILLISECONDS = 60_000;
/** Time that the agent waits for QEMU's end after a lost connection. A process closes its sockets shortly before its end. */
const EXIT_NOTICE_MILLISECONDS = 500;

interface WarmStartOptions<T> {
  /** Content of the field `launched` of the state file. */
  launched: NonNullable<MachineFile['launched']>;
  /** Wanted size of the disk in bytes, if it is larger than the saved disk. */
  diskSizeBytes?: number;
  memory: Pick<MemoryFiles, 'ram' | 'state'>;
  /** Gives the guest an identity of its own. */
  renew: (hypervisor: Hypervisor) => Promise<T>;
  /** Called with the name of each step that has ended. */
  note?: (step: string) => void;
  signal: AbortSignal | undefined;
  /** Whether the guest gets no network after its renewal either. */
  staysOffline?: boolean;
}

/** Paths of the stream that is read and of the files that are written, and the work between. */
interface PreparationOptions extends Pick<MemoryFiles, 'ram' | 'state'> {
  stream: string;
  /** Called while the guest runs. If absent, the guest does not run at all. */
  prepare?: (hypervisor: Hypervisor) => Promise<void>;
  signal: AbortSignal;
}

export class QemuMachine extends MachineProcess<MachineFile, Hypervisor> {
  protected override readonly program = 'hypervisor';
  protected override readonly startReasons = START_REASONS;
  protected override readonly mark: readonly string[];
  readonly #context: MachineContext;
  #isSilent = false;
  #isSaving = false;

  constructor(folder: MachineFolder, context: MachineContext) {
    super(folder, new QemuState(folder.path), context);
    this.mark = [processMark(folder.uid)];
    this.#context = context;
  }

  override async inspect(options?: InspectOptions): Promise<MachineState> {
    this.#isSilent = false;
    return await super.inspect(options);
  }

  /** Whether the hypervisor did not answer the last inspection. If so, no cleanup is started, because a cleanup needs answers too. */
  get isSilent(): boolean {
    return this.#isSilent;
  }

  /** Returns the live hypervisor, or undefined if the machine has no live process. */
  async hypervisor(): Promise<Hypervisor | undefined> {
    const identity = await this.process();
    return identity === undefined ? undefined : this.adopt(identity);
  }

  async start(plan: VmLaunchPlan, platform: GuestPlatform): Promise<void> {
    await forgetMemory(this.folder.path);
    const launched = startedWith(plan, platform);
    await this.state.update({ ...BEGUN, suspended: false, launched, fresh: undefined });
    try {
      await this.#bringUp({ plan, platform, incoming: false });
    } catch (error) {
      throw await this.failedStart(error);
    }
  }

  async resume(plan: VmLaunchPlan, platform: GuestPlatform): Promise<void> {
    // The machine counts as suspended until the new process has read the memory, so that a failure before this moment does not lose the
    // memory.
    const begun = await this.state.change(({ launched }) => ({
      ...BEGUN,
      launched: launched && resumedWith(launched, plan, platform),
    }));
    try {
      const qmp = await this.#bringUp({ plan, platform, incoming: true });
      await restoreMemory(this.folder.path, qmp, begun.launched?.memoryBytes);
      await this.state.update({ suspended: false });
      await qmp.execute('cont');
      // The removal of a large file takes tenths of a second, for which no guest should wait. If it is not reached, the next start does it.
      await forgetMemory(this.folder.path);
    } catch (error) {
      throw await this.failedStart(error);
    }
  }

  /**
   * Starts the machine from a saved memory, and runs `renew` while the guest runs without a network. The machine counts as renewing
   * until `renew` has succeeded. Before, the disk gets the size of the plan, which the guest sees at once. Calls `note` with the name of each
   * step that has ended. Returns the result of `renew`. After an error, no process is left.
   */
  async startFromMemory<T>(
    plan: MachineStart['plan'],
    platform: GuestPlatform,
    options: WarmStartOptions<T>,
  ): Promise<T> {
    const { launched, diskSizeBytes = 0, memory, renew, note, signal, staysOffline = false } = options;
    const { path } = this.folder;
    await forgetMemory(path);
    const generation = newGeneration(platform.architecture);
    const begun = { ...BEGUN, suspended: false, launched, fresh: undefined, renewing: true, generation };
    const { diskBytes: savedBytes = 0 } = await this.state.update(begun);
    const diskBytes = Math.max(savedBytes, diskSizeBytes);
    return await this.#startUnless(signal, async () => {
      const file = { path: memory.ram, isShared: false };
      const qmp = await this.#bringUp({ plan, platform, incoming: true, memory: file });
      note?.('launched');
      await restoreMemory(path, qmp, plan.memoryBytes, { file: memory.state, ignoresFile: true });
      note?.('loaded');
      await qmp.execute('set_link', { name: NETWORK, up: false });
      await qmp.execute('cont');
      if (diskBytes > savedBytes) {
        await qmp.execute('block_resize', { 'node-name': DISK_NODE, size: wholeSectors(diskBytes) });
      }
      const renewed = await renew(await this.required());
      if (!staysOffline) {
        await qmp.execute('set_link', { name: NETWORK, up: true });
      }
      const known = { ...launched, fromMemory: true };
      await this.state.update({ renewing: undefined, launched: known, diskBytes });
      return renewed;
    });
  }

  /**
   * Ends the guest and calls {@link remake} if an agent has died while the guest was renewed. Nothing may use such a disk: it fits neither the
   * memory nor the image.
   */
  async dropHalfRenewed(platforms: HostPlatforms): Promise<void> {
    const state = await this.state.read();
    if (state?.renewing === true) {
      const identity = await this.process();
      await (identity && killForCertain(identity));
      await this.remake(await platforms.of(state.architecture));
    }
  }

  /** Throws away what a guest has written that was started from memory, but was not renewed. */
  async remake(platform: GuestPlatform): Promise<void> {
    const state = await this.state.read();
    if (state !== undefined) {
      await remakeFiles(this.folder, state, platform);
      await this.state.update({ renewing: undefined, fresh: true });
    }
  }

  /**
   * Lets the guest of a stream run without a network, calls `prepare`, and ends the machine. What is left is a file with the memory and a file
   * with the state of the devices, of the moment at which `prepare` has ended. Without `prepare`, it is the moment of the stream. The machine is
   * one of its own. `plan` and the state file have the values of the machine of the stream.
   */
  async prepareMemory(
    plan: MachineStart['plan'],
    platform: GuestPlatform,
    { stream, ram, state, prepare, signal }: PreparationOptions,
  ): Promise<void> {
    const { path } = this.folder;
    await this.state.update(BEGUN);
    await this.#startUnless(signal, async () => {
      const file = { path: ram, isShared: true };
      const qmp = await this.#bringUp({ plan, platform, incoming: true, memory: file });
      await restoreMemory(path, qmp, plan.memoryBytes, { file: stream });
      if (prepare !== undefined) {
        await qmp.execute('set_link', { name: NETWORK, up: false });
        await qmp.execute('cont');
        await prepare(await this.required());
        await qmp.execute('stop');
      }
      await saveMemory(path, qmp, plan.memoryBytes, { file: state, ignoresFile: true });
      await quit(await this.required(), this.#context.logger);
      await this.forgetProcess();
    });
    await sync(ram);
  }

  /**
   * Runs a start, and leaves no process after an error. If the signal aborts, the process is killed, because a deletion of the machine waits for
   * the end of the start.
   */
  async #startUnless<T>(signal: AbortSignal | undefined, start: () => Promise<T>): Promise<T> {
    const kill = (): void => this.background(async () => await this.kill(await this.process()));
    signal?.addEventListener('abort', kill, { once: true });
    try {
      signal?.throwIfAborted();
      return await start();
    } catch (error) {
      throw await this.failedStart(error);
    } finally {
      signal?.removeEventListener('abort', kill);
    }
  }

  /**
   * Runs `save`, which pauses the guest for a moment and lets it continue. An inspection meanwhile finds a guest that runs. Otherwise the
   * inspection would take the pause for a step that an earlier run of the agent has left unfinished, and end it.
   */
  async whileSaving(save: () => Promise<void>): Promise<void> {
    this.#isSaving = true;
    try {
      await save();
    } finally {
      this.#isSaving = false;
    }
  }

  /** Returns the live hypervisor. @throws Error when the machine has no live process. */
  async required(): Promise<Hypervisor> {
    const hypervisor = await this.hypervisor();
    if (hypervisor === undefined) {
      throw new Error('The hypervisor has ended');
    }
    return hypervisor;
  }

  async stop(options: StopOptions): Promise<void> {
    const known = await this.state.readIfPossible();
    if (known === undefined) {
      return;
    }
    if (known !== UNREADABLE) {
      await this.state.update({ intent: 'stop' });
    }
    const hypervisor = await this.hypervisor();
    if (hypervisor !== undefined) {
      hypervisor.expectExit();
      if (options.graceMilliseconds > 0) {
        await powerOffGuest(hypervisor, options, this.#context.logger);
      }
      await quit(hypervisor, this.#context.logger, options.discard);
    }
    await this.forgetProcess();
    // If the state file is unreadable, the saved memory of a suspended machine stays with the disk, because people can need both.
    if (known !== UNREADABLE) {
      const off = { live: false, suspended: false, paused: false, end: undefined, process: undefined };
      await this.state.update(off);
      await forgetMemory(this.folder.path);
    }
  }

  async suspend(): Promise<void> {
    const hypervisor = await this.hypervisor();
    if (hypervisor === undefined) {
      throw new Error('Only a running machine can be suspended');
    }
    const qmp = await hypervisor.qmp();
    const { launched } = await this.state.update({ intent: 'suspend' });
    try {
      await qmp.execute('stop');
      await saveMemory(this.folder.path, qmp, launched?.memoryBytes);
      await this.state.update({ suspended: true, paused: false });
    } catch (error) {
      await goOn(qmp, this.state);
      await forgetMemory(this.folder.path);
      throw error;
    }
    hypervisor.expectExit();
    await quit(hypervisor, this.#context.logger);
    await this.forgetProcess();
    await this.state.update({ live: false, process: undefined });
  }

  protected override newWatch(identity: ProcessIdentity, onExit: () => void): Hypervisor {
    const hypervisor = new Hypervisor(this.folder, identity, {
      onEvent: (event) => this.#onEvent(hypervisor, event),
      onExit,
    });
    return hypervisor;
  }

  protected override async inspectLive(
    identity: ProcessIdentity,
    { launched }: MachineFile,
    { isDiscarded }: InspectOptions,
  ): Promise<RunningState | undefined> {
    if (this.#isSaving && launched !== undefined) {
      const { pid } = identity;
      return { kind: 'running', pid, guestStarted: true, paused: false, ...factsOf(launched) };
    }
    const { logger } = this.#context;
    const inspection = { logger, isDiscarded };
    const { state, isSilent } = await inspectLive(this.adopt(identity), this.state, inspection);
    this.#isSilent = isSilent;
    return state && launched ? { ...state, ...factsOf(launched) } : state;
  }

  protected override async kill(main: ProcessIdentity | undefined): Promise<void> {
    await (main && killForCertain(main));
  }

  /** A power-off of the guest is recorded before QEMU ends, so any other end is a crash. */
  protected override exitReason(): ExitReason {
    return 'Crashed';
  }

  protected override async logLines(): Promise<string> {
    return await hypervisorLog(this.folder.path);
  }

  async #bringUp(options: Omit<MachineStart, 'state'>): Promise<QmpConnection> {
    const state = await this.state.read();
    if (state === undefined) {
      throw new Error(`Machine ${this.folder.uid} has no state file`);
    }
    const { exited, identity } = await launchMachine(this.folder, { ...options, state }, this.#context);
    const ended = new AbortController();
    exited.then(
      () => ended.abort(),
      () => undefined,
    );
    const hypervisor = this.open(identity);
    hypervisor.watch(exited);
    const signal = ended.signal;
    const answer = hypervisor.qmp({ timeoutMilliseconds: START_TIMEOUT_MILLISECONDS, signal });
    try {
      await Promise.all([answer, this.state.update({ process: identity })]);
    } catch (error) {
      if (!(await waitForExit(identity, EXIT_NOTICE_MILLISECONDS))) {
        throw error;
      }
      throw await this.startError(this.describeExit(await hypervisor.exitStatus()));
    }
    this.#context.follow(this.folder, 'started');
    return await answer;
  }

  #onEvent(hypervisor: Hypervisor, { event, data }: QmpEvent): void {
    // QEMU also stops a guest that has crashed. So a stop causes an inspection, which finds the cause in the run state.
    if (event === 'STOP' && hypervisor.stops()) {
      this.#context.changed(this.folder.uid);
    }
    if (event !== 'SHUTDOWN') {
      return;
    }
    if (data['guest'] !== true) {
      hypervisor.endsFromOutside = true;
      return;
    }
    if (!hypervisor.powersOff()) {
      return;
    }
    this.background(async () => {
      await guestPoweredOff(this.state);
      await quit(hypervisor, this.#context.logger);
    });
  }
}

/** Returns the facts about the start of a machine that an inspection reports. */
function factsOf({
  accelerator,
  fromMemory,
}: NonNullable<MachineFile['launched']>): Pick<RunningState, 'accelerator' | 'fromMemory'> {
  return fromMemory === true ? { accelerator, fromMemory } : { accelerator };
}
