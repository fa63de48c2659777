import { expect, it } from 'vitest';
import type { Pod } from '../../kube/core.ts';
import { newRecord, newRuntime, type Runtime, type WantedMachine } from './machine.ts';
import { wantedOf } from './pod.ts';

const NOW = Date.parse('2026-01-01T00:00:00Z');
const DAY_SECONDS = 24 * 60 * 60;
/** Limit of Node.js. A longer timer fires after 1 ms. */
const LONGEST_TIMER_MILLISECONDS = 2 ** 31 - 1;

function runtimeOf(): Runtime {
  const claim = { slots: 1, cpuMillis: 1000, memoryBytes: 0, diskBytes: 0, ports: [] };
  return newRuntime(
    newRecord({ uid: 'a', key: 'default/a', driver: 'qemu', machine: undefined, claim }),
    '/machines',
  );
}

/** Returns what a Pod wants that is being deleted. `deletion` and `termination` are grace periods in seconds. */
function wantedBy(deletion: number, termination: number, runtime = runtimeOf()): WantedMachine {
  const pod = {
    metadata: { name: 'a', deletionTimestamp: '2026-01-01T00:00:00Z', deletionGracePeriodSeconds: deletion },
    spec: { terminationGracePeriodSeconds: termination },
  } as unknown as Pod;
  return wantedOf(pod, { kind: 'foreign' }, runtime, NOW);
}

it.each([
  ['25 days, which a timer would shorten to 1 ms', 25 * DAY_SECONDS],
  ['50 days, which no timer takes', 50 * DAY_SECONDS],
])('a grace period of %s is cut to the longest timer', (_, seconds) => {
  const { deletion, graceMilliseconds } = wantedBy(seconds, seconds);
  for (const milliseconds of [graceMilliseconds, (deletion?.deadline ?? 0) - NOW]) {
    expect(milliseconds).toBeLessThanOrEqual(LONGEST_TIMER_MILLISECONDS);
    expect(milliseconds).toBeGreaterThan(LONGEST_TIMER_MILLISECONDS - 1000);
  }
});

it('a shorter grace period stays as it is, and can be shortened later', () => {
  const runtime = runtimeOf();
  expect(wantedBy(DAY_SECONDS, 7, runtime)).toMatchObject({
    deletion: { deadline: NOW + DAY_SECONDS * 1000 },
    graceMilliseconds: 7_000,
  });
  expect(wantedBy(5, 7, runtime).deletion).toMatchObject({ deadline: NOW + 5_000 });
});

it.each([0, 1])('a grace period of %d s ends the machine at once', (seconds) => {
  expect(wantedBy(seconds, 30).deletion).toMatchObject({ deadline: NOW });
});
