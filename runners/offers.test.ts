import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { HOST_MARK, HOST_VALUE, SLOT_RESOURCE } from '../api/v1alpha1/names.ts';
import type { Namespace, Node, Pod } from '../kube/core.ts';
import { assertHistories } from '../test/support/properties.ts';
import {
  type Bidder,
  type Counts,
  countVMs,
  type Demand,
  isHungry,
  offerTo,
  POD_MILLISECONDS,
} from './offers.ts';
import type { Needs } from './places.ts';
import type { RunnerVM } from './plan.ts';

/** Needs of a small VM on hosts of any architecture. */
const ANY: Needs = {
  architecture: undefined,
  cpu: 1,
  memory: '1Gi',
  disk: '1Gi',
  ports: [],
  sharesDisk: false,
};
const NAMESPACE: Namespace = { apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'ci' } };

function host(name: string, slots: number, { architecture = 'arm64', cpu = '64' } = {}): Node {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name, labels: { [HOST_MARK]: HOST_VALUE, 'kubernetes.io/arch': architecture } },
    status: {
      allocatable: { [SLOT_RESOURCE]: String(slots), cpu, memory: '64Gi', 'ephemeral-storage': '1Ti' },
      conditions: [{ type: 'Ready', status: 'True' }],
    },
  } as unknown as Node;
}

/** A Pod with one slot. Without a host it waits. */
function pod(name: string, nodeName?: string): Pod {
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, namespace: 'ci' },
    spec: {
      ...(nodeName === undefined ? {} : { nodeName }),
      containers: [{ name: 'machine', resources: { requests: { [SLOT_RESOURCE]: '1' } } }],
    },
    status: { phase: nodeName === undefined ? 'Pending' : 'Running' },
  } as unknown as Pod;
}

function bidder(key: string, change: Partial<Bidder> = {}): Bidder {
  return {
    key,
    namespace: NAMESPACE,
    prefix: `${key}-`,
    needs: ANY,
    placed: 0,
    due: 0,
    max: 100,
    offered: 0,
    isHungry: false,
    ...change,
  };
}

/** Returns the offer to each set if each asks for the first time. */
function offers(bidders: readonly Bidder[], fleet: { nodes: Node[]; pods?: Pod[] }, period = 0): number[] {
  return bidders.map(({ key }) => offerTo(key, bidders, { pods: [], ...fleet }, period));
}

describe('the offer to a set', () => {
  it('is all that is free if no other set can use it, up to its maximum', () => {
    const pods = [pod('a-1', 'one'), pod('other', 'one')];
    const sets = [bidder('a', { placed: 1 }), bidder('x', { needs: { ...ANY, architecture: 'amd64' } })];
    const nodes = [host('one', 4), host('two', 4)];
    expect(offers(sets, { nodes, pods })).toEqual([7, 0]);
    expect(offers([bidder('a', { max: 3 })], { nodes })).toEqual([3]);
  });

  it('is one place while it has no jobs, and its part of the rest when it has used up the last offer', () => {
    const nodes = [host('one', 9)];
    expect(
      offers(
        ['a', 'b', 'c'].map((key) => bidder(key)),
        { nodes },
      ),
    ).toEqual([1, 1, 1]);
    const busy = [bidder('a'), bidder('b', { isHungry: true }), bidder('c', { isHungry: true })];
    expect(offers(busy, { nodes })).toEqual([1, 4, 4]);
  });

  it('leaves the places that GitHub can still fill by offers to others, and those that their jobs need', () => {
    const nodes = [host('one', 8)];
    const sets = [bidder('a', { isHungry: true }), bidder('b', { offered: 5 }), bidder('c', { due: 2 })];
    expect(offerTo('a', sets, { nodes, pods: [] }, 0)).toBe(1);
  });

  it('leaves the places of VMs of others that wait for a host, but not those of its own VMs', () => {
    const nodes = [host('one', 4)];
    const pods = [pod('other'), pod('a-1'), { ...pod('done'), status: { phase: 'Succeeded' as const } }];
    expect(offers([bidder('a', { due: 1 })], { nodes, pods })).toEqual([3]);
  });

  it('counts what a VM needs, and takes hosts that others cannot use first', () => {
    const nodes = [host('arm', 4, { cpu: '8' }), host('amd', 4, { architecture: 'amd64', cpu: '8' })];
    const sets = [
      bidder('any', { needs: { ...ANY, cpu: 4 }, isHungry: true }),
      bidder('arm', { needs: { ...ANY, cpu: 4, architecture: 'arm64' }, isHungry: true }),
    ];
    expect(offers(sets, { nodes })).toEqual([2, 2]);
  });

  it('changes with the periods if there are fewer places than sets: hungry sets first, then the others', () => {
    const sets = [bidder('a', { isHungry: true }), bidder('b'), bidder('c')];
    const nodes = [host('one', 1)];
    expect([0, 1, 2, 3, 4, 5].map((period) => offers(sets, { nodes }, period))).toEqual([
      [1, 0, 0],
      [0, 1, 0],
      [1, 0, 0],
      [0, 0, 1],
      [1, 0, 0],
      [0, 1, 0],
    ]);
  });
});

it.each([
  [undefined, 0, false],
  [{ totalAssignedJobs: 0, totalAvailableJobs: 0 }, 0, false],
  [{ totalAssignedJobs: 2, totalAvailableJobs: 0 }, 3, false],
  [{ totalAssignedJobs: 3, totalAvailableJobs: 0 }, 3, true],
  [{ totalAssignedJobs: 1, totalAvailableJobs: 0 }, 0, true],
  [{ totalAssignedJobs: 0, totalAvailableJobs: 1 }, 3, true],
])('jobs may wait with %j and an offer of %i: %s', (statistics, offered, hungry) => {
  expect(isHungry(statistics, offered)).toBe(hungry);
});

describe('the places that the VMs of a set need', () => {
  const now = Date.parse('2030-01-01T00:00:00Z');

  /** Returns a VM that is too old to have no Pod. */
  function vm(name: string, change: Partial<RunnerVM> = {}): RunnerVM {
    return {
      name,
      createdAt: now - POD_MILLISECONDS,
      runningAt: undefined,
      readyAt: undefined,
      aliveUntil: undefined,
      isPlaced: false,
      isEnding: false,
      ...change,
    };
  }

  function count(change: Partial<Demand>): Counts {
    return countVMs({ live: [], wanted: 0, canMake: true, hasPod: () => false, now, ...change });
  }

  it('are those of its missing VMs, of new ones, and of those whose Pods wait', () => {
    const live = [vm('placed', { isPlaced: true }), vm('new', { createdAt: now - 1 }), vm('waiting')];
    const hasPod = (name: string): boolean => name === 'waiting';
    expect(count({ live, wanted: 5, hasPod })).toEqual({ placed: 1, due: 4, isStuck: false });
    expect(count({ live: live.slice(0, 1), wanted: 1 })).toEqual({ placed: 1, due: 0, isStuck: false });
  });

  it('are none if its VMs get no Pods, or if none can be made', () => {
    const live = [vm('placed', { isPlaced: true }), vm('stuck')];
    expect(count({ live, wanted: 2 })).toEqual({ placed: 1, due: 0, isStuck: true });
    expect(count({ wanted: 50, canMake: false })).toEqual({ placed: 0, due: 0, isStuck: true });
  });
});

const SETS = 4;
const SLOTS = 6;
const step = fc.record({
  kind: fc.constantFrom(
    'job',
    'job',
    'poll',
    'poll',
    'place',
    'place',
    'finish',
    'fail',
    'taken',
    'freed',
    'period',
  ),
  at: fc.nat({ max: SETS - 1 }),
});
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

interface ModelSet {
  readonly key: string;
  queued: number;
  assigned: number;
  placed: number;
  offered: number;
}

/** Sets at GitHub, whose long polls hang from one step to another, and hosts whose places others take, too. */
class Site {
  readonly sets: ModelSet[] = Array.from({ length: SETS }, (_, at) => ({
    key: `set${at}`,
    queued: 0,
    assigned: 0,
    placed: 0,
    offered: 0,
  }));
  foreign = 0;
  period = 0;

  get free(): number {
    return SLOTS - this.foreign - this.sets.reduce((sum, { placed }) => sum + placed, 0);
  }

  #due({ assigned, placed }: ModelSet): number {
    return Math.max(0, assigned - placed);
  }

  /** GitHub assigns as many jobs as it may. */
  #assign(set: ModelSet): void {
    while (set.queued > 0 && set.assigned < set.offered) {
      set.queued -= 1;
      set.assigned += 1;
    }
  }

  happen({ kind, at }: Step): void {
    const set = this.sets[at] as ModelSet;
    switch (kind) {
      case 'job':
        set.queued += 1;
        this.#assign(set);
        break;
      case 'poll':
        this.poll(set);
        break;
      case 'place':
        set.placed += this.#due(set) > 0 && this.free > 0 ? 1 : 0;
        break;
      case 'finish':
        this.#finish(set);
        break;
      case 'fail':
        set.offered = 0;
        break;
      default:
        this.#disturb(kind);
    }
  }

  #finish(set: ModelSet): void {
    if (set.placed > 0 && set.assigned > 0) {
      set.placed -= 1;
      set.assigned -= 1;
      this.#assign(set);
    }
  }

  #disturb(kind: string): void {
    if (kind === 'period') {
      this.period += 1;
    }
    if (kind === 'freed') {
      this.foreign = Math.max(0, this.foreign - 1);
    }
    if (kind === 'taken' && this.free > 0) {
      this.foreign += 1;
    }
  }

  poll(set: ModelSet): void {
    const bidders = this.sets.map((one) =>
      bidder(one.key, {
        placed: one.placed,
        due: this.#due(one),
        offered: one.offered,
        isHungry: isHungry({ totalAssignedJobs: one.assigned, totalAvailableJobs: 0 }, one.offered),
      }),
    );
    const placed = this.sets.flatMap(({ key, placed: count }) => Array.from({ length: count }, () => key));
    const others = Array.from({ length: this.foreign }, () => 'other');
    const pods = [...placed, ...others].map((key, index) => pod(`${key}-${index}`, 'host'));
    set.offered = offerTo(set.key, bidders, { nodes: [host('host', SLOTS)], pods }, this.period);
    this.#assign(set);
  }

  /** All sets poll, and all VMs that have room start. */
  pass(): void {
    this.sets.forEach((set) => this.poll(set));
    for (let count = 0; count < SLOTS; count += 1) {
      this.sets.forEach((_, at) => this.happen({ kind: 'place', at }));
    }
  }

  /** Number of places that offers and jobs need, and that are not free. */
  get excess(): number {
    const needed = this.sets.map((one) => Math.max(this.#due(one), one.offered - one.placed));
    return Math.max(0, needed.reduce((sum, one) => sum + one, 0) - this.free);
  }
}

it('after any history, no more is offered than is free, each idle set has its turn, and one set can use all places', (context) => {
  assertHistories(context, { step, maxLength: 80, numRuns: 500 }, (history) => {
    const site = new Site();
    for (const one of history) {
      const before = site.excess;
      site.happen(one);
      // Only others can take what was offered.
      expect(site.excess).toBeLessThanOrEqual(before + (one.kind === 'taken' ? 1 : 0));
    }
    const [first, ...others] = site.sets as [ModelSet, ...ModelSet[]];
    // The queues are empty, but for one. All jobs of the others end.
    others.forEach((set) => Object.assign(set, { queued: 0, assigned: 0, placed: 0 }));
    first.queued = 100;
    for (let count = 0; count < 8; count += 1) {
      site.period += 1;
      site.pass();
      site.pass();
    }
    expect([site.free, first.placed]).toEqual([0, SLOTS - site.foreign]);
    Object.assign(first, { queued: 0, assigned: 0, placed: 0 });
    const had = new Set<string>();
    for (let count = 0; count < 2 * SETS; count += 1) {
      site.period += 1;
      site.pass();
      site.pass();
      site.sets.filter(({ offered }) => offered > 0).forEach(({ key }) => had.add(key));
    }
    expect(had.size).toBe(site.free === 0 ? 0 : SETS);
  });
});
