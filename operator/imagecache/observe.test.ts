import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { timestamp } from '../../base/time.ts';
import { Store } from '../../kube/cache.ts';
import type { Informer } from '../../kube/informer.ts';
import type { Job } from '../../kube/core.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { parseConfig } from '../config/config.ts';
import { ENTRY_UID_LABEL, ownersOfPod, TASKS_BY_OWNER } from '../tasks/owner.ts';
import { observeEntry, type EntrySources, ENTRIES_BY_REFERENCE } from './observe.ts';

const NOW = Date.parse('2030-01-01T12:00:00Z');
const BEHIND = '2030-01-01T11:50:00Z';

const entry: ImageCacheEntry = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'ImageCacheEntry',
  metadata: { name: 'guest', uid: 'e' },
  spec: { reference: 'registry.example/guest:1' },
};

function holding<T extends KubeObject>(...objects: readonly unknown[]): Informer<T> {
  const indexes = { [TASKS_BY_OWNER]: ownersOfPod, [ENTRIES_BY_REFERENCE]: () => [] };
  const cache = new Store<T>(pino({ level: 'silent' }), indexes);
  objects.forEach((object) => cache.put(object as T));
  return { cache } as unknown as Informer<T>;
}

/** Returns caches without objects. */
function sourcesOf(): EntrySources {
  return {
    entries: holding(),
    images: holding(),
    nodes: holding(),
    namespaces: holding(),
    jobs: holding(),
    taskPods: holding(),
    pods: holding(),
    emulatorPods: holding(),
    config: parseConfig({}, 'test'),
    clock: () => NOW,
  };
}

/** Returns the outcome of a Job whose host finished the task at {@link BEHIND} by its own clock. */
function outcome(condition?: { type: string; lastTransitionTime: string }) {
  return observed(condition)?.outcome;
}

/** Returns the Job as observed. The Job's Pod has `conditions`. It has no host if `nodeName` is empty. */
function observed(
  condition?: { type: string; lastTransitionTime: string },
  conditions: object[] = [],
  nodeName = 'mac1',
) {
  const owner = { kind: 'Job', name: 'cache-1', uid: 'j', controller: true };
  const terminated = { exitCode: 0, reason: 'Completed', message: '', finishedAt: BEHIND };
  const job: Job = {
    apiVersion: 'batch/v1',
    kind: 'Job',
    metadata: { name: 'cache-1', namespace: 'berth-system', uid: 'j', labels: { [ENTRY_UID_LABEL]: 'e' } },
    spec: { template: { spec: { containers: [] } } },
    status: { conditions: condition === undefined ? [] : [{ ...condition, status: 'True' }] },
  };
  const pod = {
    metadata: { name: 'cache-1-x', namespace: 'berth-system', ownerReferences: [owner] },
    spec: { ...(nodeName !== '' && { nodeName }), containers: [] },
    status: { phase: 'Succeeded', conditions, containerStatuses: [{ state: { terminated } }] },
  };
  return observeEntry({ ...sourcesOf(), jobs: holding(job), taskPods: holding(pod) }, entry, [job]).jobs[0];
}

it('leaves out hosts that see only the Pods of one namespace', () => {
  const nodeOf = (name: string, label: string) => ({
    metadata: {
      name,
      labels: { 'berth.node-restriction.kubernetes.io/host': 'true', [label]: 'platform-ci' },
    },
  });
  const dedicated = nodeOf('given', 'berth.node-restriction.kubernetes.io/namespace');
  const nodes = [dedicated, nodeOf('confined', 'berth.dev/only-namespace')];
  const { hosts } = observeEntry({ ...sourcesOf(), nodes: holding(...nodes) }, entry, []);
  expect([...hosts.keys()]).toEqual(['given']);
});

describe('a Job that succeeded on a host whose clock is wrong', () => {
  it.each(['Complete', 'Failed'])('finished when the Job controller ended it (%s)', (type) => {
    const lastTransitionTime = '2030-01-01T11:59:58Z';
    const finishedAt = lastTransitionTime;
    expect(outcome({ type, lastTransitionTime })).toMatchObject({ kind: 'succeeded', finishedAt });
  });

  it('finishes now until the Job controller has ended it', () => {
    expect(outcome()).toMatchObject({ kind: 'succeeded', finishedAt: timestamp(NOW) });
  });
});

it('takes the scheduler’s explanation only from a Pod without a host, because a host can write any text', () => {
  const obstacleOf = (message: string, nodeName?: string) =>
    observed(undefined, [{ type: 'PodScheduled', status: 'False', message }], nodeName)?.obstacle;
  const message = '0/1 nodes are available: 1 Insufficient memory.';
  expect(obstacleOf(message, '')).toBe('No host is free: 1 short of memory');
  expect(obstacleOf(message)).toBeUndefined();
  // The operator would need seconds to read this text, and an hour to read a text of two megabytes.
  expect(obstacleOf(' '.repeat(100_000))).toBeUndefined();
});
