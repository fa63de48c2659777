import { once } from 'node:events';
import { pino } from 'pino';
import { afterEach, expect, onTestFinished, test, vi } from 'vitest';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import { GuestChecks } from './guestchecks.ts';
import type { PodHost } from './host.ts';
import { newRecord, newRuntime, type Runtime } from './machine.ts';

const RUNNING = { kind: 'running', pid: 1, guestStarted: true, paused: false } as const;
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };
/** Pod, from an informer's cache, of a machine whose guest agent has answered. */
const READY: Pod = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'x', namespace: 'ns', uid: 'uid' },
  spec: { containers: [] },
  status: {
    conditions: [
      { type: 'Ready', status: 'True' },
      { type: MACHINE_CONDITION, status: 'True', message: '{"guestAgentConnected":true}' },
    ],
  },
};
/** A host whose guest agents have not answered yet. */
const host = {
  forwardAddress: '127.0.0.1',
  logger: pino({ enabled: false }),
  drivers: new Map([['qemu', { driver: { askGuest: () => Promise.withResolvers().promise } }]]),
} as unknown as PodHost;

let checks: GuestChecks;
afterEach(() => checks.close());

function runtimeOf(): Runtime {
  const machine = { readiness: { type: 'GuestAgent' }, ports: [] } as unknown as Machine;
  const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const record = newRecord({ driver: 'qemu', uid: 'uid', key: 'ns/x', machine, claim });
  return { ...newRuntime(record, '/none'), state: RUNNING };
}

test('a machine that an earlier agent checked stays ready until the first answer', () => {
  checks = new GuestChecks(host, () => undefined);
  const runtime = runtimeOf();
  checks.follow(READY, runtime);
  expect(runtime).toMatchObject({ guest: { connected: true }, readiness: { ready: true } });
});

test('a machine that starts again is not ready until the first answer, also while the cache has its old Pod', () => {
  checks = new GuestChecks(host, () => undefined);
  const runtime = runtimeOf();
  runtime.state = { kind: 'stopped' };
  checks.follow(READY, runtime);
  runtime.state = RUNNING;
  checks.follow(READY, runtime);
  expect(runtime).toMatchObject({ guest: undefined, readiness: { ready: false } });
});

test('the guest of a Pod that no longer exists is not asked any more', async () => {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  const asked: AbortSignal[] = [];
  const driver = {
    askGuest: async (_: unknown, { signal }: { signal: AbortSignal }) => {
      asked.push(signal);
      await once(signal, 'abort');
      throw signal.reason;
    },
  };
  checks = new GuestChecks(
    { ...host, drivers: new Map([['qemu', { driver }]]) } as unknown as PodHost,
    () => undefined,
  );
  const runtime = runtimeOf();
  checks.follow(READY, runtime);
  await vi.waitFor(() => expect(asked).toHaveLength(1), WAIT);
  checks.forget('uid');
  expect(asked[0]?.aborted).toBe(true);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toHaveLength(1);
});
