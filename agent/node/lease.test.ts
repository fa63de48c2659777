import { uptime } from 'node:os';
import { type Logger, pino } from 'pino';
import { afterEach, expect, onTestFinished, test, vi } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import type { Node } from '../../kube/core.ts';
import { NodeLease } from './lease.ts';

vi.mock(import('node:os'), { spy: true });

const node: Node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'mac1', uid: 'u' } };
/** Long enough that a busy machine renews the Lease in time. */
const FENCE_AFTER_MILLISECONDS = 1_000;

afterEach(() => void vi.restoreAllMocks());

interface Parts {
  apply: () => Promise<unknown>;
  reported?: string[];
  /** Answers to the question whether the Pods are read; then the answer is yes. */
  isUpToDate?: boolean[];
  logger?: Logger;
}

/** Starts to renew a Lease. `told` collects the calls of the lease's parts. */
function startLease({
  apply,
  reported = [],
  isUpToDate = [],
  logger = pino({ level: 'silent' }),
}: Parts): void {
  const stop = new AbortController();
  const lease = new NodeLease({
    client: { apply } as unknown as KubeClient,
    nodeName: 'mac1',
    node: () => node,
    fenceAfterMilliseconds: FENCE_AFTER_MILLISECONDS,
    isUpToDate: async () => {
      reported.push('read');
      return isUpToDate.shift() ?? true;
    },
    onFenced: (fenced) => reported.push(fenced ? 'fenced' : 'connected'),
    logger,
  });
  const running = lease.run(stop.signal);
  onTestFinished(async () => {
    stop.abort();
    await running;
  });
}

test('a host that was suspended for too long is fenced before its next renewal, until its Pods are read', async () => {
  const reported: string[] = [];
  const apply = vi.fn(async () => void reported.push('renewed'));
  // The regular check of the age never comes, so only the renewal itself can notice the suspension.
  vi.useFakeTimers({ toFake: ['setInterval'] });
  onTestFinished(() => void vi.useRealTimers());
  vi.mocked(uptime).mockReturnValue(1_000);
  startLease({ apply, reported, isUpToDate: [false] });
  await expect.poll(() => apply.mock.calls.length).toBeGreaterThan(1);
  expect(new Set(reported)).toEqual(new Set(['renewed']));
  reported.length = 0;
  // The clocks of Node.js do not count the time of a suspension. The uptime of the host counts it.
  vi.mocked(uptime).mockReturnValue(1_000 + 3_600);
  await expect.poll(() => reported).toContain('connected');
  const until = reported.slice(reported.indexOf('fenced'), reported.indexOf('connected') + 1);
  expect(until).toEqual(['fenced', 'renewed', 'read', 'renewed', 'read', 'connected']);
});

test('renewals that fail in a row are logged once, however long the API server is away', async () => {
  const logger = pino({ level: 'silent' });
  const warn = vi.spyOn(logger, 'warn');
  let isAway = true;
  const apply = vi.fn(async () => {
    if (isAway) {
      throw new Error('no answer');
    }
  });
  startLease({ apply, logger });
  await expect.poll(() => apply.mock.calls.length).toBeGreaterThan(3);
  expect(warn).toHaveBeenCalledTimes(1);
  isAway = false;
  const { length } = apply.mock.calls;
  await expect.poll(() => apply.mock.calls.length).toBeGreaterThan(length + 1);
  isAway = true;
  await expect.poll(() => warn.mock.calls.length).toBe(2);
});
