/**
 * The promises of an ImageCacheEntry over thousands of interleavings: what hosts, the scheduler, people and crashes of the
 * operator do, in any order, against the pure plan. The world here is a model of the API server and of agents for one entry.
 */
import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { ImageCacheEntry } from '../../../api/v1alpha1/imagecacheentry.ts';
import { assertHistories } from '../../../test/support/properties.ts';
import { parseConfig } from '../../config.ts';
import { mergeDiff } from '../../mergepatch.ts';
import { resolveImage } from './image.ts';
import { PARKED_SECONDS, buildJob } from './job.ts';
import { type CacheJob, type Host, iso, type Observed } from './observed.ts';
import { plan, type Start } from './plan.ts';
import { bringsFacts } from './status.ts';
import { turnOf } from './turn.ts';

const LIMIT = 3;
const REFERENCE = 'registry.example/guest:1';
const FULL = 'HostFull: no place of the host is free';
const config = parseConfig(
  { cacheJobsPerEntry: LIMIT, cache_job_active_deadline_seconds: 600, hostLostTimeoutSeconds: 300 },
  'test',
);

interface SimulatedHost {
  tags: Set<string>;
  notReadySince: number | undefined;
  isCordoned: boolean;
  isFull: boolean;
  digest: string | undefined;
  /** By the agent's own books. */
  holds: boolean;
}

interface SimulatedJob extends CacheJob {
  isRefresh: boolean;
  endsAt: number;
}

const OF_WORLD = ['tick', 'wait', 'targetAll', 'targetTag', 'moveTag', 'refresh', 'addNode'] as const;
const OF_JOBS = ['schedule', 'succeed', 'succeedInVain', 'fail'] as const;
const OF_HOSTS = [
  'fill',
  'silence',
  'comeBack',
  'cordon',
  'removeNode',
  'retag',
  'pullByVM',
  'evict',
] as const;
const OFTEN = ['reconcile', 'reconcile', 'reconcile', 'reconcileAndCrash', 'schedule', 'succeed'] as const;
const ACTIONS = [...OFTEN, ...OF_WORLD, ...OF_JOBS, ...OF_HOSTS];
type Action = (typeof ACTIONS)[number];

class World {
  now = Date.parse('2030-01-01T00:00:00Z');
  readonly hosts = new Map<string, SimulatedHost>();
  jobs: SimulatedJob[] = [];
  tagDigest = 'sha256:1';
  isReleased = false;
  entry: ImageCacheEntry = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'ImageCacheEntry',
    metadata: { name: 'guest', uid: 'entry-uid', generation: 1, creationTimestamp: '2030-01-01T00:00:00Z' },
    spec: { reference: REFERENCE, targets: { all: true } },
  };
  #uids = 0;
  #heldSince: number | undefined;

  constructor(count: number) {
    for (let index = 0; index < count; index += 1) this.addHost(`host-${index}`);
  }

  observe(): Observed {
    return {
      entry: this.entry,
      reference: REFERENCE,
      image: resolveImage(this.entry, undefined),
      duplicateOf: undefined,
      hosts: new Map([...this.hosts].map(([name, host]) => [name, viewOf(name, host)])),
      freeSlots: (name) => (this.hosts.get(name)?.isFull === true ? 0 : 4),
      jobs: this.jobs,
      lingering: new Set(),
      config,
      now: this.now,
    };
  }

  /** As the controller does it; a crash comes after the status at the latest. */
  reconcile(crashes = false): { wrote: boolean } {
    if (this.isReleased) return { wrote: false };
    const observed = this.observe();
    const planned = plan(observed);
    const differs = mergeDiff(this.entry.status, planned.status) !== undefined;
    const mustWrite = bringsFacts(this.entry.status, planned.status);
    this.#heldSince = differs ? (this.#heldSince ?? this.now) : undefined;
    if (differs && (mustWrite || this.now >= (this.#heldSince ?? 0) + 1_000)) {
      this.entry = { ...this.entry, status: planned.status };
      this.#heldSince = undefined;
    }
    if (crashes) return { wrote: differs };
    this.jobs = this.jobs.filter((job) => !planned.deletes.includes(job));
    for (const start of planned.starts) this.#create({ ...observed, entry: this.entry }, start);
    this.isReleased = planned.isReleased;
    return { wrote: differs || planned.deletes.length > 0 || planned.starts.length > 0 };
  }

  act(action: Action, pick: number): void {
    const name = [...this.hosts.keys()][pick % Math.max(1, this.hosts.size)];
    const host = name === undefined ? undefined : this.hosts.get(name);
    const job = this.jobs[pick % Math.max(1, this.jobs.length)];
    if (OF_JOBS.some((one) => one === action)) this.#actOnJob(action, job);
    else if (OF_HOSTS.some((one) => one === action)) this.#actOnHost(action, name, host);
    else this.#actOnWorld(action);
  }

  /** Everything answers and has room, and all work that is begun succeeds. Returns after how many rounds nothing was written. */
  settle(rounds: number): number {
    for (const host of this.hosts.values()) {
      host.notReadySince = undefined;
      host.isCordoned = false;
      host.isFull = false;
    }
    for (let round = 0; round < rounds; round += 1) {
      const { wrote } = this.reconcile();
      for (let index = 0; index < this.jobs.length; index += 1) {
        this.act('schedule', index);
        this.act('succeed', index);
      }
      if (!wrote && this.jobs.length === 0 && !this.#waitsForRetry()) return round;
      this.pass(61_000);
    }
    return rounds;
  }

  /** What is over its time is ended by the Job controller, also on hosts that do not answer. */
  pass(milliseconds: number): void {
    this.now += milliseconds;
    for (const job of this.jobs.filter(({ endsAt }) => endsAt <= this.now)) {
      if (job.outcome.kind === 'waiting') this.#replace(job, failedWith('DeadlineExceeded', ''));
    }
  }

  row(name: string) {
    return this.entry.status?.nodes?.find(({ node }) => node === name);
  }

  delete(): void {
    this.entry = { ...this.entry, metadata: { ...this.entry.metadata, deletionTimestamp: iso(this.now) } };
  }

  isTarget(name: string): boolean {
    const { all, tags = [] } = this.entry.spec.targets ?? {};
    const isTagged = tags.some((tag) => this.hosts.get(name)?.tags.has(tag));
    return this.entry.metadata.deletionTimestamp === undefined && (all === true || isTagged);
  }

  #waitsForRetry(): boolean {
    return (this.entry.status?.nodes ?? []).some(({ state }) => state !== 'Outdated');
  }

  addHost(name: string): void {
    this.hosts.set(name, {
      tags: new Set(),
      notReadySince: undefined,
      isCordoned: false,
      isFull: false,
      digest: undefined,
      holds: false,
    });
  }

  #create(observed: Observed, start: Start): void {
    const job = buildJob(observed, start);
    if (job === undefined) return;
    const name = job.metadata.name ?? '';
    expect(
      this.jobs.map((one) => one.name),
      'one Job for each host and kind of work',
    ).not.toContain(name);
    const host = this.hosts.get(start.host);
    const isRefresh = start.row.refresh === true;
    if (start.type === 'cache') {
      expect(host?.digest === undefined || isRefresh, 'no Job for a host that has the image').toBe(true);
    }
    expect(this.entry.status?.holders ?? [], 'written down before it is done').toContain(start.host);
    this.#uids += 1;
    this.jobs.push({
      name,
      uid: `job-${this.#uids}`,
      host: start.host,
      type: start.type,
      createdAt: Math.floor(this.now / 1000) * 1000,
      turn: turnOf(start.row),
      isParked: job.spec.activeDeadlineSeconds === PARKED_SECONDS,
      isScheduled: false,
      outcome: { kind: 'waiting', message: '' },
      isRefresh,
      endsAt: this.now + (job.spec.activeDeadlineSeconds ?? 0) * 1000,
    });
  }

  #replace(job: SimulatedJob, change: Partial<SimulatedJob>): void {
    this.jobs = this.jobs.map((one) => (one.uid === job.uid ? { ...one, ...change } : one));
  }

  #actOnWorld(action: Action): void {
    const { spec } = this.entry;
    switch (action) {
      case 'reconcile':
      case 'reconcileAndCrash':
        this.reconcile(action === 'reconcileAndCrash');
        break;
      case 'tick':
        this.pass(1_000);
        break;
      case 'wait':
        this.pass(100_000);
        break;
      case 'targetAll':
      case 'targetTag':
        this.entry = {
          ...this.entry,
          spec: { ...spec, targets: action === 'targetAll' ? { all: true } : { tags: ['a'] } },
        };
        break;
      case 'moveTag':
        this.tagDigest = `sha256:${Number(this.tagDigest.slice(7)) + 1}`;
        break;
      case 'refresh':
        this.entry = { ...this.entry, spec: { ...spec, refreshRequestedAt: iso(this.now) } };
        break;
      case 'addNode':
        if (this.hosts.size < 8) this.addHost(`late-${this.now}`);
        break;
      default:
    }
  }

  #actOnJob(action: Action, job: SimulatedJob | undefined): void {
    if (job === undefined) return;
    const host = this.hosts.get(job.host);
    const answers = host?.notReadySince === undefined && host !== undefined;
    const isOver = job.outcome.kind === 'succeeded' || job.outcome.kind === 'failed';
    switch (action) {
      case 'schedule':
        if (answers && !host.isCordoned && !(host.isFull && job.type === 'cache')) {
          this.#replace(job, { isScheduled: true });
        }
        break;
      case 'succeed':
      case 'succeedInVain':
        if (answers && job.isScheduled && !isOver) {
          // An agent that lies about a removal cannot be found out; one that lists no image can.
          if (action === 'succeed' || job.type === 'uncache') this.#work(host, job);
          const outcome = { kind: 'succeeded', report: {}, finishedAt: iso(this.now) } as const;
          this.#replace(job, { outcome });
        }
        break;
      case 'fail':
        // The Job controller tries a parked one again.
        if (job.isScheduled && !isOver && !job.isParked) {
          this.#replace(job, failedWith('ImageFetchFailed', 'no'));
        }
        break;
      default:
    }
  }

  #work(host: SimulatedHost, job: SimulatedJob): void {
    host.holds = job.type === 'cache';
    if (job.type === 'uncache') host.digest = undefined;
    else if (host.digest === undefined || job.isRefresh) host.digest = this.tagDigest;
  }

  #actOnHost(action: Action, name: string | undefined, host: SimulatedHost | undefined): void {
    if (name === undefined || host === undefined) return;
    if (action === 'fill') host.isFull = !host.isFull;
    if (action === 'silence') host.notReadySince ??= this.now;
    if (action === 'comeBack') host.notReadySince = undefined;
    if (action === 'cordon') host.isCordoned = !host.isCordoned;
    if (action === 'removeNode') this.hosts.delete(name);
    if (action === 'retag' && !host.tags.delete('a')) host.tags.add('a');
    if (action === 'pullByVM') host.digest ??= this.tagDigest;
    if (action === 'evict' && !host.holds) host.digest = undefined;
  }
}

function failedWith(reason: string, message: string): Pick<CacheJob, 'outcome'> {
  return { outcome: { kind: 'failed', reason, message, finishedAt: undefined } };
}

function viewOf(name: string, host: SimulatedHost): Host {
  const { tags, notReadySince, isCordoned, digest } = host;
  const repository = REFERENCE.replace(/:1$/, '');
  const images = digest === undefined ? [] : [[REFERENCE, `${repository}@${digest}`]];
  return { name, tags, notReadySince, isCordoned, images };
}

const STORIES = { step: fc.tuple(fc.constantFrom(...ACTIONS), fc.nat(20)), maxLength: 150 };
/** Minutes: retries wait up to an hour. */
const ROUNDS = 400;

function expectPromises(world: World): void {
  const unparked = world.jobs.filter(({ isParked }) => !isParked);
  expect(unparked.length, 'never more Jobs at once than the limit').toBeLessThanOrEqual(LIMIT);
  for (const [name, host] of world.hosts) {
    if (!host.holds) continue;
    const isKnown = world.entry.status?.holders?.includes(name) === true;
    // A Job stands for its host too: a Node that was away may be back with it.
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

describe('an ImageCacheEntry, whatever happens', () => {
  it('keeps its limit, forgets no host, and ends with the image on its targets alone', (context) => {
    assertHistories(context, { ...STORIES, numRuns: 250 }, (actions) => {
      const world = tell(new World(5), actions);
      expect(world.settle(ROUNDS), 'rounds until nothing is written any more').toBeLessThan(ROUNDS);
      expectPromises(world);
      for (const [name, host] of world.hosts) {
        if (world.isTarget(name)) expect(host.digest, `${name} has the image`).toBeDefined();
        else expect(host.holds, `${name} is clean`).toBe(false);
      }
      const { status } = world.entry;
      expect(status?.cached).toBe((status?.desired ?? 0) - (status?.outdated ?? 0));
      expect(status?.nodes?.filter(({ state }) => state !== 'Outdated') ?? []).toEqual([]);
    });
  });

  it('idle-quiet: a world that stays as it is gives the same status and nothing to do', (context) => {
    assertHistories(context, { ...STORIES, numRuns: 150 }, (actions) => {
      const world = tell(new World(5), actions);
      for (let second = 0; second < 3; second += 1) {
        world.reconcile();
        world.pass(1_000);
      }
      const again = plan(world.observe());
      expect(mergeDiff(world.entry.status, again.status)).toBeUndefined();
      expect(again.starts).toEqual([]);
      expect(again.deletes).toEqual([]);
    });
  });

  it('no-orphan: goes only when no host that answers keeps anything for it', (context) => {
    assertHistories(context, { ...STORIES, numRuns: 150 }, (actions) => {
      const middle = Math.floor(actions.length / 2);
      const world = tell(new World(5), actions.slice(0, middle));
      world.delete();
      tell(world, actions.slice(middle));
      world.settle(ROUNDS);
      expect(world.isReleased, 'it goes in the end').toBe(true);
      // What was parked for lost hosts runs once they are back.
      for (const job of world.jobs) world.act('schedule', world.jobs.indexOf(job));
      for (const job of world.jobs) world.act('succeed', world.jobs.indexOf(job));
      for (const [name, host] of world.hosts) expect(host.holds, `${name} is clean`).toBe(false);
    });
  });

  it('every target of hosts that only fail ends Failed, with all others cached', () => {
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

  it('that is full waits without a Job and without a write, until it has a place or fails at the deadline', () => {
    const world = new World(1);
    act(world, 'host-0', 'fill', 'reconcile');
    // Its reason is written once.
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
    expect(world.row('host-0')?.message).toMatch(/^DeadlineExceeded: not done within 600 s: HostFull/);
  });

  it('whose place another takes before its Job is scheduled gives its turn to the next, and waits for a place', () => {
    const world = new World(1);
    act(world, 'host-0', 'reconcile', 'reconcile', 'fill');
    const { queuedAt } = world.row('host-0') ?? {};
    minutes(world, 1);
    expect(world.row('host-0')).toMatchObject({ state: 'Queued', queuedAt, triedAt: iso(world.now) });
    expect(world.row('host-0')?.message).toMatch(/^HostFull: its job was not scheduled/);
    minutes(world, 2);
    expect([world.jobs, world.row('host-0')?.message]).toEqual([[], FULL]);
  });

  it('that fails is tried again after a minute, then after two; a crash does not count a failure twice', () => {
    const world = new World(1);
    for (const [failures, wait] of [1, 2, 4].map((time, index) => [index + 1, time * 60_000] as const)) {
      act(world, 'host-0', 'reconcile', 'reconcile', 'schedule', 'fail', 'reconcileAndCrash', 'reconcile');
      const retryAt = iso(world.now + wait);
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

  it('whose job succeeds without an image listed within a minute has failed', () => {
    const world = new World(1);
    act(world, 'host-0', 'reconcile', 'reconcile', 'schedule', 'succeedInVain', 'reconcile');
    expect(world.jobs).toHaveLength(1);
    minutes(world, 1);
    expect(world.row('host-0')).toMatchObject({ state: 'Failed' });
    expect(world.row('host-0')?.message).toContain('does not list the image');
  });

  it('that is not Ready keeps a deleted entry until it counts as lost, and is cleaned when it is back', () => {
    const world = new World(2);
    world.settle(ROUNDS);
    act(world, 'host-1', 'silence');
    world.delete();
    minutes(world, 2);
    act(world, 'host-0', 'schedule', 'succeed');
    minutes(world, 1);
    expect(world.row('host-1')).toMatchObject({ state: 'Removing', message: 'the host is not Ready' });
    expect(world.row('host-0')).toBeUndefined();
    minutes(world, 5);
    expect(world.isReleased).toBe(true);
    minutes(world, 24 * 60);
    act(world, 'host-1', 'comeBack');
    act(world, 'host-1', 'schedule', 'succeed');
    expect(world.hosts.get('host-1')?.holds).toBe(false);
  });

  it('with an older image is Outdated until a newer one is asked for, once for each asking', () => {
    const world = new World(2);
    world.settle(ROUNDS);
    act(world, 'host-0', 'moveTag');
    world.addHost('late');
    world.settle(ROUNDS);
    expect(world.entry.status).toMatchObject({ digest: 'sha256:2', outdated: 2, cached: 1, desired: 3 });
    expect(world.row('host-0')).toEqual({ node: 'host-0', state: 'Outdated', message: 'has sha256:1' });
    world.act('refresh', 0);
    world.settle(ROUNDS);
    expect(world.entry.status).toMatchObject({
      outdated: 0,
      cached: 3,
      lastRefresh: world.entry.spec.refreshRequestedAt,
    });
    world.act('moveTag', 0);
    expect(world.settle(ROUNDS), 'nothing more to do').toBe(0);
  });
});
