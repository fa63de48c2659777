import { uptime } from 'node:os';
import { afterEach, expect, onTestFinished, test, vi } from 'vitest';
import { type Logger, pino } from 'pino';
import type { FreeDisk } from '../disks/freedisk.ts';
import { DiskPressureLook, NodeLease, ServerVersionLook } from './keeper.ts';
import type { KubeClient } from '../../kube/client.ts';
import { ApiError } from '../../kube/errors.ts';
import type { Node } from '../../kube/core.ts';

const ROOMY: FreeDisk = { share: 0.5, bytes: 2 ** 40 };
const FULL: FreeDisk = { share: 0.01, bytes: 2 ** 20 };

function lookAt(free: () => Promise<FreeDisk>): DiskPressureLook {
  return new DiskPressureLook({ minimumFree: 2 ** 30, free, answerMilliseconds: 20 });
}

test('a host takes VMs while its disk has room', async () => {
  expect(await lookAt(async () => ROOMY).look()).toEqual({ diskPressure: false, diskFault: undefined });
  expect(await lookAt(async () => FULL).look()).toEqual({ diskPressure: true, diskFault: undefined });
});

test('a host whose disk cannot be read takes no VMs, and tells why', async () => {
  const free = vi.fn(async (): Promise<FreeDisk> => ROOMY);
  free.mockRejectedValueOnce(new Error('EIO: i/o error, statfs'));
  const disk = lookAt(free);
  expect(await disk.look()).toEqual({
    diskPressure: true,
    diskFault:
      'The host takes no new VMs, because the free space of its disk is unknown: EIO: i/o error, statfs',
  });
  expect(await disk.look()).toEqual({ diskPressure: false, diskFault: undefined });
});

test('a host whose disk does not answer takes no VMs, and asks its disk only once', async () => {
  const { promise, resolve } = Promise.withResolvers<FreeDisk>();
  const free = vi.fn(async () => await promise);
  const disk = lookAt(free);
  for (let look = 0; look < 3; look += 1) {
    const { diskPressure, diskFault } = await disk.look();
    expect(diskPressure).toBe(true);
    expect(diskFault).toMatch(/the disk does not answer within 0.02 s$/);
  }
  expect(free).toHaveBeenCalledOnce();
  resolve(ROOMY);
  await expect.poll(async () => (await disk.look()).diskPressure).toBe(false);
});

test('one missing answer does not prolong the disk pressure of a host that had none before', async () => {
  // Enough for a host without disk pressure, but not enough to end disk pressure.
  const between: FreeDisk = { share: 0.06, bytes: 2 ** 40 };
  const free = vi.fn(async () => between);
  const disk = lookAt(free);
  expect(await disk.look()).toMatchObject({ diskPressure: false });
  free.mockRejectedValueOnce(new Error('EIO: i/o error, statfs'));
  expect(await disk.look()).toMatchObject({ diskPressure: true });
  expect(await disk.look()).toMatchObject({ diskPressure: false });
  free.mockResolvedValueOnce(FULL);
  expect(await disk.look()).toMatchObject({ diskPressure: true });
  free.mockRejectedValueOnce(new Error('EIO: i/o error, statfs'));
  await disk.look();
  expect(await disk.look()).toMatchObject({ diskPressure: true });
});

/** Asks once a minute while the API server gives these answers. Returns what is known after each minute. */
async function known(answers: readonly unknown[], minutes: number): Promise<(string | undefined)[]> {
  let now = 0;
  let asked = 0;
  const call = async () => {
    const body = answers[Math.min(asked, answers.length - 1)];
    asked += 1;
    if (body instanceof Error) {
      throw body;
    }
    return { status: 200, body };
  };
  const client = { call } as unknown as KubeClient;
  const look = new ServerVersionLook({ client, clock: () => now, logger: pino({ level: 'silent' }) });
  const versions: (string | undefined)[] = [];
  for (; now < minutes * 60_000; now += 60_000) {
    versions.push(await look.look());
  }
  return versions;
}

test('the version is asked for again after five minutes', async () => {
  const [old, later] = [{ gitVersion: 'v1.33.1' }, { gitVersion: 'v1.34.0' }];
  expect(await known([old, later], 6)).toEqual([...Array<string>(5).fill('v1.33.1'), 'v1.34.0']);
});

test.each([
  ['is forbidden', new ApiError('forbidden', { status: 403, reason: 'Forbidden' })],
  ['has no version', { major: '1' }],
])('an answer that %s leaves the version unknown', async (_what, answer) => {
  expect(await known([answer], 2)).toEqual([undefined, undefined]);
});

test('the agent asks again at once while the API server cannot be reached', async () => {
  await expect(known([new Error('ECONNREFUSED')], 1)).rejects.toThrow('ECONNREFUSED');
});

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
