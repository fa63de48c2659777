/** The end of a machine: asked of the guest, then taken. */
import type { Logger } from 'pino';
import { killForCertain, waitForExit } from '../../machines/process.ts';
import { isStill } from './pause.ts';
import type { Session } from './hypervisor.ts';

/** After `quit` QEMU flushes its disks; a slow one gets this long before it is killed. */
const QUIT_TIMEOUT_MILLISECONDS = 10_000;
/** A guest that was still in its firmware misses a press of the power button. */
const POWER_BUTTON_INTERVAL_MILLISECONDS = 3_000;

export interface StopOptions {
  graceMilliseconds: number;
  /** Ends the grace early. */
  hurry?: AbortSignal;
}

/** Resolves when the guest has powered off, the grace is over, or `hurry` aborts; at once for a guest that stands still. */
export async function pressPowerButton(
  session: Session,
  { graceMilliseconds, hurry }: StopOptions,
  logger: Logger,
): Promise<void> {
  const deadline = AbortSignal.timeout(graceMilliseconds);
  const over = hurry === undefined ? deadline : AbortSignal.any([deadline, hurry]);
  try {
    const qmp = await session.qmp();
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
    const { uid } = session.folder;
    logger.warn({ uid, err: error }, 'power button not pressed, power is taken away');
  }
}

/** No process is left when it resolves. */
export async function quit(session: Session, logger: Logger): Promise<void> {
  try {
    const qmp = await session.qmp();
    await qmp.execute('quit');
    if (await waitForExit(session.identity, QUIT_TIMEOUT_MILLISECONDS)) {
      return;
    }
  } catch (error) {
    const { uid } = session.folder;
    logger.debug({ uid, err: error }, 'hypervisor did not take quit');
  }
  await killForCertain(session.identity);
}
