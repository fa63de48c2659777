/**
 * Checks the promises of an ImageCacheEntry over thousands of interleavings. Hosts, the scheduler, people and crashes of the
 * operator act in any order against the pure plan. The world here is a model of the API server and of agents for one entry.
 */
import { timestamp } from '../../base/time.ts';
import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  ACTIONS,
  type Action,
  FULL_HOST,
  LIMIT,
  OF_JOBS,
  type SimulatedJob,
  World,
} from '../../test/worlds/imagecache.ts';
import { assertHistories } from '../../test/support/properties.ts';
import { planEntry } from './plan.ts';
import { mergeDiff } from '../../kube/mergepatch.ts';

const FULL = 'HostFull: the host has no free slot';
const STORIES = { step: fc.tuple(fc.constantFrom(...ACTIONS), fc.nat(20)), maxLength: 150 };
/** Number of rounds of one minute. Retries wait up to an hour. */
const ROUNDS = 400;

function expectPromises(world: World): void {
  // A Job that has fetched the image stays until the status is stored, and then uses neither its host nor the registry.
  const working = world.jobs.filter(({ isParked, outcome }) => !isParked && outcome.kind !== 'succeeded');
  expect(working.length, 'never more Jobs at once than the limit').toBeLessThanOrEqual(LIMIT);
  for (const [name, host] of world.hosts) {
    if (!host.holds || host.isForgotten) {
      continue;
    }
    const isKnown = world.entry.status?.holders?.includes(name) === true;
    // A Job also keeps its host known, because a deleted Node may have come back while its Job still exists.
    const hasJob = world.jobs.some((job) => job.host === name && (job.isParked || job.type === 'cache'));
    expect(isKnown || hasJob, `nothing leaks on ${name}`).toBe(true);
  }
}

function tell(world: World, actions: readonly (readonly [Action, number])[]): World {
  for (const [action, pick] of actions) {
    world.act(action, pick);
    expectPromises(world);
  }
  return world;
}

describe('an ImageCacheEntry, in any order of events,', () => {
  it('keeps its limit, forgets no host, and ends with the image on its targets only', (context) => {
    assertHistories(context, { ...STORIES, numRuns: 250 }, (actions) => {
      const world = tell(new World(5), actions);
      expect(world.stabilize(ROUNDS), 'rounds until nothing is written any more').toBeLessThan(ROUNDS);
      expectPromises(world);
      for (const [name, host] of world.hosts) {
        if (world.isTarget(name)) {
          expect(host.digest, `${name} has the image`).toBeDefined();
        } else if (!host.isForgotten) {
          expect(host.holds, `${name} is clean`).toBe(false);
        }
      }
      const { status } = world.entry;
      expect(status?.cached).toBe((status?.desired ?? 0) - (status?.outdated ?? 0));
      expect(status?.nodes?.filter(({ state }) => state !== 'Outdated') ?? []).toEqual([]);
    });
  });

  it('idle-quiet: has the same status and nothing to do while nothing changes', (context) => {
    assertHistories(context, { ...STORIES, numRuns: 150 }, (actions) => {
      const world = tell(new World(5), actions);
      for (let second = 0; second < 3; second += 1) {
        world.reconcile();
        world.pass(1_000);
      }
      const again = planEntry(world.observe());
      expect(mergeDiff(world.entry.status, again.status)).toBeUndefined();
      expect(again.starts).toEqual([]);
      expect(again.deletes).toEqual([]);
    });
  });

  it('no-orphan: is removed only when no answering host keeps anything for it', (context) => {
    assertHistories(context, { ...STORIES, numRuns: 150 }, (actions) => {
      const middle = Math.floor(actions.length / 2);
      const world = tell(new World(5), actions.slice(0, middle));
      world.delete();
      tell(world, actions.slice(middle));
      world.stabilize(ROUNDS);
      expect(world.isReleased, 'it goes in the end').toBe(true);
      // Parked Jobs for lost hosts run once these hosts are back.
      for (const job of world.jobs) {
        world.act('schedule', world.jobs.indexOf(job));
      }
      for (const job of world.jobs) {
        world.act('succeed', world.jobs.indexOf(job));
      }
      for (const [name, host] of world.hosts) {
        expect(host.holds && !host.isForgotten, `${name} is clean`).toBe(false);
      }
    });
  });

  it('ends with every failing target Failed, and all others cached', () => {
    fc.assert(
      fc.property(fc.subarray([0, 1, 2, 3, 4, 5]), (bad) => {
        const world = new World(6);
        const isBad = (job: SimulatedJob) => bad.includes(Number(job.host.slice(5)));
        for (let round = 0; round < 60; round += 1) {
          world.reconcile();
          world.jobs.forEach((job, index) => {
            world.act('schedule', index);
            world.act(isBad(job) ? 'fail' : 'succeed', index);
          });
          world.pass(1_000);
        }
        expect(world.entry.status?.failed).toBe(bad.length);
        expect(world.entry.status?.cached).toBe(6 - bad.length);
      }),
      { numRuns: 50 },
    );
  });
});

describe('one host', () => {
  function act(world: World, host: string, ...actions: Action[]): void {
    for (const action of actions) {
      const isOfJob = OF_JOBS.some((one) => one === action);
      const job = world.jobs.findIndex((one) => one.host === host);
      world.act(action, isOfJob ? job : [...world.hosts.keys()].indexOf(host));
    }
  }

  function minutes(world: World, count: number): void {
    for (let minute = 0; minute < count; minute += 1) {
      world.pass(60_000);
      world.reconcile();
    }
  }

  it('that is full waits without a Job and without a write, until it has a slot or fails at the deadline', () => {
    const world = new World(1);
    act(world, 'host-0', 'fill', 'reconcile');
    // The reason for the wait is written only once.
    minutes(world, 2);
    expect(world.row('host-0')).toMatchObject({ state: 'Queued', message: FULL });
    for (let minute = 3; minute < 10; minute += 1) {
      world.pass(60_000);
      expect(world.reconcile()).toEqual({ wrote: false });
    }
    expect(world.jobs).toEqual([]);
    act(world, 'host-0', 'fill', 'reconcile');
    expect(world.jobs).toHaveLength(1);
    act(world, 'host-0', 'fill');
    minutes(world, 1);
    expect(world.row('host-0')).toMatchObject({ state: 'Failed', failures: 1 });
    expect(world.row('host-0')?.message).toMatch(
      /^DeadlineExceeded: image not fetched within 600 s: NotScheduled/,
    );
  });

  it('whose slot is taken before its Job is scheduled lets the next host begin, and waits for a slot', () => {
    const world = new World(LIMIT + 1);
    world.reconcile();
    world.reconcile();
    const [first = '', ...others] = world.jobs.map(({ host }) => host);
    const [next = ''] = [...world.hosts.keys()].filter((host) => host !== first && !others.includes(host));
    act(world, first, 'fill', 'schedule');
    others.forEach((host) => act(world, host, 'schedule'));
    const { queuedAt } = world.row(first) ?? {};
    minutes(world, 1);
    expect(world.jobs.map(({ host }) => host)).toEqual([...others, next]);
    expect(world.row(first)).toMatchObject({ state: 'Queued', queuedAt, triedAt: timestamp(world.now) });
    const message = `NotScheduled: the Job was not scheduled within 60 s: ${FULL_HOST}`;
    expect(world.row(first)?.message).toBe(message);
    act(world, next, 'schedule');
    minutes(world, 2);
    expect(world.jobs.map(({ host }) => host)).toEqual([...others, next]);
    expect(world.row(first)?.message).toBe(FULL);
  });

  it('that fails is tried again after a minute, then after two; a crash does not count a failure twice', () => {
    const world = new World(1);
    for (const [failures, wait] of [1, 2, 4].map((time, index) => [index + 1, time * 60_000] as const)) {
      act(world, 'host-0', 'reconcile', 'reconcile', 'schedule', 'fail', 'reconcileAndCrash', 'reconcile');
      const retryAt = timestamp(world.now + wait);
      expect(world.row('host-0')).toMatchObject({
        state: 'Failed',
        failures,
        retryAt,
        message: 'ImageFetchFailed: no',
      });
      world.reconcile();
      expect(world.jobs).toEqual([]);
      world.pass(wait);
    }
  });

  it('whose Job succeeds without a listed image within a minute has failed', () => {
    const world = new World(1);
    act(world, 'host-0', 'reconcile', 'reconcile', 'schedule', 'succeedInVain', 'reconcile');
    expect(world.jobs).toHaveLength(1);
    minutes(world, 1);
    expect(world.row('host-0')).toMatchObject({ state: 'Failed' });
    expect(world.row('host-0')?.message).toContain('does not list the image');
  });

  it('that is not Ready keeps a deleted entry until it counts as lost, and is cleaned when it returns', () => {
    const world = new World(2);
    world.stabilize(ROUNDS);
    act(world, 'host-1', 'silence');
    world.delete();
    minutes(world, 2);
    act(world, 'host-0', 'schedule', 'succeed');
    minutes(world, 1);
    expect(world.row('host-1')).toMatchObject({ state: 'Removing', message: 'The host is not Ready' });
    expect(world.row('host-0')).toBeUndefined();
    expect(world.isReleased).toBe(false);
    minutes(world, 5);
    expect(world.isReleased).toBe(true);
    minutes(world, 24 * 60);
    act(world, 'host-1', 'comeBack');
    act(world, 'host-1', 'schedule', 'succeed');
    expect(world.hosts.get('host-1')?.holds).toBe(false);
  });

  it('that is cordoned gets no image, but is cleaned: a deleted entry does not wait for it', () => {
    const world = new World(1);
    act(world, 'host-0', 'cordon');
    minutes(world, 3);
    expect([world.jobs, world.row('host-0')?.message]).toEqual([[], 'The host is cordoned']);
    act(world, 'host-0', 'pullByVM', 'reconcile');
    // A VM of another namespace can have brought the image. The host does not keep it for the entry.
    expect(world.entry.status).toMatchObject({ cached: 0, holders: ['host-0'] });
    world.delete();
    minutes(world, 2);
    act(world, 'host-0', 'schedule', 'succeed', 'reconcile', 'reconcile');
    expect([world.isReleased, world.hosts.get('host-0')?.holds]).toEqual([true, false]);
  });

  it('whose Node was deleted and has returned with its disk is cleaned with the entry', () => {
    const world = new World(1);
    world.stabilize(ROUNDS);
    act(world, 'host-0', 'removeNode', 'reconcile', 'returnNode', 'reconcile');
    expect(world.entry.status?.holders).toEqual(['host-0']);
    world.delete();
    world.stabilize(ROUNDS);
    expect([world.isReleased, world.hosts.get('host-0')?.holds]).toEqual([true, false]);
  });

  it('with an older image is Outdated until a newer one is requested, once for each request', () => {
    const world = new World(2);
    world.stabilize(ROUNDS);
    act(world, 'host-0', 'moveTag');
    world.addHost('late');
    world.stabilize(ROUNDS);
    expect(world.entry.status).toMatchObject({ digest: 'sha256:2', outdated: 2, cached: 1, desired: 3 });
    expect(world.row('host-0')).toEqual({
      node: 'host-0',
      state: 'Outdated',
      message: 'The host has the outdated image sha256:1',
    });
    world.act('refresh', 0);
    world.stabilize(ROUNDS);
    expect(world.entry.status).toMatchObject({
      outdated: 0,
      cached: 3,
      lastRefresh: world.entry.spec.refreshRequestedAt,
    });
    world.act('moveTag', 0);
    expect(world.stabilize(ROUNDS), 'nothing more to do').toBe(0);
  });

  it.each(['reconcile', 'succeed', 'fail', 'fill'] as const)(
    'whose Job was under way at a request for a newer image fetches it nevertheless (%s)',
    (end) => {
      const world = new World(1);
      act(world, 'host-0', 'reconcile', 'reconcile', 'schedule');
      if (end === 'fill') {
        world.jobs = world.jobs.map((job) => ({ ...job, isScheduled: false }));
      }
      world.pass(end === 'fill' ? 60_000 : 1_000);
      act(world, 'host-0', end, 'pullByVM', 'moveTag', 'refresh', 'reconcile');
      world.stabilize(ROUNDS);
      expect(world.hosts.get('host-0')?.digest).toBe('sha256:2');
      expect(world.entry.status?.lastRefresh).toBe(world.entry.spec.refreshRequestedAt);
    },
  );
});
