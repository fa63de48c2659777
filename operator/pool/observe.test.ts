import { describe, expect, it } from 'vitest';
import { API_VERSION, POOL_REVISION_LABEL } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMPool, VMPoolSpec } from '../../api/v1alpha1/vmpool.ts';
import { parseConfig } from '../config/config.ts';
import { observePool, type PoolSources } from './observe.ts';

const NOW = Date.parse('2030-01-01T01:00:00Z');
const TEMPLATE = { spec: { image: 'base' } } as const;

interface World {
  readonly image?: object;
  readonly vms?: readonly VM[];
  readonly spec?: Partial<VMPoolSpec>;
}

function observe({ image, vms = [], spec = {} }: World) {
  const empty = { cache: { get: () => undefined, list: () => [], byIndex: () => [] } };
  const images = { cache: { ...empty.cache, get: () => image } };
  const all = {
    vmConfigs: empty,
    isos: empty,
    nodes: empty,
    namespaces: empty,
    pods: empty,
    emulatorPods: empty,
  };
  const sources = {
    ...all,
    taskPods: empty,
    images,
    vms: { cache: { ...empty.cache, byIndex: () => vms } },
    config: parseConfig({}, 'test'),
    clock: () => NOW,
  } as unknown as PoolSources;
  const pool: VMPool = {
    apiVersion: API_VERSION,
    kind: 'VMPool',
    metadata: { name: 'ci', namespace: 'platform-default', uid: 'pool' },
    spec: { replicas: 1, template: TEMPLATE, ...spec },
  };
  return observePool(sources, pool, { deleted: new Set(), isAwaitedOn: () => false });
}

function image(digest: string | undefined, phase = 'Ready'): object {
  const metadata = { name: 'base', namespace: 'platform-default', uid: 'image' };
  const spec = { source: { registry: { reference: 'registry.example/guest:1' } } };
  return { apiVersion: API_VERSION, kind: 'Image', metadata, spec, status: { phase, digest } };
}

type Conditions = NonNullable<NonNullable<VM['status']>['conditions']>;

function vm(status: NonNullable<VM['status']>, revision = ''): VM {
  const labels = { [POOL_REVISION_LABEL]: revision };
  const metadata = { name: 'ci-1', namespace: 'platform-default', uid: 'vm', generation: 1, labels };
  const creationTimestamp = new Date(NOW - 30_000).toISOString();
  return {
    apiVersion: API_VERSION,
    kind: 'VM',
    metadata: { ...metadata, creationTimestamp },
    spec: {},
    status,
  };
}

function condition(type: string, status: 'True' | 'False', secondsAgo: number): Conditions[number] {
  const lastTransitionTime = new Date(NOW - secondsAgo * 1_000).toISOString();
  return {
    type,
    status,
    reason: 'Some',
    message: `${type} is ${status}`,
    lastTransitionTime,
    observedGeneration: 1,
  };
}

function stateOf(status: NonNullable<VM['status']>, spec?: Partial<VMPoolSpec>): string | undefined {
  return observe({ image: image('sha256:a'), vms: [vm(status)], spec: spec ?? {} }).members[0]?.state;
}

describe('a VM of a pool', () => {
  it('fails if it is not Ready in time after it got a host, and never without a host', () => {
    const conditions = [condition('Scheduled', 'True', 601), condition('Ready', 'False', 700)];
    expect(stateOf({ nodeName: 'host', conditions })).toBe('failed');
    expect(stateOf({ nodeName: 'host', conditions }, { readyDeadlineSeconds: 700 })).toBe('starting');
    const waits = [condition('Scheduled', 'False', 9_000), condition('Ready', 'False', 9_000)];
    expect(stateOf({ conditions: waits })).toBe('unplaced');
  });

  it('is ready, must be suspended, has failed, or has done its job', () => {
    const ready = { nodeName: 'host', conditions: [condition('Ready', 'True', 5)] };
    expect(stateOf(ready)).toBe('ready');
    const suspended = { template: { spec: { image: 'base', powerState: 'Suspended' } } } as const;
    expect(stateOf(ready, suspended)).toBe('booted');
    const failure = { reason: 'MachineFailed', message: 'no disk', time: '2030-01-01T00:00:00Z' };
    expect(stateOf({ failure })).toBe('failed');
    const end = { ...condition('Stalled', 'True', 5), reason: 'GuestShutdown' };
    const firstRunningTime = new Date(NOW - 60_000).toISOString();
    expect(stateOf({ firstRunningTime, conditions: [end] })).toBe('failed');
    expect(stateOf({ firstRunningTime, conditions: [end] }, { mode: 'OneShot' })).toBe('ended');
    const early = new Date(NOW - 8_000).toISOString();
    expect(stateOf({ firstRunningTime: early, conditions: [end] }, { mode: 'OneShot' })).toBe('failed');
  });
});

describe('the revision of a pool', () => {
  it('changes with the template and with the content of its image, and makes earlier VMs stale', () => {
    const first = observe({ image: image('sha256:a') });
    const revisions = [
      first,
      observe({ image: image('sha256:b') }),
      observe({ image: image('sha256:a'), spec: { template: { spec: { image: 'base', cpu: 2 } } } }),
    ].map(({ revision }) => revision);
    expect(new Set(revisions).size).toBe(3);
    const vms = [vm({}, first.revision)];
    expect(observe({ image: image('sha256:a'), vms }).members[0]?.isStale).toBe(false);
    expect(observe({ image: image('sha256:b'), vms }).members[0]?.isStale).toBe(true);
  });

  it('waits for an image that is missing or not Ready', () => {
    expect(observe({}).missing).toBe('Image base was not found');
    expect(observe({ image: image(undefined, 'Pulling') }).missing).toBe('Image base is not Ready');
    expect(observe({ image: image('sha256:a', 'Updating') }).missing).toBeUndefined();
  });
});
