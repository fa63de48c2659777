import { describe, expect, it, vi } from 'vitest';
import type { EmulatorOffer } from '../drivers/driver.ts';
import { EmulatorOffers } from './emulators.ts';

const CONFIG = { emulator: { sdk: '/opt/sdk', program: undefined } };
const OFFER: EmulatorOffer = { kind: 'offered', systemImages: ['android-36.default'] };

function offersOf(offer: () => Promise<EmulatorOffer>, network: 'nat' | 'user' = 'nat'): EmulatorOffers {
  return new EmulatorOffers(CONFIG, { emulators: { offer }, network: { name: network } });
}

describe('a host offers no emulators', () => {
  it('without an SDK', async () => {
    const parts = { emulators: { offer: async () => OFFER }, network: { name: 'nat' as const } };
    expect(await new EmulatorOffers({ emulator: undefined }, parts).ask()).toEqual({
      kind: 'none',
      message: 'emulator.sdk is not set in the configuration of the agent of this host',
    });
  });

  it('with the network driver user, which has no namespaces', async () => {
    const { kind, message } = { message: '', ...(await offersOf(async () => OFFER, 'user').ask()) };
    expect([kind, message]).toEqual([
      'none',
      expect.stringMatching(/network driver user .* set network.driver to nat/),
    ]);
  });

  it('when the SDK cannot be read, or not in time; a folder that never answers is not read twice', async () => {
    const broken = offersOf(async () => {
      throw new Error('EIO: i/o error');
    });
    expect(await broken.ask()).toEqual({
      kind: 'none',
      message: 'The SDK of the host cannot be read: EIO: i/o error',
    });
    vi.useFakeTimers({ toFake: ['setTimeout'] });
    try {
      const read = vi.fn<() => Promise<EmulatorOffer>>(() => new Promise(() => undefined));
      const stuck = offersOf(read);
      for (const _ of [1, 2]) {
        const asked = stuck.ask();
        await vi.advanceTimersByTimeAsync(10_000);
        expect(await asked).toEqual({
          kind: 'none',
          message: 'The SDK of the host was not read within 10 s',
        });
      }
      expect(read).toHaveBeenCalledTimes(1);
    } finally {
      vi.useRealTimers();
    }
  });
});

it('the SDK is looked at every 30 s, and only changes are told', async () => {
  let now: EmulatorOffer = OFFER;
  const read = vi.fn<() => Promise<EmulatorOffer>>(async () => structuredClone(now));
  const offers = offersOf(read);
  const told: EmulatorOffer[] = [];
  const end = new AbortController();
  vi.useFakeTimers({ toFake: ['setTimeout'] });
  try {
    await offers.ask();
    const running = offers.run(end.signal, (offer) => told.push(offer));
    await vi.advanceTimersByTimeAsync(60_000);
    expect([read.mock.calls.length, told]).toEqual([3, []]);
    now = { kind: 'none', message: 'gone' };
    await vi.advanceTimersByTimeAsync(60_000);
    expect(told).toEqual([now]);
    end.abort();
    await running;
  } finally {
    vi.useRealTimers();
  }
});
