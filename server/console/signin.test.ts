import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Exchanges } from './signin.ts';

let exchanges: Exchanges;

beforeEach(() => {
  vi.useFakeTimers();
  exchanges = new Exchanges();
});

afterEach(() => {
  vi.useRealTimers();
});

/** Sends a code from the address. Returns what the exchange gives, or the message of its refusal. */
async function exchange(remoteAddress: string, work: () => Promise<string>, gone?: AbortSignal) {
  const result = exchanges.run({ socket: { remoteAddress }, gone }, work);
  return await result.catch((error: unknown) => String(error));
}

/** A provider that gives no answer. */
const silent = async () => await new Promise<never>(() => undefined);
const quick = async () => await Promise.resolve('token');

/** Sends codes for a provider that does not answer, many from each network. */
function flood(networks: readonly string[], count: number): Promise<string>[] {
  return Array.from({ length: count }, (_, number) =>
    networks.map(async (network) => await exchange(network.replace('*', String(number + 1)), silent)),
  ).flat();
}

it('four sources that take all places keep out no other one', async () => {
  const networks = ['192.0.2.1', '192.0.2.2', '2001:db8:0:1::*', '2001:db8:0:2::*'];
  void flood(networks, 20);
  const token = exchange('198.51.100.7', quick);
  void flood(networks, 20);
  await vi.advanceTimersByTimeAsync(8_000);
  await expect(token).resolves.toBe('token');
});

it('a place that another source needs is given up with a reason', async () => {
  const [first] = flood(['192.0.2.1'], 32);
  void exchange('198.51.100.7', silent);
  await expect(first).resolves.toMatch(/Too many people sign in at the same time. Sign in again/);
});

it('a provider that is slow holds no place for longer than 20 seconds', async () => {
  const [first, ...others] = flood(['192.0.2.1'], 32);
  await vi.advanceTimersByTimeAsync(20_000);
  await expect(first).resolves.toMatch(/took longer than 20 s. The identity provider is slow/);
  expect(new Set(await Promise.all(others)).size).toBe(1);
  const token = exchange('198.51.100.7', quick);
  await vi.advanceTimersByTimeAsync(1_000);
  await expect(token).resolves.toBe('token');
});

it('asks the provider for no code whose client is gone', async () => {
  const gone = new AbortController();
  const work = vi.fn<() => Promise<string>>(quick);
  void flood(['192.0.2.1'], 5);
  const waiting = exchange('192.0.2.1', work, gone.signal);
  gone.abort(new Error('The client closed the connection'));
  await expect(waiting).resolves.toMatch(/client closed the connection/);
  await vi.advanceTimersByTimeAsync(5_000);
  expect(work).not.toHaveBeenCalled();
});
