import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import type { KubeClient } from '../../../kube/client.ts';
import type { Store } from '../../../kube/cache.ts';
import type { Informer } from '../../../kube/informer.ts';
import type { KubeObject } from '../../../kube/objects.ts';
import { parseConfig } from '../../config/config.ts';
import { declareWatches } from '../../watches.ts';
import { waitingIn } from '../places.ts';
import { hostsIn, seeEmpty } from './facts.ts';

const NAMESPACE = 'platform-ci';

/** Returns caches with the indexes of the operator, with a host `rack` that reports. */
function sourcesWith(objects: { [Name in keyof ReturnType<typeof declareWatches>]?: object[] } = {}) {
  const watches = declareWatches({
    client: { transport: { metrics: {} } } as unknown as KubeClient,
    config: parseConfig({}, 'test'),
    logger: pino({ level: 'silent' }),
  });
  const ready = { conditions: [{ type: 'Ready', status: 'True' }] };
  const nodes = [{ metadata: { name: 'rack', labels: {} }, status: ready }];
  for (const [name, list] of Object.entries({ nodes, ...objects })) {
    const store = (watches as unknown as Record<string, Informer<KubeObject>>)[name]
      ?.cache as Store<KubeObject>;
    list.forEach((object) => store.put(object as KubeObject));
  }
  return watches;
}

function server(name: string, creationTimestamp: string) {
  return { metadata: { name, uid: name, creationTimestamp }, spec: { nodeName: 'rack', addresses: [] } };
}

function podOn(nodeName: string | undefined, status: object = {}) {
  const labels = { 'berth.dev/vm-uid': 'uid' };
  return {
    metadata: { name: 'vm', namespace: NAMESPACE, labels },
    spec: { nodeName, containers: [] },
    status,
  };
}

/** Returns true if the caches show nothing on the host. */
function isEmpty(objects: Parameters<typeof sourcesWith>[0]): boolean {
  return seeEmpty(hostsIn(sourcesWith(objects)), new Map(), 1).has('rack');
}

describe('a host', () => {
  it('belongs to the oldest Server that names it', () => {
    const servers = [
      server('b', '2030-01-02T00:00:00Z'),
      server('a', '2030-01-01T00:00:00Z'),
      server('c', '2030-01-03T00:00:00Z'),
    ];
    expect(hostsIn(sourcesWith({ servers })).map((host) => host.server?.metadata.name)).toEqual(['a']);
  });

  it('is empty only without VM, Emulator, task and awaited machine', () => {
    expect(isEmpty({})).toBe(true);
    expect(isEmpty({ pods: [podOn('other')] })).toBe(true);
    expect(isEmpty({ pods: [podOn('rack', { phase: 'Running' })] })).toBe(false);
    // The disk of a VM that has failed can still be needed.
    expect(isEmpty({ pods: [podOn('rack', { phase: 'Failed' })] })).toBe(false);
    expect(isEmpty({ emulatorPods: [podOn('rack')] })).toBe(false);
    expect(isEmpty({ taskPods: [podOn('rack', { phase: 'Running' })] })).toBe(false);
    expect(isEmpty({ taskPods: [podOn('rack', { phase: 'Succeeded' })] })).toBe(true);
    const annotations = {
      'berth.dev/awaited-pods': JSON.stringify({ uid: { vm: 'a/b', since: '2030-01-01T00:00:00Z' } }),
    };
    const status = { conditions: [{ type: 'Ready', status: 'True' }] };
    expect(isEmpty({ nodes: [{ metadata: { name: 'rack', annotations }, status }] })).toBe(false);
  });

  it('is not empty while only it can do a Job that has not ended', () => {
    const matchFields = [{ key: 'metadata.name', operator: 'In', values: ['rack'] }];
    const affinity = {
      nodeAffinity: {
        requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: [{ matchFields }] },
      },
    };
    const job = (conditions: object[]) => ({
      metadata: { name: 'job', namespace: NAMESPACE, labels: {} },
      spec: { template: { spec: { affinity, containers: [] } } },
      status: { conditions },
    });
    expect(isEmpty({ jobs: [job([])] })).toBe(false);
    expect(isEmpty({ jobs: [job([{ type: 'Complete', status: 'True' }])] })).toBe(true);
  });

  it('is awaited by a stopped VM that must run, also before the Pod tells so', () => {
    const waiting = { waiting: { reason: 'Stopped' } };
    const pods = [
      podOn('rack', { phase: 'Running', containerStatuses: [{ name: 'machine', state: waiting }] }),
    ];
    const isAwaited = (uid: string, powerState: string | undefined) => {
      const vms = [{ metadata: { name: 'vm', namespace: NAMESPACE, uid }, spec: { powerState } }];
      return hostsIn(sourcesWith({ pods, vms }))[0]?.isAwaited;
    };
    expect(isAwaited('uid', undefined)).toBe(true);
    expect(isAwaited('uid', 'Running')).toBe(true);
    expect(isAwaited('uid', 'Stopped')).toBe(false);
    expect(isAwaited('another', 'Running')).toBe(false);
    const vms = [{ metadata: { name: 'vm', namespace: NAMESPACE, uid: 'uid' }, spec: {} }];
    expect(hostsIn(sourcesWith({ pods: [podOn('rack', { phase: 'Running' })], vms }))[0]?.isAwaited).toBe(
      false,
    );
  });
});

it('the oldest VM that the scheduler could not place comes first', () => {
  const waits = (name: string, creationTimestamp: string, reason: string) => ({
    metadata: { name, namespace: NAMESPACE, creationTimestamp, labels: { 'berth.dev/vm-uid': name } },
    spec: { containers: [] },
    status: { conditions: [{ type: 'PodScheduled', status: 'False', reason }] },
  });
  const pods = [
    waits('b', '2030-01-02T00:00:00Z', 'Unschedulable'),
    waits('gated', '2029-01-01T00:00:00Z', 'SchedulingGated'),
    waits('a', '2030-01-01T00:00:00Z', 'Unschedulable'),
    podOn('rack'),
  ];
  expect(waitingIn(sourcesWith({ pods })).map(({ metadata }) => metadata.name)).toEqual(['a', 'b']);
});
