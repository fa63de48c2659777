/** Inspects a machine whose process lives. */
import type { Logger } from 'pino';
import { isAlive } from '../../processes/process.ts';
import type { RunningState } from '../runningstate.ts';
import type { Hypervisor } from './hypervisor.ts';
import { isStill, reconcile } from './runstate.ts';
import type { StateFile } from './state.ts';

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
  file: StateFile,
  logger: Logger,
): Promise<Inspected> {
  const { identity, folder } = hypervisor;
  const { pid } = identity;
  try {
    const status = await reconcile(hypervisor, identity, file, logger);
    const paused = isStill(status);
    const running: RunningState = { kind: 'running', pid, guestStarted: status === 'running', paused };
    return { state: status === 'gone' ? undefined : running, isSilent: false };
  } catch (error) {
    if (!(await isAlive(identity))) {
      return { state: undefined, isSilent: false };
    }
    logger.warn({ uid: folder.uid, err: error }, 'The hypervisor of a machine does not answer');
    const paused = (await file.read())?.paused === true;
    return { state: { kind: 'running', pid, guestStarted: false, paused }, isSilent: true };
  }
}
