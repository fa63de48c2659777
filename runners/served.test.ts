import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { RunnerSet } from '../api/v1alpha1/runnerset.ts';
import type { VM } from '../api/v1alpha1/vm.ts';
import type { VMStatus } from '../api/v1alpha1/vmstatus.ts';
import type { KubeClient } from '../kube/client.ts';
import type { GitHubNetwork } from './github/http.ts';
import { RunnerVMFailed, ServedSet } from './served.ts';

const MINUTES = 60_000;
const SET: RunnerSet = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'RunnerSet',
  metadata: { namespace: 'ci', name: 'mac', uid: '0123-4567' },
  spec: { github: { url: 'https://github.com/acme', credentialSecret: 'github' }, max: 4 },
};

let served: ServedSet;

beforeEach(() => {
  vi.useFakeTimers();
  served = new ServedSet({
    set: SET,
    // The set has no session: its Secret cannot be read.
    client: { get: async () => await Promise.reject(new Error('no Secret')) } as unknown as KubeClient,
    network: {} as GitHubNetwork,
    owner: 'here',
    capacity: () => 0,
    onChange: vi.fn(),
    onItems: vi.fn(),
    logger: pino({ level: 'silent' }),
    clock: Date.now,
  });
});

afterEach(async () => {
  await served.stop({ deletesSet: false });
  vi.useRealTimers();
});

/** Returns a VM of the set that is made now. */
function vm(name: string, status: VMStatus): VM {
  const metadata = { namespace: 'ci', name, creationTimestamp: new Date().toISOString() };
  return { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata, spec: {}, status };
}

const FAILED: VMStatus = {
  failure: { reason: 'ImageArchitectureMismatch', message: 'use amd64', time: '2030-01-01T00:00:00Z' },
};

/** Makes a VM that fails at once. Returns the wait in milliseconds until the next one may be made. */
function fail(name: string): number {
  served.made(name);
  expect(served.observe(vm(name, FAILED))).toBeInstanceOf(RunnerVMFailed);
  return served.failures.until - Date.now();
}

it('waits 5 s after the first VM that fails, then twice as long each time, and 5 minutes at most', async () => {
  const waits: number[] = [];
  for (const name of ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i']) {
    const wait = fail(name);
    waits.push(wait);
    await vi.advanceTimersByTimeAsync(wait);
  }
  expect(waits.map((wait) => wait / 1000)).toEqual([5, 10, 20, 40, 80, 160, 300, 300, 300]);
});

it('makes one VM after others failed, until that one runs; VMs that failed together count once', async () => {
  expect(served.allow(4, () => true)).toBe(4);
  fail('first');
  expect(served.observe(vm('second', FAILED))).toBeUndefined();
  expect(served.failures.count).toBe(1);
  await vi.advanceTimersByTimeAsync(5 * MINUTES);
  expect(served.allow(4, () => true)).toBe(1);
  served.made('trial');
  expect(served.allow(4, () => true)).toBe(0);
  // It is gone, and nobody has learned whether it would have run.
  expect(served.allow(4, () => false)).toBe(1);
  expect(served.observe(vm('trial', { firstRunningTime: new Date().toISOString() }))).toBeUndefined();
  expect(served.allow(4, () => true)).toBe(4);
});
