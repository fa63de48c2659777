import { POD_FINALIZER } from '../../../api/v1alpha1/names.ts';
import type { Pod } from '../../../kube/core.ts';
import { isForced } from '../../../kube/objects.ts';
import { isAbandoned, isReleasable, toRemember } from '../abandoned.ts';
import { awaitedOn } from '../../../api/v1alpha1/awaited.ts';
import { isHost, isReady } from '../../host/observe.ts';
import { mustContinue } from '../adoption.ts';
import type { Facts } from '../facts.ts';
import type { Observed } from '../observe.ts';
import { TERMINATION_GRACE_SECONDS } from '../pod.ts';
import { desiredOf, hasEnded, hasRun, podAttempt, terminated } from '../podstate.ts';
import { NOTHING, type StepResult, waitFor, type Write } from './step.ts';

/**
 * Deletes a Pod that belongs to an earlier placement or to a failed VM. When a Pod is being deleted, also removes its finalizer, no matter
 * who deleted the Pod. The step uses only facts that are already in the VM's status.
 */
export function retirePod(observed: Observed, _facts: Facts): StepResult {
  const { pod } = observed;
  if (pod === undefined) {
    return NOTHING;
  }
  if (pod.metadata.deletionTimestamp !== undefined) {
    return letGo(observed, pod);
  }
  return mustGo(observed, pod)
    ? waitFor('the Pod to end', { kind: 'deletePod', force: isAbandoned(observed, pod) })
    : NOTHING;
}

/** Returns true if the Pod must be deleted. An ended Pod of a failed VM stays until the VM is deleted, so that users can read its log. */
function mustGo(observed: Observed, pod: Pod): boolean {
  return wasGivenUp(observed, pod) || (observed.vm.status?.failure !== undefined && !hasEnded(pod));
}

/**
 * Returns true if the Pod belongs to an earlier placement and the Pod's machine never ran. If the machine ran, the VM keeps the Pod, because
 * this machine has the only disk of the VM. For example, a lost host can return and start the machine before its Pod is deleted.
 */
function wasGivenUp({ vm }: Observed, pod: Pod): boolean {
  return (vm.status?.attempt ?? 1) > podAttempt(pod) && !hasRun(pod);
}

function letGo(observed: Observed, pod: Pod): StepResult {
  if (pod.metadata.finalizers?.includes(POD_FINALIZER) !== true) {
    return waitFor('the Pod to go');
  }
  if (mustContinue(observed, pod) && !isAbandoned(observed, pod)) {
    return adopt(observed);
  }
  if (!isReleasable(observed, pod) || !factsAreWritten(observed, pod)) {
    return waitFor('the machine to end', ...tellEnd(pod));
  }
  return isAbandoned(observed, pod)
    ? waitFor(
        'the Pod to go',
        ...remember(observed, pod),
        { kind: 'deletePod', force: true },
        { kind: 'releasePod' },
      )
    : waitFor('the Pod to go', { kind: 'releasePod' });
}

/**
 * Lets the Pod of a running machine go, so that the machine can get another Pod. This needs a host that reports: the Node must be there, and
 * no other Pod may take the machine's slot meanwhile.
 */
function adopt({ vm, node }: Observed): StepResult {
  if (!isHost(node) || node === undefined || !isReady(node)) {
    return waitFor('the host to return');
  }
  if (vm.status?.firstRunningTime === undefined) {
    return waitFor('the first run to be in the status');
  }
  const isAwaited = awaitedOn(node)[vm.metadata.uid ?? ''] !== undefined;
  return waitFor(
    'the Pod to go',
    { kind: 'saveSuccessor' },
    ...(isAwaited ? [] : [{ kind: 'awaitPod' } as const]),
    { kind: 'releasePod' },
  );
}

/**
 * Returns the request that tells the host to end the machine of a forcibly deleted Pod. Without it, the host keeps the machine, because such
 * a deletion alone is no order.
 */
function tellEnd(pod: Pod): Write[] {
  const desired = desiredOf(pod);
  const isNeeded = isForced(pod) && terminated(pod) === undefined && desired?.deletion === undefined;
  const deletion = { graceSeconds: TERMINATION_GRACE_SECONDS };
  return isNeeded ? [{ kind: 'patchDesired', text: JSON.stringify({ ...desired, deletion }) }] : [];
}

/**
 * Returns the request that stores the machine's MAC address on the Node. The address must be stored before the Pod's finalizer is removed,
 * because only the Pod has the address.
 */
function remember(observed: Observed, pod: Pod): Write[] {
  const macAddresses = toRemember(observed, pod);
  return macAddresses === undefined ? [] : [{ kind: 'rememberGivenUp', macAddresses }];
}

function factsAreWritten(observed: Observed, pod: Pod): boolean {
  const { vm } = observed;
  if (vm.metadata.deletionTimestamp !== undefined) {
    return true;
  }
  const { status } = vm;
  const runIsKnown = !hasRun(pod) || status?.firstRunningTime !== undefined;
  const endIsKnown = status?.failure !== undefined || wasGivenUp(observed, pod);
  return runIsKnown && endIsKnown;
}

/** Deletes the Pod of a deleted VM. When the Pod no longer exists, removes the VM's own finalizer. */
export function deleteMachine(observed: Observed): StepResult {
  const { pod } = observed;
  if (pod === undefined) {
    return waitFor('the VM to go', { kind: 'removeFinalizer' });
  }
  if (pod.metadata.deletionTimestamp !== undefined) {
    return letGo(observed, pod);
  }
  return waitFor('the machine to end', { kind: 'deletePod', force: isAbandoned(observed, pod) });
}
