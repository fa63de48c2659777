/**
 * QEMU's run states: how a guest comes to stand still, to go on and to end, and what a state means that an agent finds. QEMU stays
 * in the state `shutdown` after its guest has powered off, until somebody tells it to quit.
 */
import type { Logger } from 'pino';
import { killForCertain, type ProcessIdentity, waitForExit } from '../../machines/process.ts';
import type { Hypervisor } from './hypervisor.ts';
import { wasEndedBySignal } from './lastwords.ts';
import type { QmpConnection } from './qmp.ts';
import type { StateFile } from './state.ts';

/** Somebody stopped the guest. */
const PAUSED = 'paused';
/** QEMU did: a write of the guest found the host's disk full. It is done again when the guest goes on. */
const DISK_FULL = 'io-error';
/** States in which QEMU waits for somebody to say "go on": what an agent that died in the middle leaves behind. */
const INTERRUPTED: ReadonlySet<string> = new Set([PAUSED, 'prelaunch', 'postmigrate', 'finish-migrate']);

/** After `quit` QEMU flushes its disks; a slow one gets this long before it is killed. */
const QUIT_TIMEOUT_MILLISECONDS = 10_000;
/** A guest that was still in its firmware misses a press of the power button. */
const POWER_BUTTON_INTERVAL_MILLISECONDS = 3_000;

export function isStill(status: string): boolean {
  return status === PAUSED || status === DISK_FULL;
}

function isInterrupted(status: string): boolean {
  return INTERRUPTED.has(status);
}

interface Pausable {
  readonly state: StateFile;
  /** Undefined when the hypervisor has ended. */
  connect(): Promise<QmpConnection | undefined>;
}

/** Written down first: an agent that dies in between finds out what is meant. */
export async function pauseGuest(machine: Pausable): Promise<void> {
  await machine.state.update({ paused: true });
  const qmp = await machine.connect();
  await qmp?.execute('stop');
}

export async function unpauseGuest(machine: Pausable): Promise<void> {
  await machine.state.update({ paused: false });
  const qmp = await machine.connect();
  await qmp?.execute('cont');
}

export interface StopOptions {
  graceMilliseconds: number;
  /** Ends the grace early. */
  hurry?: AbortSignal;
}

/** Resolves when the guest has powered off, the grace is over, or `hurry` aborts; at once for a guest that stands still. */
export async function pressPowerButton(
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
    while (!over.aborted && !qmp.closed) {
      const poweredOff = qmp.waitForEvent(({ event }) => event === 'SHUTDOWN', {
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
    logger.warn({ uid, err: error }, 'power button not pressed, power is taken away');
  }
}

/** No process is left when it resolves. */
export async function quit(hypervisor: Hypervisor, logger: Logger): Promise<void> {
  try {
    const qmp = await hypervisor.qmp();
    await qmp.execute('quit');
    if (await waitForExit(hypervisor.identity, QUIT_TIMEOUT_MILLISECONDS)) {
      return;
    }
  } catch (error) {
    const { uid } = hypervisor.folder;
    logger.debug({ uid, err: error }, 'hypervisor did not take quit');
  }
  await killForCertain(hypervisor.identity);
}

/** Brings to its end what an agent that died had begun; the run state afterwards, `gone` without a process. */
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
    // Either the memory is on disk and the process had to end, or it was being read into a new process.
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

/** An agent that connects just after a signal has missed the event of it. The hypervisor has ended, and its last words name the signal. */
async function correctEnd(folder: string, file: StateFile): Promise<void> {
  if (await wasEndedBySignal(folder)) {
    await file.change(({ end }) => (end?.reason === 'GuestShutdown' ? { end: undefined } : {}));
  }
}

/** Gives up a suspension: the guest runs on, unless it is paused. */
export async function goOn(qmp: QmpConnection, file: StateFile): Promise<void> {
  await qmp.execute('migrate_cancel');
  const { paused } = await file.update({ intent: 'run' });
  if (paused !== true) {
    await qmp.execute('cont');
  }
}

/** A power-off that somebody asked for is no end to report. */
export async function guestPoweredOff(file: StateFile): Promise<void> {
  await file.change(({ intent, live }) =>
    live && intent === 'run' ? { end: { reason: 'GuestShutdown', message: 'the guest powered off' } } : {},
  );
}
