import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { timestamp } from '../../base/time.ts';
import type { Pod } from '../../kube/core.ts';
import { assertHistories } from '../../test/support/properties.ts';
import { nextRemoval, ownerOfRemovable, type PodRemoval, trimForeignPod } from './removal.ts';

const NOW = Date.parse('2026-01-01T00:00:00Z');
const SECOND = 1_000;

interface Parts {
  kind?: string;
  reason?: string;
  createdAt?: number;
  scheduled?: 'True' | 'False';
  controller?: boolean;
}

function pod(name: string, parts: Parts = {}): Pod {
  const { kind = 'ReplicaSet', reason = 'HostRunsOnlyMachines', createdAt = NOW } = parts;
  const { scheduled = 'True', controller = true } = parts;
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      namespace: 'default',
      name,
      uid: name,
      creationTimestamp: timestamp(createdAt),
      ownerReferences: [{ apiVersion: 'apps/v1', kind, name: 'owner', uid: 'owner-uid', controller }],
      labels: { app: 'other' },
    },
    spec: { nodeName: 'host', containers: [{ name: 'main', image: 'any' }] },
    status: {
      phase: 'Pending',
      conditions: [
        { type: 'Initialized', status: 'True' },
        { type: 'PodScheduled', status: scheduled },
      ],
      containerStatuses: [
        {
          name: 'main',
          image: 'any',
          imageID: '',
          ready: false,
          restartCount: 0,
          state: { waiting: { reason } },
        },
      ],
    },
  };
}

describe('a Pod can be removed', () => {
  it('if it waits on its host and somebody creates it again', () => {
    for (const kind of ['ReplicaSet', 'StatefulSet', 'Job', 'Rollout']) {
      expect(ownerOfRemovable(pod('a', { kind }))).toEqual(['owner-uid']);
    }
  });

  it.for<[string, Parts]>([
    ['starts on another node', { reason: 'ContainerCreating' }],
    ['is of a DaemonSet', { kind: 'DaemonSet' }],
    ['is of its node', { kind: 'Node' }],
    ['has no controller', { controller: false }],
    ['chose its node itself', { scheduled: 'False' }],
  ])('not if it %s', ([, parts]) => {
    expect(ownerOfRemovable(pod('a', parts))).toEqual([]);
    expect(ownerOfRemovable(trimForeignPod(pod('a', parts)))).toEqual([]);
  });

  it('also when the cache has trimmed it', () => {
    const trimmed = trimForeignPod(pod('a'));
    expect(ownerOfRemovable(trimmed)).toEqual(['owner-uid']);
    expect(trimmed.metadata).not.toHaveProperty('labels');
    expect(trimmed.spec).toEqual({ nodeName: 'host', containers: [] });
  });
});

describe('the next removal', () => {
  it('takes the oldest Pod at once, and no Pod that is already being deleted', () => {
    const older = pod('older', { createdAt: NOW - 60 * SECOND });
    const decision = nextRemoval([pod('newer'), older], undefined, NOW);
    expect(decision).toEqual({ kind: 'remove', pod: older, removal: { at: NOW, waitMilliseconds: 30_000 } });
    older.metadata.deletionTimestamp = timestamp(NOW);
    expect(nextRemoval([older], undefined, NOW)).toEqual({ kind: 'none' });
  });

  it('comes 30 s after the one before', () => {
    const last = { at: NOW, waitMilliseconds: 30_000 };
    const waiting = [pod('a', { createdAt: NOW - 60 * SECOND })];
    expect(nextRemoval(waiting, last, NOW + 29_999)).toEqual({ kind: 'wait', at: NOW + 30_000 });
    expect(nextRemoval(waiting, last, NOW + 30_000)).toMatchObject({
      kind: 'remove',
      removal: { waitMilliseconds: 30_000 },
    });
  });

  it('comes after a wait that doubles to five minutes while replacements land on hosts again', () => {
    const times: number[] = [];
    let last: PodRemoval | undefined;
    for (let now = NOW; now < NOW + 1_000 * SECOND; now += SECOND) {
      // A controller replaces a Pod at once.
      const decision = nextRemoval([pod('a', { createdAt: last?.at ?? NOW })], last, now);
      if (decision.kind === 'remove') {
        times.push((now - NOW) / SECOND);
        last = decision.removal;
      }
    }
    expect(times).toEqual([0, 30, 90, 210, 450, 750]);
  });

  it('never comes within 30 s of another, whatever the owner does', (context) => {
    const step = fc.record({
      pass: fc.nat(60_000),
      pods: fc.array(fc.integer({ min: -90, max: 0 }), { maxLength: 5 }),
    });
    // Waits double up to 5 min, so that only long histories reach the longest.
    assertHistories(context, { step, maxLength: 60, numRuns: 200 }, (history) => {
      let now = NOW;
      let last: PodRemoval | undefined;
      for (const { pass, pods } of history) {
        now += pass;
        const waiting = pods.map((age, index) => pod(`${index}`, { createdAt: now + age * SECOND }));
        const decision = nextRemoval(waiting, last, now);
        if (decision.kind === 'remove') {
          expect(last === undefined || now - last.at >= 30_000).toBe(true);
          expect(decision.removal.waitMilliseconds).toBeLessThanOrEqual(300_000);
          last = decision.removal;
        }
      }
    });
  });
});
