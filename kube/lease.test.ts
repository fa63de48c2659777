import { pino } from 'pino';
import { Registry } from 'prom-client';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { KubeClient } from './client.ts';
import type { Lease } from './core.ts';
import { ApiError } from './errors.ts';
import { runLeaderElection } from './lease.ts';
import { runtimeMetrics } from './metrics.ts';

const MISSING = new ApiError('there is no such lease', { status: 404, reason: 'NotFound' });

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

it('is lost at the next renewal when the lease was deleted, because another candidate can create it at once', async () => {
  let stored: Lease | undefined;
  let version = 0;
  const store = ({ metadata, ...lease }: Lease): Lease => {
    version += 1;
    stored = { ...lease, metadata: { ...metadata, resourceVersion: String(version) } };
    return stored;
  };
  const found = async () => {
    if (stored === undefined) {
      throw MISSING;
    }
    return stored;
  };
  const client = {
    transport: { stream: async () => await Promise.reject(MISSING), metrics: runtimeMetrics(new Registry()) },
    get: found,
    create: async (_type: unknown, lease: Lease) => store(lease),
    update: async (_type: unknown, lease: Lease) => {
      await found();
      return store(lease);
    },
  };
  const onLost = vi.fn<() => void>();
  const end = new AbortController();
  const election = runLeaderElection({
    client: client as unknown as KubeClient,
    namespace: 'n',
    name: 'lease',
    identity: 'me',
    logger: pino({ level: 'silent' }),
    signal: end.signal,
    metrics: new Registry(),
    onStartedLeading: () => undefined,
    onLost,
  });
  await vi.advanceTimersByTimeAsync(20_000);
  expect(election.isHeld()).toBe(true);
  expect(onLost).not.toHaveBeenCalled();
  stored = undefined;
  await vi.advanceTimersByTimeAsync(1_100);
  expect(election.isHeld()).toBe(false);
  expect(onLost).toHaveBeenCalledOnce();
  await election.done;
});
