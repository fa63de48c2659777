/**
 * Pauses, continues and ends guests by QEMU's run states, and completes a step that an earlier agent left unfinished. After its
 * guest has powered off, QEMU stays in the run state `shutdown` until it gets the command `quit`.
 */
import type { Logger } from 'pino';
import { killForCertain, type ProcessIdentity, waitForExit } from '../../processes/process.ts';
import { hasGuestAgent, shutDown } from './guestcommands.ts';
import type { Hypervisor } from './hypervisor.ts';
import { wasEndedBySignal } from './lastwords.ts';
import type { QmpConnection, QmpEvent } from './qmp.ts';
import type { MachineFile, StateChange, StateFile } from './state.ts';

/** QEMU's run state after the command `stop` has paused the guest. */
const PAUSED = 'paused';
/**
 * QEMU's run state after QEMU has paused the guest, because a write of the guest found the host's disk full. QEMU repeats the write
 * when the guest continues.
 */
const DISK_FULL = 'io-error';
/** Run states in which QEMU waits for a command to continue. If an agent dies during a step, QEMU may stay in one of them. */
const INTERRUPTED: ReadonlySet<string> = new Set([PAUSED, 'prelaunch', 'postmigrate', 'finish-migrate']);

/** Time limit of QEMU's command `quit`, which flushes the disks. If QEMU needs longer, the agent kills it. */
const QUIT_TIMEOUT_MILLISECONDS = 10_000;
/** Time between two presses of the power button. A guest that is still in its firmware misses a press. */
const POWER_BUTTON_INTERVAL_MILLISECONDS = 3_000;
/**
 * Time that the guest agent alone has to power off the guest. Then the agent presses the power button, too. A guest that already shuts
 * down ignores it.
 */
const GUEST_AGENT_MILLISECONDS = 5_000;

export function isStill(status: string): boolean {
  return status === PAUSED || status === DISK_FULL;
}

function isInterrupted(status: string): boolean {
  return INTERRUPTED.has(status);
}

interface Pausable {
  readonly state: StateFile;
  /** Returns the hypervisor, or undefined when it has ended. */
  hypervisor(): Promise<Hypervisor | undefined>;
}

/**
 * Pauses the guest. The state file is written first, so that the next agent completes the pause if this agent dies in between.
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

export interface StopOptions {
  graceMilliseconds: number;
  /** Signal that ends the grace early. */
  hurry?: AbortSignal;
}

/**
 * Makes the guest power off. Asks the guest agent first, if there is one, because a desktop may ignore its power button or ask a person
 * what to do. Presses the power button if the guest does not power off, or has no guest agent. Resolves when the guest has powered off,
 * the grace is over, or `hurry` aborts. If the guest is paused, resolves at once.
 */
export async function powerOffGuest(
  hypervisor: Hypervisor,
  { graceMilliseconds, hurry }: StopOptions,
  logger: Logger,
): Promise<void> {
  const deadline = AbortSignal.timeout(graceMilliseconds);
  const over = hurry === undefined ? deadline : AbortSignal.any([deadline, hurry]);
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
      'The power button of a machine could not be pressed, so its power is cut',
    );
  }
}

/** Returns whether the guest has powered off because its guest agent was asked to. */
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

/** Ends the hypervisor; no process is left when the promise resolves. */
export async function quit(hypervisor: Hypervisor, logger: Logger): Promise<void> {
  try {
    const qmp = await hypervisor.qmp();
    await qmp.execute('quit');
    if (await waitForExit(hypervisor.identity, QUIT_TIMEOUT_MILLISECONDS)) {
      return;
    }
  } catch (error) {
    const { uid } = hypervisor.folder;
    logger.debug({ uid, err: error }, 'The hypervisor of a machine did not follow the command quit');
  }
  await killForCertain(hypervisor.identity);
}

/** Completes a step that an agent had begun when it died. Returns the run state afterwards, or `gone` if no process is left. */
export async function reconcile(
  hypervisor: Hypervisor,
  identity: ProcessIdentity,
  file: StateFile,
  logger: Logger,
): Promise<string> {
  const qmp = await hypervisor.qmp();
  const status = await qmp.status();
  const state = await file.read();
  if (state?.suspended === true) {
    // An agent died after it had saved the memory, or while a new process read it. The memory is still on disk, so the process can end.
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
  if (state?.paused === true) {
    if (status === 'running') {
      await qmp.execute('stop');
    }
    return PAUSED;
  }
  if (!isInterrupted(status)) {
    return status;
  }
  await goOn(qmp, file);
  return 'running';
}

/**
 * Removes the record of the guest's power-off if a signal ended the hypervisor. An agent that connects just after the signal misses
 * QEMU's event about it. The log of the ended hypervisor still names the signal.
 */
async function correctEnd(folder: string, file: StateFile): Promise<void> {
  if (await wasEndedBySignal(folder)) {
    await file.change(({ end }) => (end?.reason === 'GuestShutdown' ? { end: undefined } : {}));
  }
}

/** Cancels a suspension that has begun. The guest then continues, unless the state file says that it is paused. */
export async function goOn(qmp: QmpConnection, file: StateFile): Promise<void> {
  await qmp.execute('migrate_cancel');
  const { paused } = await file.update({ intent: 'run' });
  if (paused !== true) {
    await qmp.execute('cont');
  }
}

/** Records in the state file that the guest powered off, unless the agent has requested the end of the machine. */
export async function guestPoweredOff(file: StateFile): Promise<void> {
  await file.change(({ intent, live }) =>
    live && intent === 'run' ? { end: { reason: 'GuestShutdown', message: 'The guest powered off' } } : {},
  );
}

/** Returns the change of the state file when the machine's process has ended. Without a request, the end is a crash with `message`. */
export function processEnded(known: MachineFile, message: string): StateChange {
  if (!known.live) {
    return {};
  }
  const crashed = known.intent === 'run' && known.end === undefined && !known.suspended;
  const end = crashed ? { end: { reason: 'Crashed' as const, message } } : {};
  return { live: false, paused: false, process: undefined, ...end };
}
