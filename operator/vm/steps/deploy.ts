import { awaitedOn } from '../../../api/v1alpha1/awaited.ts';
import { isHost, isReady } from '../../host/observe.ts';
import type { Facts } from '../facts.ts';
import type { Observed } from '../observe.ts';
import { buildPod } from '../pod.ts';
import { isUnresolved, resolve } from '../resolve.ts';
import { blockedBy } from '../status.ts';
import { NOTHING, requeueAfter, type StepResult, waitFor, type Write } from './step.ts';
import { createVncSecret } from './vncsecret.ts';

/** Time in milliseconds between two checks while the Pod of another object has the VM's name. No watch shows when this Pod is deleted. */
const NAME_TAKEN_RECHECK_MILLISECONDS = 5_000;
/** Time in milliseconds between two checks of a silent host whose machine needs a Pod. While there is no Pod, no watch finds the VM. */
const HOST_RECHECK_MILLISECONDS = 5_000;

/** Returns true if the VM has no Pod, never ran and has not failed. */
export function needsPod({ pod }: Observed, { failure, firstRunningTime }: Facts): boolean {
  return pod === undefined && failure === undefined && firstRunningTime === undefined;
}

/**
 * Creates the Pod that continues the machine of the VM, when its host reports. The VM had another Pod that somebody deleted by force.
 */
export function continueMachine({ vm, node, successor }: Observed): StepResult {
  if (successor === undefined) {
    return NOTHING;
  }
  if (!isHost(node) || node === undefined || !isReady(node)) {
    return requeueAfter(HOST_RECHECK_MILLISECONDS);
  }
  const isAwaited = awaitedOn(node)[vm.metadata.uid ?? ''] !== undefined;
  return {
    writes: [
      ...(isAwaited ? [] : [{ kind: 'awaitPod' } as const]),
      { kind: 'createPod', pod: successor, ignoredEntries: [] },
    ],
    outcome: { kind: 'done' },
  };
}

/** Resolves the settings of the VM and creates its Pod, unless the VM has a Pod, ran before or has failed. */
export function deploy(observed: Observed, facts: Facts): StepResult {
  const { vm, nameTakenBy, config, clusterUid, random } = observed;
  if (!needsPod(observed, facts)) {
    return NOTHING;
  }
  if (nameTakenBy !== undefined) {
    const message = `The name of the VM, ${vm.metadata.name}, is used by ${nameTakenBy}`;
    return {
      ...requeueAfter(NAME_TAKEN_RECHECK_MILLISECONDS),
      blocked: { condition: 'Scheduled', reason: 'PodNameTaken', message },
    };
  }
  const resolved = resolve(observed);
  if (isUnresolved(resolved)) {
    return { ...waitFor(resolved.message), blocked: blockedBy(resolved) };
  }
  const { attempt, avoidedNodes } = facts;
  const built = buildPod({ vm, resolved, attempt, avoidedNodes, config, clusterUid, random });
  const secrets: Write[] = resolved.vncHostPort ? [createVncSecret(observed)] : [];
  const { ignoredEntries } = resolved;
  return {
    writes: [...secrets, { kind: 'createPod', pod: built, ignoredEntries }],
    outcome: { kind: 'done' },
  };
}
