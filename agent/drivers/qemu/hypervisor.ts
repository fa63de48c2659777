/**
 * Watches a running hypervisor, and provides the connections to the hypervisor and to its guest agent. The agent perhaps started the
 * hypervisor before the agent's own restart.
 *
 * Also inspects guests, and pauses, continues and ends them by commands that change QEMU's run state, and completes a step that the agent
 * left unfinished when it died. QEMU does not end when its guest has powered off. It stays in the run state `shutdown` until the agent sends
 * the command `quit`.
 */
import type { Logger } from 'pino';
import { LONGEST_TIMER_MILLISECONDS, rest } from '../../../base/time.ts';
import { isAlive, killForCertain, type ProcessIdentity, waitForExit } from '../../processes/process.ts';
import type { InspectOptions, MachineFolder, RunningState, StopOptions } from '../driver.ts';
import { ProcessWatch, withLog } from '../machineprocess.ts';
import { GuestAgent, hasGuestAgent, shutDown } from './guestagent.ts';
import { QmpConnection, QmpError, type QmpEvent } from './qmp.ts';
import { FILES, type MachineFile, type QemuState } from './state.ts';
import { hypervisorLog, wasEndedBySignal } from './launch.ts';
import { forgetMemory } from './memory.ts';

/**
 * Time limit to connect to a running QEMU. QEMU answers in milliseconds. The limit is longer, because another client can be connected for a
 * moment, for example the previous process of the agent, which is ending.
 */
const ADOPT_TIMEOUT_MILLISECONDS = 3_000;

/**
 * Shortest time between two inspections that the agent makes because QEMU reports a stop of the guest's processors. Without this limit, a
 * hostile hypervisor could cause inspections without end.
 */
const STOP_INTERVAL_MILLISECONDS = 1_000;

/** QEMU's run state after the command `stop` has paused the guest. */
const PAUSED = 'paused';
/**
 * QEMU's run state after QEMU has paused the guest, because the host's disk is full and a write of the guest failed. QEMU repeats the write
 * when the guest continues.
 */
const DISK_FULL = 'io-error';
/**
 * Run states in which the guest does not run until QEMU gets another command. If the agent dies during a step, QEMU can stay in one of
 * these states.
 */
const INTERRUPTED: ReadonlySet<string> = new Set([PAUSED, 'prelaunch', 'postmigrate', 'finish-migrate']);

/**
 * Run states of a guest that cannot continue, with messages for users. QEMU enters `internal-error` if KVM or a device cannot go on, and
 * `guest-panicked` if the guest reports that its kernel crashed. In both states, QEMU waits without end.
 */
const CRASHES: ReadonlyMap<string, string> = new Map([
  ['internal-error', 'The hypervisor stopped the guest after an internal error'],
  ['guest-panicked', 'The guest reported that its kernel crashed'],
]);

/**
 * Time limit of QEMU's answer during an inspection. The agent inspects only a few machines at once, and a silent QEMU delays the others. So
 * the limit is short. The connection stays open after the time limit, because a copy of the disk can use it, and QEMU can still answer.
 */
const INSPECTION_TIMEOUT_MILLISECONDS = 3_000;
/** Time limit of QEMU's command `quit`, which flushes the disks. If QEMU needs longer, the agent kills it. */
const QUIT_TIMEOUT_MILLISECONDS = 10_000;
/**
 * Time limit of QEMU's answers and of its end if nothing of its machine is needed any more. QEMU answers in milliseconds. Users wait for the
 * deletion of a machine, also if its QEMU hangs.
 */
const DISCARD_TIMEOUT_MILLISECONDS = 500;
/**
 * Time between two presses of the power button. One press is not always enough, because a guest whose firmware is still running ignores it.
 */
const POWER_BUTTON_INTERVAL_MILLISECONDS = 3_000;
/**
 * Time within which the guest agent must power off the guest. After this time, Berth's agent also presses the power button. This does no
 * harm, because a guest that already shuts down ignores the power button.
 */
const GUEST_AGENT_MILLISECONDS = 5_000;

export interface HypervisorHandlers {
  /** Called with each event of QEMU, in order. */
  onEvent: (event: QmpEvent) => void;
  /** Called once, when the process has ended. */
  onExit: () => void;
}

export class Hypervisor extends ProcessWatch {
  readonly folder: MachineFolder;
  readonly guestAgent: GuestAgent;
  /**
   * Whether QEMU reported that it ends because of a signal. The run state does not show this, because it is `shutdown` after a signal and
   * also after the guest has powered off.
   */
  endsFromOutside = false;
  #qmp: QmpConnection | undefined;
  #connecting: Promise<QmpConnection> | undefined;
  #closed = false;
  #poweredOff = false;
  #nextStop = 0;
  readonly #handlers: HypervisorHandlers;

  constructor(folder: MachineFolder, identity: ProcessIdentity, handlers: HypervisorHandlers) {
    super(identity, handlers.onExit);
    this.folder = folder;
    this.guestAgent = new GuestAgent(folder.path);
    this.#handlers = handlers;
  }

  /** Records that the guest powered off. Returns true only at the first call, because a hypervisor can report a power-off many times. */
  powersOff(): boolean {
    const first = !this.#poweredOff;
    this.#poweredOff = true;
    return first;
  }

  /**
   * Records that QEMU stopped the guest's processors, and returns whether the caller must look at the run state. The result is false after
   * a power-off of the guest or a signal to QEMU, because the cause of the stop is known. The result is true at most once per second.
   */
  stops(): boolean {
    const now = performance.now();
    if (this.#poweredOff || this.endsFromOutside || now < this.#nextStop) {
      return false;
    }
    this.#nextStop = now + STOP_INTERVAL_MILLISECONDS;
    return true;
  }

  /**
   * Returns the connection to QEMU. If the connection was lost, the function connects again. @throws QmpError when QEMU does not answer.
   */
  async qmp(options?: { timeoutMilliseconds: number; signal?: AbortSignal }): Promise<QmpConnection> {
    if (this.#qmp !== undefined && !this.#qmp.closed) {
      return this.#qmp;
    }
    this.#connecting ??= this.#connect(options ?? { timeoutMilliseconds: ADOPT_TIMEOUT_MILLISECONDS });
    try {
      return await this.#connecting;
    } finally {
      this.#connecting = undefined;
    }
  }

  override close(): void {
    super.close();
    this.#closed = true;
    this.#qmp?.close();
    this.guestAgent.close();
  }

  async #connect(options: { timeoutMilliseconds: number; signal?: AbortSignal }): Promise<QmpConnection> {
    const qmp = await QmpConnection.connect(this.folder.path, FILES.qmp, options);
    if (this.#closed) {
      qmp.close();
      throw new QmpError('The agent closed the connection to QEMU');
    }
    qmp.on('event', (event) => this.#handlers.onEvent(event));
    // The closed connection usually means that the process is about to end. Therefore it is checked now, before the next regular check.
    qmp.on('close', () => this.check());
    this.#qmp = qmp;
    return qmp;
  }
}

function isStill(status: string): boolean {
  return status === PAUSED || status === DISK_FULL;
}

interface Pausable {
  readonly state: QemuState;
  /** Returns the hypervisor, or undefined when the hypervisor has ended. */
  hypervisor(): Promise<Hypervisor | undefined>;
}

/**
 * Pauses the guest. The state file is written first. So if the agent dies before the pause, the agent completes the pause after its
 * restart.
 */
export async function pauseGuest(machine: Pausable): Promise<void> {
  await machine.state.update({ paused: true });
  const qmp = await (await machine.hypervisor())?.qmp();
  await qmp?.execute('stop');
}

export async function unpauseGuest(machine: Pausable): Promise<void> {
  await machine.state.update({ paused: false });
  const qmp = await (await machine.hypervisor())?.qmp();
  await qmp?.execute('cont');
}

/**
 * Makes the guest power off. First asks the guest agent, if the guest has one, because a desktop system can ignore its power button, or ask
 * its user to confirm. Then presses the power button until the guest powers off. Resolves when the guest has powered off, the grace period
 * is over, or `hurry` aborts. If the guest is paused, resolves at once.
 */
export async function powerOffGuest(
  hypervisor: Hypervisor,
  { graceMilliseconds, hurry }: StopOptions,
  logger: Logger,
): Promise<void> {
  const done = new AbortController();
  const limits = [AbortSignal.timeout(graceMilliseconds), ...(hurry === undefined ? [] : [hurry])];
  const over = AbortSignal.any([...limits, done.signal]);
  // A QEMU that hangs gets no more time than its guest.
  await Promise.race([pressPowerButton(hypervisor, over, logger), rest(LONGEST_TIMER_MILLISECONDS, over)]);
  done.abort();
}

async function pressPowerButton(hypervisor: Hypervisor, over: AbortSignal, logger: Logger): Promise<void> {
  try {
    const qmp = await hypervisor.qmp();
    if (isStill(await qmp.status())) {
      return;
    }
    if ((await hasGuestAgent(qmp)) && (await powerOffByAgent(hypervisor, qmp, { signal: over, logger }))) {
      return;
    }
    while (!over.aborted && !qmp.closed) {
      const poweredOff = qmp.waitForEvent(isShutdown, {
        timeoutMilliseconds: POWER_BUTTON_INTERVAL_MILLISECONDS,
        signal: over,
      });
      await qmp.execute('system_powerdown');
      if ((await poweredOff) !== undefined) {
        return;
      }
    }
  } catch (error) {
    const { uid } = hypervisor.folder;
    logger.warn(
      { uid, err: error },
      'The power button of a machine could not be pressed, so the agent ends the machine without a shutdown of its guest',
    );
  }
}

/** Asks the guest agent to shut the guest down, and returns whether the guest has powered off in time. */
async function powerOffByAgent(
  { guestAgent, folder: { uid } }: Hypervisor,
  qmp: QmpConnection,
  { signal, logger }: { signal: AbortSignal; logger: Logger },
): Promise<boolean> {
  const over = new AbortController();
  const either = AbortSignal.any([signal, over.signal]);
  const timeoutMilliseconds = GUEST_AGENT_MILLISECONDS;
  const poweredOff = qmp.waitForEvent(isShutdown, { timeoutMilliseconds, signal: either });
  shutDown(guestAgent, either).catch((error: unknown) => {
    if (!either.aborted) {
      logger.info({ uid, err: error }, 'The guest agent did not shut down its guest');
    }
    over.abort();
  });
  const event = await poweredOff;
  over.abort();
  return event !== undefined;
}

function isShutdown({ event }: QmpEvent): boolean {
  return event === 'SHUTDOWN';
}

/** Ends the hypervisor. When the promise resolves, no process is left. If `discard` aborts, a hypervisor that hangs is killed soon. */
export async function quit(hypervisor: Hypervisor, logger: Logger, discard?: AbortSignal): Promise<void> {
  const over = new AbortController();
  const hangs = discard === undefined ? [] : [discardTime(discard, over.signal)];
  await Promise.race([askToQuit(hypervisor, logger), ...hangs]);
  over.abort();
  await killForCertain(hypervisor.identity);
}

async function askToQuit(hypervisor: Hypervisor, logger: Logger): Promise<void> {
  try {
    const qmp = await hypervisor.qmp();
    await qmp.execute('quit');
    await waitForExit(hypervisor.identity, QUIT_TIMEOUT_MILLISECONDS);
  } catch (error) {
    const { uid } = hypervisor.folder;
    logger.debug({ uid, err: error }, 'The hypervisor of a machine did not accept the command "quit"');
  }
}

/** Resolves a short time after `discard` has aborted, or when `over` aborts. */
async function discardTime(discard: AbortSignal, over: AbortSignal): Promise<void> {
  await rest(LONGEST_TIMER_MILLISECONDS, AbortSignal.any([discard, over]));
  await rest(over.aborted ? 0 : DISCARD_TIMEOUT_MILLISECONDS, over);
}

/**
 * Completes a step that the agent had begun when it died, and ends a hypervisor whose guest cannot continue. Returns the run state
 * afterwards, or `gone` if no process is left.
 */
async function reconcile(
  hypervisor: Hypervisor,
  file: QemuState,
  { logger, isDiscarded }: Inspection,
): Promise<string> {
  const { identity } = hypervisor;
  const timeoutMilliseconds = isDiscarded ? DISCARD_TIMEOUT_MILLISECONDS : INSPECTION_TIMEOUT_MILLISECONDS;
  const qmp = await hypervisor.qmp({ timeoutMilliseconds });
  const status = await qmp.status(timeoutMilliseconds);
  const state = await file.read();
  if (state?.suspended === true || state?.renewing === true) {
    // The agent died after QEMU had saved the memory, or while a new process read the saved memory. The memory is still on disk, so no data
    // is lost when the agent kills the process. A guest that was not renewed yet has no data either, and must not run on.
    await killForCertain(identity);
    return 'gone';
  }
  if (status === 'shutdown') {
    if (!hypervisor.endsFromOutside) {
      await guestPoweredOff(file);
    }
    await quit(hypervisor, logger);
    await correctEnd(hypervisor.folder.path, file);
    return 'gone';
  }
  const crash = CRASHES.get(status);
  if (crash !== undefined) {
    await endCrashed(hypervisor, file, { crash, logger });
    return 'gone';
  }
  return await standStillOrGoOn(hypervisor, file, { status, state });
}

/**
 * Completes a pause, or cancels a stop or a suspension, that the agent had begun when it died. `status` is the run state of QEMU, and
 * `state` is the content of the state file. Returns the run state afterwards.
 */
async function standStillOrGoOn(
  hypervisor: Hypervisor,
  file: QemuState,
  { status, state }: { status: string; state: MachineFile | undefined },
): Promise<string> {
  const qmp = await hypervisor.qmp();
  if (state?.intent === 'suspend') {
    // The suspension did not succeed, so the files with the memory of the guest are of no use.
    await forgetMemory(hypervisor.folder.path);
  }
  if (state !== undefined && state.intent !== 'run') {
    // A stop or a suspension has not ended the machine. If it is still wanted, the agent begins it again. If not, the machine runs on, and a
    // later power-off of its guest must be recorded. Otherwise the power-off would count as a crash.
    await file.update({ intent: 'run' });
  }
  if (state?.paused === true) {
    if (status === 'running') {
      await qmp.execute('stop');
    }
    return PAUSED;
  }
  if (!INTERRUPTED.has(status)) {
    return status;
  }
  await goOn(qmp, file);
  return 'running';
}

/** Ends a hypervisor whose guest cannot continue. The recorded message is `crash` and the last lines of the hypervisor's log. */
async function endCrashed(
  hypervisor: Hypervisor,
  file: QemuState,
  { crash, logger }: { crash: string; logger: Logger },
): Promise<void> {
  // Without this call, the handler of the process's exit would record the end first, with a message that does not name the cause.
  hypervisor.expectExit();
  await quit(hypervisor, logger);
  const message = withLog(crash, await hypervisorLog(hypervisor.folder.path));
  await recordEnd(file, { reason: 'Crashed', message });
}

/**
 * Corrects the recorded end of a machine. If QEMU gets a termination signal just before the agent connects, the agent misses QEMU's event
 * about the signal. In this case, the agent wrongly records that the guest powered off. If the log of the ended hypervisor names a signal,
 * this function removes the wrong record.
 */
async function correctEnd(folder: string, file: QemuState): Promise<void> {
  if (await wasEndedBySignal(folder)) {
    await file.change(({ end }) => (end?.reason === 'GuestShutdown' ? { end: undefined } : {}));
  }
}

/**
 * Cancels a suspension that has begun. The guest then continues, unless the state file says that the guest is paused. If only the last sync
 * of the suspension failed, the state file already says `suspended`. The guest must not continue with this text, because a later resume
 * would combine the old memory with the changed disk.
 */
export async function goOn(qmp: QmpConnection, file: QemuState): Promise<void> {
  await qmp.execute('migrate_cancel');
  const { paused } = await file.update({ intent: 'run', suspended: false });
  if (paused !== true) {
    await qmp.execute('cont');
  }
}

/** Records in the state file that the guest powered off, unless the agent has requested the end of the machine. */
export async function guestPoweredOff(file: QemuState): Promise<void> {
  await recordEnd(file, { reason: 'GuestShutdown', message: 'The guest powered off' });
}

async function recordEnd(file: QemuState, end: NonNullable<MachineFile['end']>): Promise<void> {
  await file.change(({ intent, live }) => (live && intent === 'run' ? { end } : {}));
}

interface Inspection extends InspectOptions {
  logger: Logger;
}

interface Inspected {
  /** State of the machine; undefined if its process has ended. */
  state: RunningState | undefined;
  /** Whether the hypervisor did not answer. */
  isSilent: boolean;
}

/**
 * Inspects a live hypervisor. Also completes or cancels a step that the agent had begun when it died. So this function must not run during
 * a step of the machine.
 */
export async function inspectLive(
  hypervisor: Hypervisor,
  file: QemuState,
  inspection: Inspection,
): Promise<Inspected> {
  const { identity, folder } = hypervisor;
  const { pid } = identity;
  try {
    const status = await reconcile(hypervisor, file, inspection);
    const paused = isStill(status);
    const running: RunningState = { kind: 'running', pid, guestStarted: status === 'running', paused };
    return { state: status === 'gone' ? undefined : running, isSilent: false };
  } catch (error) {
    if (!(await isAlive(identity))) {
      return { state: undefined, isSilent: false };
    }
    inspection.logger.warn({ uid: folder.uid, err: error }, 'The hypervisor of a machine does not answer');
    const paused = (await file.read())?.paused === true;
    return { state: { kind: 'running', pid, guestStarted: false, paused }, isSilent: true };
  }
}
