import { describe, expect, it } from 'vitest';
import type { NodeCacheState } from '../../api/v1alpha1/imagecacheentry.ts';
import { parseConfig } from '../config/config.ts';
import { attemptKey } from './attempt.ts';
import { resolveImage } from './image.ts';
import { buildJob } from './job.ts';
import type { CacheJob, ObservedEntry } from './observed.ts';
import { planEntry } from './plan.ts';

const NOW = Date.parse('2030-01-01T00:10:00Z');
const queuedAt = '2030-01-01T00:00:00.000Z';

/**
 * Returns the observed state of an entry whose hosts are queued as `rows` states. Hosts in `full` have no free slot. `limit` is
 * the number of Jobs at once.
 */
function observe(
  rows: readonly Omit<NodeCacheState, 'state'>[],
  full: readonly string[],
  limit: number,
): ObservedEntry {
  const names = rows.map(({ node }) => node);
  const entry = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'ImageCacheEntry',
    metadata: { name: 'guest', namespace: 'platform-ci', uid: 'uid' },
    spec: { reference: 'registry.example/guest', targets: { all: true } },
    status: { nodes: rows.map((row) => ({ ...row, state: 'Queued' })), holders: names },
  };
  return {
    entry,
    jobNamespace: 'platform-ci',
    reference: 'registry.example/guest:latest',
    image: resolveImage(entry, undefined),
    duplicateOf: undefined,
    hosts: new Map(
      names.map((name) => [
        name,
        {
          name,
          tags: new Set(),
          notReadySince: undefined,
          isCordoned: false,
          isUsable: true,
          dedicatedTo: undefined,
          images: [],
        },
      ]),
    ),
    freeSlots: (host) => (full.includes(host) ? 0 : 1),
    jobs: [],
    credentials: [],
    lingering: new Set(),
    config: parseConfig({ cacheJobsPerEntry: limit }, 'test'),
    now: NOW,
  };
}

/** Returns the names of the hosts whose work begins next. */
function next(...queue: Parameters<typeof observe>): string[] {
  return planEntry(observe(...queue)).starts.map(({ host }) => host);
}

describe('the queue of an entry', () => {
  const hosts = ['a', 'b', 'c', 'd', 'e'];

  it('leaves out hosts without a free slot', () => {
    const rows = hosts.map((node) => ({ node, queuedAt }));
    expect(next(rows, ['a', 'b', 'c'], 2).toSorted()).toEqual(['d', 'e']);
    expect(next(rows, ['a', 'b', 'c'], 5).toSorted()).toEqual(['d', 'e']);
  });

  it('moves a host whose attempt was in vain to its end', () => {
    const tried = (minute: number) => `2030-01-01T00:0${minute}:00.000Z`;
    const rows = [
      { node: 'a', queuedAt, triedAt: tried(3) },
      { node: 'b', queuedAt, triedAt: tried(1) },
      { node: 'c', queuedAt },
      { node: 'd', queuedAt, triedAt: tried(2) },
      { node: 'e', queuedAt: tried(4) },
    ];
    expect(next(rows, [], 5)).toEqual(['c', 'b', 'd', 'a', 'e']);
  });
});

it('gives a host the words of the API server that refused its Job, until no Job is refused', () => {
  const quota = 'jobs.batch "x" is forbidden: exceeded quota: small';
  const rows = [{ node: 'a', queuedAt }];
  const refused = planEntry(observe(rows, [], 1), quota);
  const message = `JobRefused: ${quota}`;
  expect(refused.status.nodes).toEqual([{ node: 'a', queuedAt, state: 'Queued', message }]);
  expect(refused.starts).toHaveLength(1);
  const again = observe([{ node: 'a', queuedAt, message }], [], 1);
  expect(planEntry(again).status.nodes).toEqual([{ node: 'a', queuedAt, state: 'Queued' }]);
  const late = planEntry({ ...again, now: NOW + 3 * 3_600_000 }, quota).status.nodes?.[0]?.message;
  expect(late).toBe(`DeadlineExceeded: image not fetched within 10800 s: ${message}`);
});

it('keeps an entry while a host has a Job of it, even if the status has lost the host', () => {
  const observed = observe([{ node: 'a', queuedAt }], [], 1);
  const { metadata } = observed.entry;
  const job: CacheJob = {
    name: 'job',
    namespace: 'platform-ci',
    uid: 'job-uid',
    host: 'a',
    type: 'cache',
    createdAt: NOW,
    attempt: 'of the past',
    isParked: false,
    isScheduled: true,
    obstacle: undefined,
    outcome: { kind: 'succeeded', report: {}, finishedAt: undefined },
  };
  const entry = { ...observed.entry, metadata: { ...metadata, deletionTimestamp: queuedAt }, status: {} };
  const planned = planEntry({ ...observed, entry, jobs: [job] });
  expect(planned).toMatchObject({ isReleased: false, status: { holders: ['a'] } });
});

it('removes an image also from a host whose disk is nearly full, because the removal frees space', () => {
  const observed = observe([{ node: 'a', queuedAt }], [], 1);
  const row: NodeCacheState = { node: 'a', state: 'Queued', queuedAt };
  const toleratedBy = (type: 'cache' | 'uncache') => {
    const job = buildJob(observed, { type, host: 'a', row, isParked: false });
    return job?.spec.template.spec.tolerations?.map(({ key }) => key);
  };
  const pressure = 'node.kubernetes.io/disk-pressure';
  expect(toleratedBy('uncache')).toContain(pressure);
  expect(toleratedBy('cache')).not.toContain(pressure);
});

it('fetches nothing in the system namespace, where an entry could choose a Secret', () => {
  const observed = observe([{ node: 'a', queuedAt }], [], 1);
  const row: NodeCacheState = { node: 'a', state: 'Queued', queuedAt };
  const namespaceOf = (type: 'cache' | 'uncache') =>
    buildJob({ ...observed, jobNamespace: 'berth-system' }, { type, host: 'a', row, isParked: false })
      ?.metadata.namespace;
  expect([namespaceOf('cache'), namespaceOf('uncache')]).toEqual([undefined, 'berth-system']);
});

describe('a host that should remove the image', () => {
  const NOT_SCHEDULED = 'NotScheduled: the Job was not scheduled within 60 s: the host has the taint off';
  const queued: NodeCacheState = { node: 'a', state: 'Removing', queuedAt };

  /** Returns the message about the host. Its state is `row`, and it has a Job of the current attempt if `job` is given. */
  function messageAbout(
    row: NodeCacheState,
    job?: Pick<CacheJob, 'isScheduled' | 'obstacle'> & Partial<CacheJob>,
  ) {
    const observed = observe([row], [], 1);
    const entry = { ...observed.entry, spec: { reference: 'registry.example/guest' } };
    const status = { nodes: [row], holders: ['a'] };
    const about = {
      name: 'job',
      namespace: 'platform-ci',
      uid: 'job-uid',
      host: 'a',
      type: 'uncache',
      createdAt: NOW - 60_000,
    } as const;
    const outcome = { kind: 'waiting', message: '' } as const;
    const jobs = job && [{ ...about, isParked: false, attempt: attemptKey(row), outcome, ...job }];
    return planEntry({ ...observed, entry: { ...entry, status }, jobs: jobs ?? [] }).status.nodes?.[0]
      ?.message;
  }

  it('has the reason why its Job did not begin, until a Job begins', () => {
    const obstacle = 'the host has the taint off';
    expect(messageAbout(queued, { isScheduled: false, obstacle })).toBe(NOT_SCHEDULED);
    const tried = { ...queued, triedAt: queuedAt, message: NOT_SCHEDULED };
    expect(messageAbout(tried)).toBe(NOT_SCHEDULED);
    expect(messageAbout(tried, { isScheduled: true, obstacle: undefined })).toBeUndefined();
  });

  it('has the words with which the API server refuses the Pod of its Job, until there is a Pod', () => {
    const expected = 'pods "uncache-1" is forbidden: exceeded quota: small';
    const message = `PodRefused: ${expected}`;
    const waits = { isScheduled: false, obstacle: undefined };
    const outcome = { kind: 'waiting', reason: 'PodRefused', message: expected } as const;
    expect(messageAbout(queued, { ...waits, outcome, createdAt: NOW })).toBe(message);
    expect(messageAbout(queued, { ...waits, outcome })).toBe(message);
    const reported = { ...queued, message };
    expect(messageAbout(reported, { ...waits, createdAt: NOW })).toBe(message);
    expect(
      messageAbout(reported, { ...waits, createdAt: NOW, obstacle: 'the host is full' }),
    ).toBeUndefined();
  });

  it('that is Ready again does not keep the message that it is not Ready while it waits for its turn', () => {
    expect(messageAbout({ ...queued, message: 'The host is not Ready' })).toBeUndefined();
  });
});
