/**
 * Merges the layers that removed and failed snapshots have left under the disk of a machine. A merge is no step of the machine, because it can
 * take minutes. The machine is inspected meanwhile, and each of its steps ends the merge. The record says that a merge is due, so a merge that
 * was ended, has failed or has lost its agent is tried again.
 */
import { reasonIn } from '../../api/v1alpha1/reasons.ts';
import { waitAfter } from '../../base/backoff.ts';
import { messageWithoutPaths } from '../../base/errors.ts';
import { driverOfVM } from '../drivers/hostdrivers.ts';
import { type PodHost, warn } from './host.ts';
import type { MergeDue, Runtime, WantedMachine } from './machine.ts';

/** Number of attempts. The waits between them take about two hours in total, in which a host that is full for a while gets room. */
const MERGE_ATTEMPTS = 8;
/** Wait after the first attempt, and after a merge that was ended. It doubles with each failure, up to {@link MERGE_CAP_MILLISECONDS}. */
const MERGE_WAIT_MILLISECONDS = 60_000;
const MERGE_CAP_MILLISECONDS = 3_600_000;

/** Largest number of characters of a failure in the record. The hypervisor can have written its text. */
const FAILURE_LENGTH = 300;

/** The merge that a removed or failed snapshot makes due. It has attempts of its own. */
export const MERGE_AT_ONCE: MergeDue = { attempts: 0, notBefore: 0 };

/** Begins the merge that is due, if nothing else is to be done for the machine. Calls `changed` when it has ended. */
export function beginMerge(
  host: PodHost,
  runtime: Runtime,
  wanted: Pick<WantedMachine, 'deletion'>,
  changed: () => void,
): void {
  const { record } = runtime;
  const due = record.mergeDue;
  const now = Date.now();
  if (due === undefined || wanted.deletion !== undefined || !isDue(due, runtime, now)) {
    return;
  }
  // The attempt counts before it begins, so that a merge during which the agent dies is not repeated without end.
  const attempts = due.attempts + 1;
  const wait = waitAfter(attempts, MERGE_WAIT_MILLISECONDS, MERGE_CAP_MILLISECONDS);
  const begun: MergeDue = { attempts, notBefore: now + wait, ...(due.untilOff && { untilOff: true }) };
  host.records.update(record, { mergeDue: begun });
  const abort = new AbortController();
  runtime.merge = abort;
  void merge(host, runtime, begun, abort.signal)
    .catch((error: unknown) => {
      const { uid } = record;
      host.logger.error(
        { err: error, uid },
        'The result of a merge could not be saved in the record of a machine',
      );
    })
    .finally(() => {
      if (runtime.merge === abort) {
        runtime.merge = undefined;
      }
      changed();
    });
}

/** Ends the merge that is under way, if any, because the machine has a step to do. The driver lets this step wait for the end. */
export function endMerge(runtime: Pick<Runtime, 'merge'>): void {
  runtime.merge?.abort(new Error('The machine has another step to do'));
  runtime.merge = undefined;
}

/** Returns why layers of removed snapshots stay apart after the last attempt. The result is undefined if there is no such layer. */
export function mergeFailure({
  record,
  merge: underWay,
}: Pick<Runtime, 'record' | 'merge'>): string | undefined {
  const { mergeDue, failure } = record;
  if (mergeDue === undefined || failure !== undefined || underWay !== undefined || !isGivenUp(mergeDue)) {
    return undefined;
  }
  const { attempts, failure: why = 'The agent ended during the last attempt' } = mergeDue;
  return `Layers of removed snapshots still take space on the host, because they were not merged in ${attempts} attempts. The next removal of a VMSnapshot of the VM tries again. ${why}`;
}

function isDue(due: MergeDue, { record, state, merge: underWay }: Readonly<Runtime>, now: number): boolean {
  if (underWay !== undefined || record.failure !== undefined || isGivenUp(due)) {
    return false;
  }
  // A guest that is paused has a host without room.
  const isPossible =
    state.kind === 'running'
      ? !state.paused && due.untilOff !== true
      : state.kind !== 'absent' && state.kind !== 'unreadable';
  // If the time is further away than any wait, the clock of the host was set back.
  const isTime = now >= due.notBefore || due.notBefore - now > MERGE_CAP_MILLISECONDS;
  return isPossible && isTime;
}

function isGivenUp({ attempts }: MergeDue): boolean {
  return attempts >= MERGE_ATTEMPTS;
}

/** Merges the layers, and records what is left to do. A later removal of a snapshot has then recorded another merge, which stays. */
async function merge(host: PodHost, runtime: Runtime, begun: MergeDue, signal: AbortSignal): Promise<void> {
  const { record } = runtime;
  const left = await attempt(host, runtime, begun, signal);
  // A record that is removed must not be saved again.
  if (record.mergeDue !== begun || host.records.get(record.uid) !== record) {
    return;
  }
  host.records.update(record, { mergeDue: left });
  const message = mergeFailure({ record, merge: undefined });
  if (message !== undefined) {
    warn(host, record, 'LayersNotMerged', 'Merge', message);
  }
}

/** Returns the merge that is due after this attempt. The result is undefined if no layer is left. */
async function attempt(
  host: PodHost,
  { record, folder }: Runtime,
  begun: MergeDue,
  signal: AbortSignal,
): Promise<MergeDue | undefined> {
  try {
    const isComplete = await driverOfVM(host, record).mergeLayers(folder, signal);
    return isComplete ? undefined : { ...MERGE_AT_ONCE, untilOff: true };
  } catch (error) {
    if (signal.aborted || reasonIn(error) === 'Interrupted') {
      return { ...begun, attempts: begun.attempts - 1, notBefore: Date.now() + MERGE_WAIT_MILLISECONDS };
    }
    const { uid } = record;
    const counts = { attempt: begun.attempts, attempts: MERGE_ATTEMPTS };
    host.logger.warn({ uid, err: error, ...counts }, 'Layers under a disk were not merged');
    return { ...begun, failure: messageWithoutPaths(error).slice(0, FAILURE_LENGTH) };
  }
}
