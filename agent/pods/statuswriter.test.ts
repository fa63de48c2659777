import { expect, test } from 'vitest';
import type { Pod, PodStatus } from '../../kube/core.ts';
import { parkedStatus } from '../../kube/podstatus.ts';
import { showsAlready } from './statuswriter.ts';

const NOW = '2030-01-01T00:00:00Z';
const pod: Pod = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'x', namespace: 'platform-default', uid: 'u', generation: 1 },
  spec: { containers: [{ name: 'machine', image: 'guest' }] },
};

/** Returns a written status as the API server 1.36 returns it, with the fields that the API server and the scheduler add. */
function given({ conditions = [], containerStatuses = [], ...status }: PodStatus): PodStatus {
  const scheduled = { type: 'PodScheduled', status: 'True' as const, lastTransitionTime: NOW };
  const stored: object = {
    ...status,
    conditions: [scheduled, ...conditions].map((one) => ({ ...one, lastProbeTime: null })),
    containerStatuses: containerStatuses.map((container) => ({ lastState: {}, ...container })),
    qosClass: 'BestEffort',
  };
  return stored;
}

function status(message: string): PodStatus {
  return parkedStatus(pod, { reason: 'HostRunsOnlyMachines', message }, '192.0.2.1', NOW);
}

test('a status that was written is not written again, whatever the API server adds; another one is', () => {
  const shown = { ...pod, status: given(status('a message')) };
  expect(showsAlready(shown, status('a message'))).toBe(true);
  expect(showsAlready(shown, status('another'))).toBe(false);
});
