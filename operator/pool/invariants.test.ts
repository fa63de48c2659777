/** Checks the invariants of a VMPool over many interleavings, with caches that lag and answers that are lost. */
import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { assertAsyncHistories } from '../../test/support/properties.ts';
import { type Fault, PoolModel } from '../../test/worlds/poolmodel.ts';

type Step =
  | { readonly kind: 'reconcile' | 'breakImage' | 'mendImage' | 'changeTemplate' }
  | { readonly kind: 'deliver' | 'report' | 'claim' | 'collect' | 'scale' | 'wait'; readonly count: number }
  | { readonly kind: 'fault'; readonly fault: Fault };

const small = fc.integer({ min: 0, max: 6 });
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 6, arbitrary: fc.constant<Step>({ kind: 'reconcile' }) },
  {
    weight: 10,
    arbitrary: fc.record({
      kind: fc.constantFrom('deliver', 'deliver', 'report', 'claim', 'collect', 'scale', 'wait'),
      count: small,
    }) as fc.Arbitrary<Step>,
  },
  {
    weight: 2,
    arbitrary: fc.constantFrom('breakImage', 'mendImage', 'changeTemplate').map((kind): Step => ({ kind })),
  },
  {
    weight: 2,
    arbitrary: fc
      .constantFrom<Fault>('lostAnswer', 'lostRequest')
      .map((fault): Step => ({ kind: 'fault', fault })),
  },
);
const HISTORIES = { step, maxLength: 120, numRuns: 100 };
/** Each of these histories is followed by many steps that let the pool come to rest. */
const ENDINGS = { step, maxLength: 40, numRuns: 100 };
/** Time limit in milliseconds for thousands of small reconciles, on a machine that may run other work at the same time. */
const TIMEOUT_MILLISECONDS = 60_000;

/** Does one step of a history. */
async function act(model: PoolModel, one: Step): Promise<void> {
  switch (one.kind) {
    case 'reconcile':
      return await model.reconcile();
    case 'deliver':
      return model.deliver(one.count, one.count);
    case 'report':
      return model.report(one.count);
    case 'claim':
      return model.claim(one.count);
    case 'collect':
      return model.collect(one.count);
    case 'scale':
      return model.changePool({ replicas: one.count });
    case 'wait':
      model.now += one.count * 10_000;
      return;
    case 'fault':
      model.fault = one.fault;
      return;
    case 'changeTemplate':
      return model.changeTemplate();
    default:
      model.isBroken = one.kind === 'breakImage';
  }
}

/** Lets everything happen until nothing changes any more. */
async function stabilize(model: PoolModel): Promise<void> {
  model.isBroken = false;
  model.fault = 'none';
  for (let pass = 0; pass < 30; pass += 1) {
    model.deliver(1_000, 1_000);
    await model.reconcile();
    model.report(1_000);
    model.collect(1_000);
    model.now += 11_000;
  }
}

describe('a VMPool, in any order of events,', { timeout: TIMEOUT_MILLISECONDS }, () => {
  it.for(['OnRefill', 'Replace'] as const)(
    'never has more VMs than replicas and surge, and never touches a claimed VM: %s',
    async (type, context) => {
      await assertAsyncHistories(context, HISTORIES, async (history) => {
        const model = new PoolModel({ update: { type } });
        for (const one of history) {
          await act(model, one);
        }
        expect([model.surplus, model.lost]).toEqual([0, 0]);
      });
    },
  );

  it.for(['OnRefill', 'Replace'] as const)(
    'has as many ready VMs as declared in the end: %s',
    async (type, context) => {
      await assertAsyncHistories(context, ENDINGS, async (history) => {
        const model = new PoolModel({ update: { type } });
        for (const one of history) {
          await act(model, one);
        }
        // After five failures in a row, only another template or another number ends the standstill.
        model.deliver(1_000, 1_000);
        model.changePool({ replicas: 0 });
        await stabilize(model);
        model.changePool({ replicas: 3 });
        await stabilize(model);
        expect([model.ready.length, model.members.length, model.lost]).toEqual([3, 3, 0]);
        expect(model.pool.status).toMatchObject({ readyReplicas: 3, replicas: 3, staleReplicas: 0 });
      });
    },
  );
});
