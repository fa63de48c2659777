import { pino } from 'pino';
import { expect, it, vi } from 'vitest';
import { Controller } from './controller.ts';
import { loadConnection } from './credentials.ts';
import { LedProgram, type LedParts } from './ledprogram.ts';
import { type LeaderElectionOptions, runLeaderElection } from './lease.ts';
import { createMetrics } from './metrics.ts';
import { serveHealth, serveMetrics } from './serving/endpoints.ts';

vi.mock(import('./credentials.ts'), { spy: true });
vi.mock(import('./lease.ts'), { spy: true });
vi.mock(import('./serving/endpoints.ts'), { spy: true });

const logger = pino({ level: 'silent' });

/** Starts a program whose election the test decides. */
async function startProgram(parts: LedParts) {
  const close = vi.fn<() => Promise<void>>(async () => undefined);
  const { promise: done, resolve: end } = Promise.withResolvers<void>();
  const release = vi.fn<() => Promise<void>>(async () => undefined);
  vi.mocked(loadConnection).mockResolvedValue({ server: 'http://127.0.0.1:1' });
  vi.mocked(serveMetrics).mockResolvedValue({ close } as never);
  vi.mocked(serveHealth).mockResolvedValue({ close } as never);
  vi.mocked(runLeaderElection)
    .mockReset()
    .mockReturnValue({ isHeld: () => false, release, done });
  const program = await LedProgram.start({
    name: 'berth-test',
    reportingController: 'berth.dev/test',
    config: {
      namespaces: { system: 'berth-system' },
      metrics: { address: ':0', dnsNames: [] },
      health: { address: ':0' },
      leaderElection: { leaseDurationSeconds: 9, renewDeadlineSeconds: 6, retryPeriodSeconds: 1 },
    },
    kubeconfigPath: undefined,
    logger,
    onLost: () => undefined,
    createParts: () => parts,
  });
  await expect.poll(() => runLeaderElection).toHaveBeenCalledOnce();
  const [options] = vi.mocked(runLeaderElection).mock.calls[0] as [LeaderElectionOptions];
  return { program, close, end, release, lead: options.onStartedLeading };
}

it('stops only after the election, because a standby can just acquire the lease and must then release it', async () => {
  const { program, close, end } = await startProgram({ informers: [], controllers: [] });
  let isStopped = false;
  const stopped = program.stop().then(() => {
    isStopped = true;
  });
  await new Promise(setImmediate);
  expect(isStopped).toBe(false);
  end();
  await stopped;
  expect(close).toHaveBeenCalledTimes(2);
});

it('lets the running pass of a leader end, then ends what is left open, then releases the lease', async () => {
  const steps: string[] = [];
  const { promise: passing, resolve: finish } = Promise.withResolvers<void>();
  const begun = Promise.withResolvers<void>();
  const controller = new Controller({
    name: 'test',
    workers: 1,
    reconcile: async () => {
      begun.resolve();
      await passing;
      steps.push('pass');
      return undefined;
    },
    logger,
    metrics: createMetrics(),
  });
  controller.enqueue('key');
  const { program, end, release, lead } = await startProgram({
    informers: [],
    controllers: [controller],
    end: async () => void steps.push('end'),
  });
  release.mockImplementation(async () => {
    steps.push('release');
    end();
  });
  lead();
  await begun.promise;
  const stopped = program.stop();
  await new Promise(setImmediate);
  expect(steps).toEqual([]);
  finish();
  await stopped;
  expect(steps).toEqual(['pass', 'end', 'release']);
});
