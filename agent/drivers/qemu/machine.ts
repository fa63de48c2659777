/** Controls one QEMU machine: the state file in its folder, its process, and the connection to the process. */
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../../base/errors.ts';
import { killForCertain, type ProcessIdentity, waitForExit } from '../../processes/process.ts';
import type { MachineFolder, MachineState, RunningState, StopOptions, VmLaunchPlan } from '../driver.ts';
import { liveProcess } from '../processwatch.ts';
import { UNREADABLE } from '../statefile.ts';
import { processMark } from './arguments.ts';
import { resumedWith, startedWith } from './displaycard.ts';
import { Hypervisor } from './hypervisor.ts';
import {
  describeExit,
  exitMessage,
  launchMachine,
  type MachineContext,
  OUT_OF_MEMORY,
  startError,
} from './launch.ts';
import { forgetMemory, restoreMemory, saveMemory } from './memory.ts';
import type { Platform } from './platform.ts';
import type { QmpConnection, QmpEvent } from './qmp.ts';
import { goOn, guestPoweredOff, inspectLive, powerOffGuest, processEnded, quit } from './runstate.ts';
import { BEGUN, type MachineFile, StateFile } from './state.ts';

/** Time limit of a start. QEMU answers about 30 ms after its start, or after seconds on an overloaded host. */
const START_TIMEOUT_MILLISECONDS = 60_000;
/** Time that the agent waits for QEMU's end after a lost connection. A process closes its sockets shortly before its end. */
const EXIT_NOTICE_MILLISECONDS = 500;

export class QemuMachine {
  readonly #folder: MachineFolder;
  readonly #context: MachineContext;
  readonly state: StateFile;
  #hypervisor: Hypervisor | undefined;
  /** Resolves when the end of the process is recorded. Before that, no new process may start, because the end would count for it. */
  #settling: Promise<MachineFile> | undefined;
  #closed = false;
  #isSilent = false;

  constructor(folder: MachineFolder, context: MachineContext) {
    this.#folder = folder;
    this.#context = context;
    this.state = new StateFile(folder.path);
  }

  async inspect(): Promise<MachineState> {
    this.#isSilent = false;
    await this.#settling?.catch(() => undefined);
    let state = await this.state.read();
    if (state === undefined) {
      return { kind: 'stopped' };
    }
    if (state.live) {
      const running = await this.#inspectLive();
      if (running !== undefined) {
        return state.launched ? { ...running, accelerator: state.launched.accelerator } : running;
      }
      state = await this.#settle();
    }
    if (state.suspended) {
      return { kind: 'suspended' };
    }
    return state.end === undefined ? { kind: 'stopped' } : { kind: 'exited', ...state.end };
  }

  /** Whether the hypervisor did not answer the last inspection. If so, no cleanup is started, because a cleanup needs answers too. */
  get isSilent(): boolean {
    return this.#isSilent;
  }

  /** Returns the machine's live process, if any. Also finds the process of a machine whose state file is damaged. */
  async process(): Promise<ProcessIdentity | undefined> {
    return await liveProcess(await this.state.readIfPossible(), [processMark(this.#folder.uid)]);
  }

  /** Returns the live hypervisor, or undefined if the machine has no live process. */
  async hypervisor(): Promise<Hypervisor | undefined> {
    const identity = await this.process();
    return identity === undefined ? undefined : this.#adopt(identity);
  }

  /**
   * The hypervisor that the agent watches; undefined if the agent watches none. Unlike {@link hypervisor}, this property never makes the
   * agent watch a hypervisor, so any step may read it.
   */
  get watched(): Hypervisor | undefined {
    return this.#hypervisor;
  }

  async start(plan: VmLaunchPlan, platform: Platform): Promise<void> {
    await forgetMemory(this.#folder.path);
    await this.state.update({ ...BEGUN, suspended: false, launched: startedWith(plan, platform) });
    try {
      await this.#bringUp(plan, platform, false);
    } catch (error) {
      throw await this.#failedStart(error);
    }
  }

  async resume(plan: VmLaunchPlan, platform: Platform): Promise<void> {
    // The machine counts as suspended until the new process has read the memory, so that a failure before this moment does not lose the
    // memory.
    const begun = await this.state.change(({ launched }) => ({
      ...BEGUN,
      launched: launched && resumedWith(launched, plan, platform),
    }));
    try {
      const qmp = await this.#bringUp(plan, platform, true);
      await restoreMemory(this.#folder.path, qmp, begun.launched?.memoryBytes);
      await this.state.update({ suspended: false });
      await forgetMemory(this.#folder.path);
      await qmp.execute('cont');
    } catch (error) {
      throw await this.#failedStart(error);
    }
  }

  async stop(options: StopOptions): Promise<void> {
    const known = await this.state.readIfPossible();
    if (known === undefined) {
      return;
    }
    if (known !== UNREADABLE) {
      await this.state.update({ intent: 'stop' });
    }
    const identity = await this.process();
    if (identity !== undefined) {
      const hypervisor = this.#adopt(identity);
      hypervisor.expectExit();
      if (options.graceMilliseconds > 0) {
        await powerOffGuest(hypervisor, options, this.#context.logger);
      }
      await quit(hypervisor, this.#context.logger);
    }
    await this.#ended();
    // If the state file is unreadable, the saved memory of a suspended machine stays with the disk, because people can need both.
    if (known !== UNREADABLE) {
      const off = { live: false, suspended: false, paused: false, end: undefined, process: undefined };
      await this.state.update(off);
      await forgetMemory(this.#folder.path);
    }
  }

  async suspend(): Promise<void> {
    const identity = await this.process();
    if (identity === undefined) {
      throw new Error('Only a running machine can be suspended');
    }
    const hypervisor = this.#adopt(identity);
    const qmp = await hypervisor.qmp();
    const { launched } = await this.state.update({ intent: 'suspend' });
    try {
      await qmp.execute('stop');
      await saveMemory(this.#folder.path, qmp, launched?.memoryBytes);
      await this.state.update({ suspended: true, paused: false });
    } catch (error) {
      await goOn(qmp, this.state);
      await forgetMemory(this.#folder.path);
      throw error;
    }
    hypervisor.expectExit();
    await quit(hypervisor, this.#context.logger);
    await this.#ended();
    await this.state.update({ live: false, process: undefined });
  }

  /** Permanently stops watching the machine's process. The agent ignores later events of the process. */
  close(): void {
    this.#closed = true;
    this.#letGo();
  }

  async #bringUp(plan: VmLaunchPlan, platform: Platform, incoming: boolean): Promise<QmpConnection> {
    const state = await this.state.read();
    if (state === undefined) {
      throw new Error(`Machine ${this.#folder.uid} has no state file`);
    }
    const start = { plan, state, platform, incoming };
    const { exited, identity } = await launchMachine(this.#folder, start, this.#context);
    const ended = new AbortController();
    exited.then(
      () => ended.abort(),
      () => undefined,
    );
    this.#letGo();
    const hypervisor = this.#open(identity);
    hypervisor.watch(exited);
    const signal = ended.signal;
    const answer = hypervisor.qmp({ timeoutMilliseconds: START_TIMEOUT_MILLISECONDS, signal });
    try {
      await Promise.all([answer, this.state.update({ process: identity })]);
    } catch (error) {
      if (!(await waitForExit(identity, EXIT_NOTICE_MILLISECONDS))) {
        throw error;
      }
      throw await startError(this.#folder.path, describeExit(await hypervisor.exitStatus()));
    }
    this.#context.follow(this.#folder, 'started');
    return await answer;
  }

  /** Ends the process after a failed start or resume, and returns the error. Afterwards the machine is stopped, or still suspended. */
  async #failedStart(cause: unknown): Promise<ReasonedError> {
    const identity = await this.process();
    if (identity !== undefined) {
      await killForCertain(identity);
    }
    await this.#ended();
    // Perhaps the exit of the process has already been recorded as a crash. This update of the state removes the record of the crash.
    await this.state.update({ intent: 'stop', live: false, process: undefined, end: undefined });
    return cause instanceof ReasonedError ? cause : await startError(this.#folder.path, messageOf(cause));
  }

  /** Returns the state of the machine if its process lives; undefined if the process has ended. */
  async #inspectLive(): Promise<RunningState | undefined> {
    const identity = await this.process();
    if (identity === undefined) {
      return undefined;
    }
    const { state, isSilent } = await inspectLive(this.#adopt(identity), this.state, this.#context.logger);
    this.#isSilent = isSilent;
    return state;
  }

  #adopt(identity: ProcessIdentity): Hypervisor {
    if (this.#hypervisor?.identity.pid === identity.pid) {
      return this.#hypervisor;
    }
    this.#letGo();
    this.#context.follow(this.#folder, 'found');
    return this.#open(identity);
  }

  #open(identity: ProcessIdentity): Hypervisor {
    const hypervisor = new Hypervisor(this.#folder, identity, {
      onEvent: (event) => this.#onEvent(hypervisor, event),
      onExit: () => this.#background(async () => void (await this.#settle())),
    });
    this.#hypervisor = hypervisor;
    return hypervisor;
  }

  #letGo(): void {
    this.#hypervisor?.close();
    this.#hypervisor = undefined;
  }

  /** Ends the watch of an ended process, and removes its control group. The caller then records the end of the process. */
  async #ended(): Promise<void> {
    this.#letGo();
    await this.#settling?.catch(() => undefined);
    await this.#context.cgroups.remove(this.#folder.uid);
  }

  #onEvent(hypervisor: Hypervisor, { event, data }: QmpEvent): void {
    // QEMU also stops a guest that has crashed. So a stop causes an inspection, which finds the cause in the run state.
    if (event === 'STOP' && hypervisor.stops()) {
      this.#context.changed(this.#folder.uid);
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
    this.#background(async () => {
      await guestPoweredOff(this.state);
      await quit(hypervisor, this.#context.logger);
    });
  }

  /** Records the end of the machine's process. If several callers notice the end at the same time, the work is done only once. */
  async #settle(): Promise<MachineFile> {
    this.#settling ??= this.#recordEnd().finally(() => (this.#settling = undefined));
    return await this.#settling;
  }

  /** Records the end of the machine's process, and the reason, in the state file. */
  async #recordEnd(): Promise<MachineFile> {
    const status = await this.#hypervisor?.exitStatus();
    const kills = await this.#context.cgroups.memoryKills(this.#folder.uid);
    const message = await exitMessage(this.#folder.path, kills > 0 ? OUT_OF_MEMORY : describeExit(status));
    const state = await this.state.change((known) => processEnded(known, message));
    this.#letGo();
    await this.#context.cgroups.remove(this.#folder.uid);
    this.#context.changed(this.#folder.uid);
    return state;
  }

  #background(work: () => Promise<void>): void {
    work().catch((error: unknown) => {
      // After `close`, the folder is perhaps deleted already, so errors are ignored.
      if (this.#closed) {
        return;
      }
      const { uid } = this.#folder;
      this.#context.logger.error({ uid, err: error }, 'The agent could not handle an event of a machine');
    });
  }
}
