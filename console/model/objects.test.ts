import { expect, it } from 'vitest';
import { hostCaches, lastActionOf, rolloutOf, runnerCounts } from './objects.ts';

/** The functions read only the fields that the tests give. */
const of = (value: object) => value as never;

it.each([
  [{ replicas: 3, revision: 'b', readyRevision: 'b' }, {}, 'current'],
  [{ replicas: 3 }, {}, 'current'],
  [
    { replicas: 3, staleReplicas: 2, revision: 'b', readyRevision: 'a' },
    {},
    '1 of 3 new, as VMs are claimed',
  ],
  [{ replicas: 3, staleReplicas: 2 }, { update: { type: 'Replace' } }, '1 of 3 new, replacing'],
  [{ replicas: 1, revision: 'b', readyRevision: 'a' }, {}, 'first VM not ready yet'],
  [{ replicas: 3, staleReplicas: 1, failures: { count: 2 } }, {}, '2 failed in a row'],
])('a pool with the status %j is %j %s', (status, spec, text) => {
  expect(rolloutOf(of({ spec, status }))).toBe(text);
});

it('counts the jobs that wait, run, and the runners without one', () => {
  const statistics = { totalAssignedJobs: 5, totalRunningJobs: 3, totalIdleRunners: 1 };
  expect(runnerCounts(of({ status: { statistics } }))).toEqual({ queued: 2, running: 3, idle: 1 });
  expect(runnerCounts(of({}))).toBeUndefined();
});

it('tells the last power action, or the one that waits', () => {
  const lastAction = { action: 'Off', result: 'Refused', by: 'ann' };
  const status = { lastAction, lastRequestedAt: '2026-11-30T12:00:00Z' };
  expect(lastActionOf(of({ spec: {}, status }))).toBe('Off: Refused (ann)');
  const powerAction = { action: 'On', requestedAt: '2026-11-30T12:00:01Z' };
  expect(lastActionOf(of({ spec: { powerAction }, status }))).toBe('On: requested');
  expect(lastActionOf(of({ spec: {} }))).toBe('');
});

it('groups the cached images by their hosts', () => {
  const entries = [
    {
      metadata: { name: 'a' },
      spec: { reference: 'ubuntu' },
      status: {
        normalizedReference: 'docker.io/library/ubuntu:latest',
        holders: ['host-10', 'host-2'],
        nodes: [{ node: 'host-10', state: 'Failed', message: 'no room' }],
      },
    },
    { metadata: { name: 'b' }, spec: { imageRef: { name: 'macos' } }, status: { holders: ['host-10'] } },
    { metadata: { name: 'c' }, spec: { reference: 'new' } },
  ];
  expect(hostCaches(of(entries))).toEqual([
    { host: 'host-2', cached: 1, others: [] },
    {
      host: 'host-10',
      cached: 1,
      others: [{ image: 'docker.io/library/ubuntu:latest', state: 'Failed', message: 'no room' }],
    },
  ]);
});
