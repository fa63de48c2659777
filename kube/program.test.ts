import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { type Running, runUntilSignal } from './program.ts';

const logger = pino({ level: 'silent' });
const SIGNALS = ['SIGTERM', 'SIGINT'] as const;
const exit = vi.fn<(code: number) => never>();
const before = new Set(SIGNALS.flatMap((signal) => process.listeners(signal)));

beforeEach(() => void vi.spyOn(process, 'exit').mockImplementation(exit as typeof process.exit));

afterEach(() => {
  vi.restoreAllMocks();
  exit.mockReset();
  for (const signal of SIGNALS) {
    const added = process.listeners(signal).filter((listener) => !before.has(listener));
    added.forEach((listener) => process.off(signal, listener));
  }
});

it.each(SIGNALS)(
  '%s ends a program that is still starting, although the kernel protects process 1',
  async (signal) => {
    const { promise: started, resolve } = Promise.withResolvers<Running>();
    const stop = vi.fn<() => Promise<void>>(async () => undefined);
    const run = runUntilSignal(logger, async () => await started);
    process.emit(signal);
    await expect.poll(() => exit.mock.calls).toEqual([[0]]);
    resolve({ stop });
    await run;
    expect(stop).not.toHaveBeenCalled();
  },
);

it.each(SIGNALS)('%s ends a program after its work', async (signal) => {
  const { promise: stopped, resolve } = Promise.withResolvers<void>();
  const stop = vi.fn<() => Promise<void>>(async () => await stopped);
  await runUntilSignal(logger, async () => ({ stop }));
  process.emit(signal);
  await expect.poll(() => stop).toHaveBeenCalledOnce();
  // A program that does not wait for its work would exit in this turn.
  await new Promise((turn) => setImmediate(turn));
  expect(exit).not.toHaveBeenCalled();
  resolve();
  await expect.poll(() => exit.mock.calls).toEqual([[0]]);
});
