/** Brings a live hypervisor and what its folder says together. */
import type { Logger } from 'pino';
import { killForCertain, type ProcessIdentity } from '../../machines/process.ts';
import type { StateFile } from './state.ts';
import { isInterrupted, PAUSED } from './pause.ts';
import { quit } from './power.ts';
import type { QmpConnection } from './qmp.ts';
import type { Session } from './hypervisor.ts';

/** Brings to its end what an agent that died had begun; the run state afterwards, `gone` without a process. */
export async function reconcile(
  session: Session,
  identity: ProcessIdentity,
  file: StateFile,
  logger: Logger,
): Promise<string> {
  const qmp = await session.qmp();
  const status = await qmp.status();
  const state = await file.read();
  if (state?.suspended === true) {
    // Either the memory is on disk and the process had to end, or it was being read into a new process.
    await killForCertain(identity);
    return 'gone';
  }
  if (status === 'shutdown') {
    if (!session.endsFromOutside) {
      await guestPoweredOff(file);
    }
    await quit(session, logger);
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
