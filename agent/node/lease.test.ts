import { uptime } from 'node:os';
import { pino } from 'pino';
import { afterEach, expect, test, vi } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import type { Node } from '../../kube/core.ts';
import { NodeLease } from './lease.ts';

vi.mock(import('node:os'), { spy: true });

const node: Node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'mac1', uid: 'u' } };
const FENCE_AFTER_MILLISECONDS = 200;

afterEach(() => void vi.restoreAllMocks());

test('a host that was suspended for too long is fenced before its next renewal, until its Pods are read', async () => {
  const stop = new AbortController();
  const client = { apply: vi.fn(async () => ({})) };
  const told: string[] = [];
  vi.mocked(uptime).mockReturnValue(1_000);
  const lease = new NodeLease({
    client: client as unknown as KubeClient,
    nodeName: 'mac1',
    node: () => node,
    fenceAfterMilliseconds: FENCE_AFTER_MILLISECONDS,
    isUpToDate: async () => {
      told.push('read');
      return true;
    },
    onFenced: (fenced) => told.push(fenced ? 'fenced' : 'connected'),
    logger: pino({ level: 'silent' }),
  });
  const running = lease.run(stop.signal);
  await expect.poll(() => client.apply.mock.calls.length).toBeGreaterThan(1);
  expect(told).toEqual([]);
  // The clocks of Node.js do not count the time of a suspension. The uptime of the host counts it.
  vi.mocked(uptime).mockReturnValue(1_000 + 3_600);
  await expect.poll(() => told).toEqual(['fenced', 'read', 'connected']);
  stop.abort();
  await running;
});
