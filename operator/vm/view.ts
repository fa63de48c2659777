/** What the operator keeps of a VM's Pod. */
import type { Pod } from '../../kube/core.ts';

/** Without what is only asked of a Pod that waits for a host, and what its host repeats: two fifths of its memory. */
export function trimPod(pod: Pod): Pod {
  if (pod.spec.nodeName === undefined) {
    return pod;
  }
  const { affinity: _affinity, tolerations: _tolerations, volumes: _volumes, ...spec } = pod.spec;
  const containerStatuses = pod.status?.containerStatuses?.map(
    ({ allocatedResources: _allocated, resources: _resources, ...status }) => status,
  );
  return {
    ...pod,
    spec,
    status: { ...pod.status, ...(containerStatuses === undefined ? {} : { containerStatuses }) },
  };
}
