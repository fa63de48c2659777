import { describe, expect, it } from 'vitest';
import { PoolModel } from '../../test/worlds/poolmodel.ts';
import type { VMPool } from '../../api/v1alpha1/vmpool.ts';
import { conditionIn } from '../objects/conditions.ts';
import type { PoolMember, ObservedPool } from './observe.ts';
import { planPool } from './plan.ts';
import { summarizePool } from './status.ts';

const NOW = Date.parse('2030-01-01T00:00:00Z');

/** Returns a member. Its creation is `age` milliseconds ago. */
function member(name: string, change: Partial<PoolMember> = {}, age = 1_000): PoolMember {
  const metadata = { name, uid: name, creationTimestamp: new Date(NOW - age).toISOString() };
  return {
    vm: { apiVersion: '', kind: 'VM', metadata, spec: {} },
    state: 'ready',
    isStale: false,
    isUnschedulable: false,
    isOld: false,
    createdAt: NOW - age,
    readySince: NOW - age,
    dueAt: undefined,
    message: '',
    ...change,
  };
}

function observed(
  spec: Partial<VMPool['spec']>,
  members: readonly PoolMember[],
  change: Partial<ObservedPool> = {},
): ObservedPool {
  const pool: VMPool = {
    apiVersion: '',
    kind: 'VMPool',
    metadata: { name: 'ci', namespace: 'platform-default', uid: 'pool', generation: 1 },
    spec: { replicas: 3, template: { spec: { image: 'a' } }, ...spec },
    status: { revision: 'r', readyRevision: 'r' },
  };
  const hosts = { nodes: [], withImage: undefined };
  return {
    pool,
    members,
    revision: 'r',
    missing: undefined,
    hosts,
    freeSlots: 9,
    isAwaited: false,
    now: NOW,
    ...change,
  };
}

/** Returns the names of the VMs that go, and the number of new ones. */
function outcome(...args: Parameters<typeof observed>): [string[], number, string | undefined] {
  const { deletions, creations, held } = planPool(observed(...args));
  return [deletions.map(({ member: one }) => one.vm.metadata.name), creations, held];
}

/** Returns the names of the VMs as an operator that runs for long makes them, with the model of the API server. */
async function run(model: PoolModel, minutes: number): Promise<void> {
  for (let pass = 0; pass < minutes * 6; pass += 1) {
    model.deliver(1_000, 1_000);
    await model.reconcile();
    model.report(1_000);
    model.collect(1_000);
    model.now += 10_000;
  }
}

describe('a VMPool', () => {
  it('fills itself, four VMs at once until one of them was Ready, and then more', () => {
    expect(outcome({ replicas: 99 }, [])).toEqual([[], 16, undefined]);
    const unplaced = member('a', { state: 'unplaced', isUnschedulable: true });
    expect(outcome({ replicas: 99 }, [unplaced])).toEqual([[], 3, undefined]);
    const starting = member('a', { state: 'starting' });
    const unproven = { revision: 'new' };
    expect(outcome({ replicas: 9 }, [starting], unproven)).toEqual([[], 3, undefined]);
    expect(outcome({ replicas: 3 }, [member('a'), member('b', { state: 'leaving' })])).toEqual([
      [],
      1,
      undefined,
    ]);
  });

  it('above its number deletes VMs without a host first, then young ones', () => {
    const members = [
      member('old', {}, 9_000),
      member('young'),
      member('waits', { state: 'unplaced' }, 9_000),
    ];
    expect(outcome({ replicas: 1 }, members)).toEqual([['waits', 'young'], 0, undefined]);
  });

  it('with update OnRefill keeps stale VMs, and with Replace replaces them one after the other', () => {
    const stale = [
      member('a', { isStale: true }, 3_000),
      member('b', { isStale: true }),
      member('c', { isStale: true }),
    ];
    expect(outcome({}, stale)).toEqual([[], 0, undefined]);
    const replace = { update: { type: 'Replace' } } as const;
    expect(outcome(replace, stale)[0]).toEqual(['a']);
    expect(outcome(replace, stale, { revision: 'new' })).toEqual([[], 1, undefined]);
    // The first new VM takes the place of an earlier one only if the scheduler has found no place for it.
    const unseen = member('d', { state: 'unplaced' });
    expect(outcome(replace, [...stale, unseen], { revision: 'new' })[0]).toEqual([]);
    const waits = { ...unseen, isUnschedulable: true };
    expect(outcome(replace, [...stale, waits], { revision: 'new' })[0]).toEqual(['a']);
    const two = { update: { type: 'Replace', maxUnavailable: 2 } } as const;
    expect(outcome(two, stale)[0]).toEqual(['a', 'b']);
  });

  it('replaces VMs that are too old, and leaves as many as may be missing', () => {
    const old = [member('a', { isOld: true }, 3_000), member('b', { isOld: true }, 2_000), member('c')];
    expect(outcome({ maxAgeSeconds: 60 }, old)[0]).toEqual(['a']);
  });

  it('suspends VMs that are Ready, if its template says so', () => {
    const { suspensions } = planPool(observed({}, [member('a', { state: 'booted' })]));
    expect(suspensions.map(({ vm }) => vm.metadata.name)).toEqual(['a']);
  });

  it('leaves slots free, and makes no VM while another one waits', () => {
    expect(outcome({ keepFreeSlots: 8 }, [], { freeSlots: 8 })).toEqual([[], 0, 'KeepsFreeSlots']);
    expect(outcome({ keepFreeSlots: 8 }, [], { freeSlots: 10 })).toEqual([[], 2, undefined]);
    expect(outcome({}, [], { isAwaited: true })).toEqual([[], 0, 'Yielding']);
    const waits = member('a', { state: 'unplaced', isUnschedulable: true });
    expect(outcome({}, [waits], { isAwaited: true })[0]).toEqual(['a']);
  });

  it('with mode OneShot replaces VMs that have ended, and deletes none that runs', () => {
    const running = member('runs', { isStale: true });
    const status = { firstRunningTime: '2030-01-01T00:00:00Z' };
    const vm = { ...running.vm, status };
    const members = [{ ...running, vm }, member('ended', { state: 'ended' })];
    expect(outcome({ mode: 'OneShot', replicas: 0 }, members)).toEqual([['ended'], 0, undefined]);
  });

  it('makes no VM while its image is missing, and says so', () => {
    const world = observed({}, [], { missing: 'Image base was not found' });
    const plan = planPool(world);
    const status = summarizePool(world, plan, { failures: undefined, refused: undefined, claims: 0 });
    expect(plan.creations).toBe(0);
    expect(conditionIn(status, 'Ready')).toMatchObject({
      reason: 'PoolImageMissing',
      message: '0 of 3 VMs are Ready. Image base was not found',
    });
  });
});

describe('the VMs of a VMPool', () => {
  it('have the labels, annotations and the whole spec of its template, and boot before they are suspended', async () => {
    const spec = {
      image: 'registry.example/guest:1',
      cpu: 2,
      memory: '2Gi',
      ports: [':22'],
      placement: { tag: 'fast', tagPolicy: 'Required' },
      guestMetadata: { team: 'ci' },
      readiness: { type: 'Port', port: 22 },
      userDataSecretRef: { name: 'setup', key: 'user-data' },
    } as const;
    const metadata = { labels: { team: 'ci' }, annotations: { 'example.com/cost': '7' } };
    const model = new PoolModel({
      replicas: 1,
      template: { metadata, spec: { ...spec, ports: [...spec.ports], powerState: 'Suspended' } },
    });
    await model.reconcile();
    const [made] = model.members;
    expect(made?.spec).toEqual({ ...spec, powerState: 'Running' });
    expect(made?.metadata).toMatchObject({
      name: expect.stringMatching(/^ci-[a-z0-9]{5}$/) as string,
      labels: { team: 'ci', 'berth.dev/pool': 'ci', 'berth.dev/pool-revision': model.pool.status?.revision },
      annotations: metadata.annotations,
      ownerReferences: [{ kind: 'VMPool', name: 'ci', uid: 'pool', controller: true }],
    });
    await run(model, 1);
    expect(model.members.map((vm) => vm.spec)).toEqual([{ ...spec, powerState: 'Suspended' }]);
    expect(model.pool.status?.readyReplicas).toBe(1);
  });
});

describe('a VMPool with a broken image', () => {
  it('makes five VMs, each after a longer wait, and then stops with the last words of a VM', async () => {
    const model = new PoolModel({ replicas: 10 });
    model.isBroken = true;
    await run(model, 1);
    expect(model.created).toBe(4);
    await run(model, 60);
    expect(model.created).toBe(5);
    expect(conditionIn(model.pool.status, 'Stalled')).toMatchObject({
      reason: 'MembersFail',
      message: expect.stringMatching(
        /^5 VMs in a row failed.* The last, ci-\w{5}: no bootable disk$/,
      ) as string,
    });
    model.isBroken = false;
    model.changeTemplate();
    await run(model, 5);
    expect([model.ready.length, conditionIn(model.pool.status, 'Stalled')]).toEqual([10, undefined]);
  });

  it('keeps its earlier VMs, and stops', async () => {
    const model = new PoolModel({ replicas: 3, update: { type: 'Replace' } });
    await run(model, 5);
    const earlier = model.ready.map(({ metadata }) => metadata.uid);
    model.isBroken = true;
    model.changeTemplate();
    await run(model, 60);
    expect(model.ready.map(({ metadata }) => metadata.uid)).toEqual(earlier);
    expect(model.created).toBe(4);
    expect(conditionIn(model.pool.status, 'Stalled')?.reason).toBe('RolloutStopped');
  });

  it('tries again when its number was 0', async () => {
    const model = new PoolModel({ replicas: 2 });
    model.isBroken = true;
    await run(model, 120);
    model.isBroken = false;
    model.changePool({ replicas: 0 });
    await run(model, 1);
    model.changePool({ replicas: 2 });
    await run(model, 5);
    expect(model.ready).toHaveLength(2);
  });
});
