import { pino } from 'pino';
import { expect, it, vi } from 'vitest';
import { loadConnection } from '../kube/credentials.ts';
import { runLeaderElection } from '../kube/lease.ts';
import { serveHealth, serveMetrics } from '../kube/serving/endpoints.ts';
import { parseConfig } from './config/config.ts';
import { createControllers } from './index.ts';
import { Operator } from './operator.ts';

vi.mock(import('../kube/credentials.ts'), { spy: true });
vi.mock(import('../kube/lease.ts'), { spy: true });
vi.mock(import('../kube/serving/endpoints.ts'), { spy: true });
vi.mock(import('./index.ts'), { spy: true });

it('stops only after the election, because a standby can just acquire the lease and must then release it', async () => {
  const close = vi.fn<() => Promise<void>>(async () => undefined);
  const { promise: done, resolve } = Promise.withResolvers<void>();
  vi.mocked(loadConnection).mockResolvedValue({ server: 'http://127.0.0.1:1' });
  vi.mocked(serveMetrics).mockResolvedValue({ close } as never);
  vi.mocked(serveHealth).mockResolvedValue({ close } as never);
  vi.mocked(createControllers).mockReturnValue({ informers: [], controllers: [] });
  vi.mocked(runLeaderElection).mockReturnValue({ isHeld: () => false, release: async () => undefined, done });
  const operator = await Operator.start({
    config: parseConfig({}, 'test'),
    kubeconfigPath: undefined,
    podName: undefined,
    logger: pino({ level: 'silent' }),
    onLost: () => undefined,
  });
  await expect.poll(() => runLeaderElection).toHaveBeenCalledOnce();
  let isStopped = false;
  const stopped = operator.stop().then(() => {
    isStopped = true;
  });
  await new Promise(setImmediate);
  expect(isStopped).toBe(false);
  resolve();
  await stopped;
  expect(close).toHaveBeenCalledTimes(2);
});
