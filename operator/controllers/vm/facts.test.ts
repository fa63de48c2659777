import { describe, expect, it } from 'vitest';
import type { VMSpec } from '../../../api/v1alpha1/vm.ts';
import type { VMStatus } from '../../../api/v1alpha1/vmstatus.ts';
import type { Pod } from '../../../kube/core.ts';
import { parseConfig } from '../../config.ts';
import { gatherFacts, nextDeadline } from './facts.ts';
import type { Observed } from './observed.ts';

const CREATED = '2030-01-01T00:00:00Z';
const BOUND = '2030-01-01T01:00:00Z';
const FIRST_RAN = '2030-01-01T02:00:00Z';

function observed(spec: Partial<VMSpec>, status: VMStatus, pod: Partial<Pod> = {}): Observed {
  return {
    vm: {
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'VM',
      metadata: { name: 'x', namespace: 'platform-default', uid: 'vm', creationTimestamp: CREATED },
      spec: { image: 'registry.example/guest:1', ...spec },
      status,
    },
    pod: {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: 'x', namespace: 'platform-default', uid: 'pod', creationTimestamp: CREATED },
      spec: { nodeName: 'host', containers: [] },
      status: { phase: 'Running' },
      ...pod,
    },
    nameTakenBy: undefined,
    node: { apiVersion: 'v1', kind: 'Node', metadata: { name: 'host' } },
    resizeRefused: undefined,
    lookups: { vmConfig: () => undefined, image: () => undefined, iso: () => undefined },
    portHolder: () => undefined,
    hosts: () => [],
    config: parseConfig({}, 'test'),
    now: Date.parse(CREATED),
    random: () => 'ab'.repeat(32),
  };
}

function deadline(look: Observed): string | undefined {
  const found = nextDeadline(look, gatherFacts(look));
  return found && `${found.reason} ${new Date(found.at).toISOString().slice(11, 19)}`;
}

describe('deadlines of a VM', () => {
  it('count its activity from its first run, not from its creation, its placement or its last start', () => {
    const restarted = { firstRunningTime: FIRST_RAN, startTime: '2030-01-01T03:00:00Z' };
    expect(deadline(observed({ activeDeadlineSeconds: 60 }, restarted))).toBe('DeadlineExceeded 02:01:00');
  });

  it('count its deployment from its placement on a host, and only until it runs', () => {
    const scheduled = { type: 'PodScheduled', status: 'True' as const, lastTransitionTime: BOUND };
    const pending: Partial<Pod> = { status: { phase: 'Pending', conditions: [scheduled] } };
    expect(deadline(observed({ deployTimeoutSeconds: 60 }, {}, pending))).toBe('DeployTimeout 01:01:00');
    const unbound = { ...pending, spec: { containers: [] } };
    expect(deadline(observed({ deployTimeoutSeconds: 60 }, {}, unbound))).toBeUndefined();
    expect(deadline(observed({ deployTimeoutSeconds: 60 }, { firstRunningTime: FIRST_RAN }))).toBeUndefined();
  });
});
