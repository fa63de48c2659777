/** Checks the invariants of a VM's life over thousands of interleavings. */
import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Node, Pod } from '../../kube/core.ts';
import { assertHistories } from '../../test/support/properties.ts';
import { ACTIONS, stabilize, World, worldAfter } from '../../test/worlds/vmhistory.ts';
import { givenUpOn, macAddressOf } from './abandoned.ts';

const HISTORIES = { step: fc.constantFrom(...ACTIONS), maxLength: 60, numRuns: 500 };
/** Time limit in milliseconds for thousands of small reconciles, on a machine that may run other work at the same time. */
const TIMEOUT_MILLISECONDS = 60_000;

describe('a VM, in any order of events,', { timeout: TIMEOUT_MILLISECONDS }, () => {
  it('no-lost-disk: is never placed again after a machine of it ran, and no machine runs unseen', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = worldAfter(actions);
      stabilize(world);
      expect(world.createdAfterRun).toBe(0);
      expect(world.disksLost).toBe(0);
      expect(world.releasedUnobserved).toBe(0);
    });
  });

  it('no-orphan: is removed with its Pod after its deletion while its host is up', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = worldAfter(actions);
      world.act('hostBack');
      world.act('deleteVM');
      for (let round = 0; round < 6; round += 1) {
        world.act('reconcile');
        world.act('agentEnds');
        world.act('awaitedIsSettled');
      }
      stabilize(world);
      expect(world.vm).toBeUndefined();
      expect(world.pod).toBeUndefined();
      world.act('awaitedIsSettled');
      world.act('agentLooks');
      expect(world.hasMachine).toBe(false);
    });
  });

  it('idle-quiet: comes to rest and writes no more while nothing changes', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = worldAfter(actions);
      stabilize(world);
      world.act('reconcile');
      expect(world.writesInLastPass).toBe(0);
    });
  });

  it('tells its host no size that the Pod does not count, and does not repeat a refused size at once', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = worldAfter(actions);
      expect(world.reportedUncounted).toBe(0);
      stabilize(world);
      const asked = world.resizesAsked;
      world.act('reconcile');
      expect(world.resizesAsked).toBe(asked);
    });
  });

  it('keeps a recorded failure forever and unchanged', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = new World();
      let recorded: unknown;
      for (const action of actions) {
        world.act(action);
        const failure = world.vm?.status?.failure;
        if (recorded !== undefined && world.vm !== undefined) {
          expect(failure).toEqual(recorded);
        }
        recorded = failure ?? recorded;
      }
    });
  });

  it('is remembered at a silent host that may run its machine, when it is deleted', () => {
    const world = worldAfter(['reconcile', 'schedule', 'agentStarts', 'reconcile', 'hostSilent']);
    const macAddress = macAddressOf(world.pod as Pod);
    world.now += 601_000;
    world.act('deleteVM');
    for (let pass = 0; pass < 3; pass += 1) {
      world.act('reconcile');
    }
    expect(world.vm).toBeUndefined();
    expect(givenUpOn(world.node as Node)).toEqual([macAddress]);
  });
});
