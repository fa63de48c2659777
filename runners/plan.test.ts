import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { STATISTICS, type Statistics } from '../api/v1alpha1/runnerset.ts';
import { assertHistories } from '../test/support/properties.ts';
import type { KnownRunner } from './github/client.ts';
import {
  ALIVE_MILLISECONDS,
  IDLE_MILLISECONDS,
  LEAVING_MILLISECONDS,
  type Memory,
  NO_MEMORY,
  ONLINE_MILLISECONDS,
  planSet,
  rememberNews,
  type RunnerVM,
  type SetFacts,
  SHUTDOWN_MILLISECONDS,
  SURPLUS_MILLISECONDS,
} from './plan.ts';

const START = Date.parse('2030-01-01T00:00:00Z');
const PASS_MILLISECONDS = 30_000;

function statistics(assigned: number): Statistics {
  return {
    ...(Object.fromEntries(STATISTICS.map((name) => [name, 0])) as Statistics),
    totalAssignedJobs: assigned,
  };
}

function vm(name: string, change: Partial<RunnerVM> = {}): RunnerVM {
  const [createdAt, runningAt, readyAt] = [START, START, START];
  return {
    name,
    createdAt,
    runningAt,
    readyAt,
    aliveUntil: undefined,
    isPlaced: true,
    isEnding: false,
    ...change,
  };
}

function runner(name: string, change: Partial<KnownRunner> = {}): KnownRunner {
  return { id: 1, name, isOnline: true, isBusy: false, ...change };
}

function facts(change: Partial<SetFacts> & { runners?: readonly KnownRunner[] } = {}): SetFacts {
  const now = change.now ?? START;
  const { runners = [], ...rest } = change;
  return {
    min: 0,
    max: 10,
    statistics: statistics(0),
    vms: [],
    listed: { at: now, runners },
    memory: NO_MEMORY,
    now,
    ...rest,
  };
}

/** Plans several times, one list after the other, and returns the last plan. */
function passes(times: readonly number[], of: Parameters<typeof facts>[0]): ReturnType<typeof planSet> {
  let memory: Memory = of?.memory ?? NO_MEMORY;
  let plan = planSet(facts({ ...of, memory }));
  for (const now of times) {
    plan = planSet(facts({ ...of, memory, now }));
    memory = plan.memory;
  }
  return plan;
}

describe('the number of VMs', () => {
  it.each([
    [0, 10, 3, 3],
    [2, 10, 3, 5],
    [2, 4, 3, 4],
    [0, 10, 0, 0],
  ])('with min %i, max %i and %i assigned jobs is %i', (min, max, assigned, create) => {
    expect(planSet(facts({ min, max, statistics: statistics(assigned) }))).toMatchObject({
      wanted: create,
      create,
    });
  });

  it('is unknown before GitHub has sent statistics', () => {
    expect(planSet(facts({ min: 2, statistics: undefined }))).toMatchObject({ wanted: undefined, create: 0 });
  });

  it('does not count a VM whose job has ended, and never exceeds max with it', () => {
    const memory = rememberNews(NO_MEMORY, [{ type: 'JobCompleted', name: 'a' }], START);
    const one = { vms: [vm('a')], runners: [runner('a')], statistics: statistics(1), memory };
    expect(planSet(facts(one)).create).toBe(1);
    expect(planSet(facts({ ...one, max: 1 })).create).toBe(0);
  });
});

it('a VM that has just ended is not replaced until GitHub tells the end of its job, or ten seconds later', () => {
  const before = facts({
    vms: [vm('a')],
    runners: [runner('a', { isBusy: true })],
    statistics: statistics(1),
  });
  const { memory } = planSet(before);
  const gone = { ...before, vms: [], memory };
  const first = planSet(gone);
  expect(first).toMatchObject({ create: 0 });
  const late = { ...gone, memory: first.memory };
  expect(planSet({ ...late, now: START + LEAVING_MILLISECONDS - 1 }).create).toBe(0);
  expect(planSet({ ...late, now: START + LEAVING_MILLISECONDS }).create).toBe(1);
  const known = rememberNews(first.memory, [{ type: 'JobCompleted', name: 'a' }], START);
  expect(planSet({ ...late, memory: known, statistics: statistics(1) }).create, 'the next job').toBe(1);
});

describe('a VM is removed', () => {
  it('if its job has ended and it is still there two minutes later', () => {
    const memory = rememberNews(NO_MEMORY, [{ type: 'JobCompleted', name: 'a' }], START);
    const one = { vms: [vm('a')], runners: [runner('a')], statistics: statistics(1), memory };
    expect(planSet(facts({ ...one, now: START + SHUTDOWN_MILLISECONDS - 1 })).remove).toEqual([]);
    expect(planSet(facts({ ...one, now: START + SHUTDOWN_MILLISECONDS })).remove).toEqual([
      { name: 'a', cause: 'JobEnded' },
    ]);
  });

  it('if two lists in a row do not have its runner', () => {
    const one = { vms: [vm('a')], statistics: statistics(1) };
    expect(passes([START + 60_000], one).remove).toEqual([]);
    expect(passes([START + 60_000, START + 60_000], one).remove, 'the same list twice').toEqual([]);
    expect(passes([START + 60_000, START + 90_000], one).remove).toEqual([
      { name: 'a', cause: 'RunnerGone' },
    ]);
    expect(passes([START + 10_000, START + 40_000], one).remove, 'a new one').toEqual([]);
  });

  it('if it is Ready and its runner is not online in five minutes', () => {
    const one = { vms: [vm('a')], runners: [runner('a', { isOnline: false })], statistics: statistics(1) };
    expect(passes([START, START + ONLINE_MILLISECONDS - 1], one).remove).toEqual([]);
    expect(passes([START, START + ONLINE_MILLISECONDS], one).remove).toEqual([
      { name: 'a', cause: 'NotOnline' },
    ]);
  });

  it('if it waited for a job for 20 hours, but never with a job', () => {
    const now = START + IDLE_MILLISECONDS * 1.2;
    const one = { vms: [vm('a')], runners: [runner('a')], statistics: statistics(1), now };
    expect(planSet(facts(one)).remove).toEqual([{ name: 'a', cause: 'TooOld' }]);
    expect(planSet(facts({ ...one, runners: [runner('a', { isBusy: true })] })).remove).toEqual([]);
    const memory = rememberNews(NO_MEMORY, [{ type: 'JobStarted', name: 'a' }], START);
    expect(planSet(facts({ ...one, memory })).remove).toEqual([]);
  });

  it('for its age with a quarter of the others at most', () => {
    const vms = Array.from({ length: 9 }, (_, index) => vm(`vm-${index}`));
    const runners = vms.map(({ name }) => runner(name));
    const now = START + IDLE_MILLISECONDS * 1.2;
    expect(planSet(facts({ vms, runners, statistics: statistics(9), now })).remove).toHaveLength(2);
  });

  it('if nobody needs it for a minute, and first one that is furthest from a job', () => {
    const vms = [vm('a'), vm('b', { readyAt: undefined, isPlaced: false }), vm('c')];
    const runners = [runner('a'), runner('b', { isOnline: false }), runner('c', { isBusy: true })];
    const one = { vms, runners, statistics: statistics(1) };
    expect(passes([START], one).remove).toEqual([]);
    expect(passes([START, START + SURPLUS_MILLISECONDS], one).remove).toEqual([
      { name: 'b', cause: 'Surplus' },
      { name: 'a', cause: 'Surplus' },
    ]);
  });
});

it('the life of a VM is renewed when half of it is over, but not of one whose job has ended', () => {
  const aliveUntil = START + ALIVE_MILLISECONDS / 2;
  const vms = [vm('a', { aliveUntil }), vm('b', { aliveUntil }), vm('c')];
  const memory = rememberNews(NO_MEMORY, [{ type: 'JobCompleted', name: 'b' }], START);
  expect(planSet(facts({ vms, memory })).prolong).toEqual([]);
  expect(planSet(facts({ vms, memory, now: START + 1 })).prolong).toEqual(['a']);
});

it('a runner without a VM is removed after two lists', () => {
  const one = { runners: [runner('a')] };
  expect(passes([START], one).orphans).toEqual([]);
  expect(passes([START, START + 30_000], one).orphans).toEqual(['a']);
});

/** One thing that happens between two passes. */
type Step =
  | { readonly kind: 'job' | 'cancel' | 'boot' | 'news-lost' | 'outage' | 'restart' | 'crash' | 'list-late' }
  | { readonly kind: 'finish' | 'stuck' | 'vm-lost' | 'reassign'; readonly at: number };

const indexed = (kind: 'finish' | 'stuck' | 'vm-lost' | 'reassign') =>
  fc.record({ kind: fc.constant(kind), at: fc.nat(20) });
const plain = (
  kind: 'job' | 'cancel' | 'boot' | 'news-lost' | 'outage' | 'restart' | 'crash' | 'list-late',
) => fc.constant({ kind });
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 4, arbitrary: plain('job') },
  { weight: 4, arbitrary: plain('boot') },
  { weight: 3, arbitrary: indexed('finish') },
  plain('cancel'),
  plain('news-lost'),
  plain('outage'),
  plain('restart'),
  plain('crash'),
  plain('list-late'),
  indexed('stuck'),
  indexed('vm-lost'),
  indexed('reassign'),
);

interface ModelVM {
  readonly name: string;
  readonly createdAt: number;
  readyAt: number | undefined;
  /** Whether its guest never starts its runner. */
  isStuck: boolean;
}

interface ModelRunner {
  readonly name: string;
  isOnline: boolean;
  job: ModelJob | undefined;
}

interface ModelJob {
  state: 'assigned' | 'running' | 'done';
  runs: number;
}

/** GitHub, the cluster and this program, without the network. */
class Model {
  readonly min = 2;
  readonly max = 6;
  now = START;
  readonly vms = new Map<string, ModelVM>();
  readonly runners = new Map<string, ModelRunner>();
  readonly jobs: ModelJob[] = [];
  memory: Memory = NO_MEMORY;
  #listed: SetFacts['listed'] = { at: START, runners: [] };
  #made = 0;
  #losesNews = false;
  #isAway = false;
  #isListLate = false;
  /** Whether this process dies between the VM and its runner. */
  #diesNext = false;

  happen(one: Step): void {
    const vms = [...this.vms.values()];
    const picked = 'at' in one ? vms[one.at % Math.max(1, vms.length)] : undefined;
    switch (one.kind) {
      case 'job':
        this.jobs.push({ state: 'assigned', runs: 0 });
        break;
      case 'cancel':
        this.jobs
          .filter(({ state }) => state === 'assigned')
          .slice(0, 1)
          .forEach((job) => (job.state = 'done'));
        break;
      case 'boot':
        this.#boot();
        break;
      case 'finish':
        this.#finish(picked?.name);
        break;
      case 'stuck':
        this.#stick(picked);
        break;
      case 'vm-lost':
        this.#lose(picked?.name);
        break;
      case 'reassign':
        this.#reassign(picked?.name);
        break;
      default:
        this.#disturb(one.kind);
    }
    this.#assign();
  }

  #disturb(kind: string): void {
    this.#losesNews ||= kind === 'news-lost';
    this.#isAway ||= kind === 'outage';
    this.#isListLate ||= kind === 'list-late';
    this.#diesNext ||= kind === 'crash';
    if (kind === 'restart') {
      this.memory = NO_MEMORY;
    }
  }

  #boot(): void {
    for (const one of this.vms.values()) {
      const known = this.runners.get(one.name);
      one.readyAt ??= this.now;
      if (known !== undefined && !one.isStuck) {
        known.isOnline = true;
      }
    }
  }

  #stick(one: ModelVM | undefined): void {
    if (one !== undefined && this.runners.get(one.name)?.isOnline === false) {
      one.isStuck = true;
    }
  }

  #finish(name = ''): void {
    const known = this.runners.get(name);
    if (known?.job === undefined) {
      return;
    }
    known.job.state = 'done';
    this.runners.delete(name);
    // Some guests do not shut down.
    if (this.now % 7 !== 0) {
      this.vms.delete(name);
    }
    this.#tell('JobCompleted', name);
  }

  /** The machine of a VM without a job is lost with its host. */
  #lose(name = ''): void {
    const known = this.runners.get(name);
    if (known?.job === undefined && this.vms.delete(name) && known !== undefined) {
      known.isOnline = false;
    }
  }

  /** A runner loses its job to another one. */
  #reassign(name = ''): void {
    const known = this.runners.get(name);
    if (known?.job !== undefined) {
      known.job.state = 'assigned';
      known.job = undefined;
    }
  }

  #tell(type: string, name: string): void {
    if (!this.#losesNews) {
      this.memory = rememberNews(
        this.memory,
        [
          { type, name },
          { type, name: undefined },
        ],
        this.now,
      );
    }
  }

  #assign(): void {
    for (const known of this.runners.values()) {
      const job = this.jobs.find(({ state }) => state === 'assigned');
      if (known.isOnline && known.job === undefined && this.vms.has(known.name) && job !== undefined) {
        job.state = 'running';
        job.runs += 1;
        known.job = job;
        this.#tell('JobStarted', known.name);
      }
    }
  }

  pass(): void {
    this.now += PASS_MILLISECONDS;
    if (this.#isAway) {
      this.#isAway = false;
      return;
    }
    if (!this.#isListLate) {
      const runners = [...this.runners.values()].map(({ name, isOnline, job }) =>
        runner(name, { isOnline, isBusy: job !== undefined }),
      );
      this.#listed = { at: this.now, runners };
    }
    this.#isListLate = false;
    const assigned = this.jobs.filter(({ state }) => state !== 'done').length;
    const vms = [...this.vms.values()].map(({ name, createdAt, readyAt }) =>
      vm(name, { createdAt, readyAt, runningAt: readyAt }),
    );
    const { min, max, memory, now } = this;
    const plan = planSet({
      min,
      max,
      statistics: statistics(assigned),
      vms,
      listed: this.#listed,
      memory,
      now,
    });
    this.memory = plan.memory;
    plan.remove.forEach(({ name }) => this.#remove(name));
    plan.orphans.forEach((name) => this.#forget(name));
    for (let made = 0; made < plan.create; made += 1) {
      this.#create();
    }
    this.#losesNews = false;
    this.#assign();
    expect(this.vms.size).toBeLessThanOrEqual(this.max);
  }

  #forget(name: string): boolean {
    if (this.runners.get(name)?.job !== undefined) {
      return false;
    }
    this.runners.delete(name);
    return true;
  }

  #remove(name: string): void {
    if (this.#forget(name)) {
      this.vms.delete(name);
    }
  }

  #create(): void {
    this.#made += 1;
    const name = `vm-${this.#made}`;
    this.vms.set(name, { name, createdAt: this.now, readyAt: undefined, isStuck: false });
    if (this.#diesNext) {
      this.#diesNext = false;
      this.memory = NO_MEMORY;
      return;
    }
    this.runners.set(name, { name, isOnline: false, job: undefined });
  }
}

it('after any history, each job runs in one VM, and every VM has a runner and every runner a VM', (context) => {
  assertHistories(context, { step, maxLength: 60, numRuns: 500 }, (history) => {
    const model = new Model();
    for (const one of history) {
      model.happen(one);
      model.pass();
    }
    // Nothing fails any more. The longest wait of the plan is that for a runner which is not online.
    for (let count = 0; count < 60; count += 1) {
      model.happen({ kind: 'boot' });
      model.pass();
      [...model.vms.keys()].forEach((_, at) => model.happen({ kind: 'finish', at }));
    }
    expect(model.jobs.filter(({ state }) => state !== 'done')).toEqual([]);
    expect(new Set(model.runners.keys())).toEqual(new Set(model.vms.keys()));
    expect([...model.runners.values()].filter(({ isOnline }) => !isOnline)).toEqual([]);
    expect(model.vms.size).toBe(model.min);
  });
});
