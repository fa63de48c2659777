import { expect, it } from 'vitest';
import { MACHINE_CONTAINER, NETWORK_CONDITION } from '../../api/v1alpha1/names.ts';
import type { Pod, PodStatus } from '../../kube/core.ts';
import { parseConfig } from '../config/config.ts';
import { reachOfNode } from '../host/observe.ts';
import { gatherFacts } from './facts.ts';
import type { ObservedVM } from './observe.ts';
import { summarize } from './status.ts';

const RAN = '2030-01-01T00:00:00Z';

/** Returns the types of the conditions of a VM whose Pod has this status. */
function conditionsOf(status: PodStatus, metadata: object = {}): string[] {
  const pod: Pod = {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'x', namespace: 'ci' },
    spec: { nodeName: 'host', containers: [] },
    status,
  };
  const observed = {
    vm: {
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'VM',
      metadata: { name: 'x', namespace: 'ci', ...metadata },
      spec: {},
    },
    pod,
    ...reachOfNode({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'host' } }),
    successor: undefined,
    hosts: () => [],
    config: parseConfig({}, 'test'),
    now: 0,
  } as unknown as ObservedVM;
  return (summarize(observed, gatherFacts(observed), {}).conditions ?? []).map(({ type }) => type);
}

const container = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: false, restartCount: 0 };
const running: PodStatus = {
  phase: 'Running',
  containerStatuses: [{ ...container, containerID: 'a', state: { running: { startedAt: RAN } } }],
};
const reports: PodStatus = {
  ...running,
  conditions: [{ type: NETWORK_CONDITION, status: 'True', reason: 'Healthy' }],
};
const ended: PodStatus = {
  phase: 'Failed',
  containerStatuses: [
    { ...container, containerID: 'a', state: { terminated: { exitCode: 0, startedAt: RAN } } },
  ],
};

it('NetworkReady is there once the host has reported', () => {
  expect(conditionsOf(running)).toEqual(['Ready', 'Scheduled', 'ImageReady']);
  expect(conditionsOf(reports)).toEqual(['Ready', 'Scheduled', 'ImageReady', 'NetworkReady']);
});

it('the end of the machine of a deleted VM changes none of its conditions', () => {
  const deleted = { deletionTimestamp: RAN };
  expect(conditionsOf(reports, deleted)).toEqual(['Ready', 'Reconciling', 'Scheduled']);
  expect(conditionsOf(ended, deleted)).toEqual(['Ready', 'Reconciling', 'Scheduled']);
});
