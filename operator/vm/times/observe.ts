/** Finds the times of jobs in the changes of VMs. VMs of pools count once somebody has claimed them, and `pool/jobs.ts` measures these. */
import { CLAIMED_FROM_LABEL } from '../../../api/v1alpha1/names.ts';
import { poolUidOf } from '../../../api/v1alpha1/poolmembers.ts';
import type { VM } from '../../../api/v1alpha1/vm.ts';
import type { ObjectChange } from '../../../kube/cache.ts';
import { conditionIn } from '../../objects/conditions.ts';
import type { Measure } from './ring.ts';

/** Time of a job, in seconds. */
export interface JobTime {
  readonly measure: Measure;
  readonly seconds: number;
}

/** Returns the times that the change of a VM ends. `now` is in milliseconds since the epoch. */
export function timesIn({ type, object, previous }: ObjectChange<VM>, now: number): JobTime[] {
  if (type === 'added' || isOfPool(object)) {
    return [];
  }
  const firstRun = firstRunOf(object);
  if (firstRun === undefined) {
    return [];
  }
  const created = Date.parse(object.metadata.creationTimestamp ?? '');
  const hasWaited = previous !== undefined && firstRunOf(previous) === undefined;
  const hasRun = hasEnded(object, type) && !hasEnded(previous, 'updated');
  return [
    ...(hasWaited ? [{ measure: 'waited', seconds: (firstRun - created) / 1000 } as const] : []),
    ...(hasRun ? [{ measure: 'ran', seconds: (now - firstRun) / 1000 } as const] : []),
  ];
}

/** Returns the time of the first run in milliseconds since the epoch. */
function firstRunOf({ status }: Readonly<VM>): number | undefined {
  return status?.firstRunningTime === undefined ? undefined : Date.parse(status.firstRunningTime);
}

function isOfPool(vm: Readonly<VM>): boolean {
  return poolUidOf(vm) !== undefined || vm.metadata.labels?.[CLAIMED_FROM_LABEL] !== undefined;
}

/** Reports whether the VM is being deleted, is gone, or has failed for good. */
function hasEnded(vm: Readonly<VM> | undefined, type: ObjectChange<VM>['type']): boolean {
  return (
    vm !== undefined &&
    (type === 'deleted' ||
      vm.metadata.deletionTimestamp !== undefined ||
      conditionIn(vm.status, 'Stalled')?.status === 'True')
  );
}
