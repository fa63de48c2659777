import * as fc from 'fast-check';
import { describe, expect, it, vi } from 'vitest';
import type { Node } from '../../kube/core.ts';
import type { EmulatorOffer } from '../drivers/driver.ts';
import { emulatorCondition, emulatorLabels, EmulatorOffers } from './emulators.ts';
import { staleLabels } from './node.ts';

const PREFIX = 'emulator.berth.dev/';

function offer(...systemImages: string[]) {
  return { kind: 'offered', systemImages } as const;
}

it('each system image is a label, and none has another value or place', () => {
  expect(emulatorLabels(offer('android-36.google_apis', 'android-34.default'))).toEqual({
    [`${PREFIX}android-34.default`]: '',
    [`${PREFIX}android-36.google_apis`]: '',
  });
  expect(emulatorLabels({ kind: 'none', message: 'no SDK' })).toEqual({});
});

it('an image whose name is no label is left out and named', () => {
  const long = `android-36.${'x'.repeat(53)}`;
  const images = offer('android-36.default', 'android-36.bad_', long);
  expect(Object.keys(emulatorLabels(images))).toEqual([`${PREFIX}android-36.default`]);
  expect(emulatorCondition(images)).toEqual({
    offered: true,
    message: `The host has 1 system image for emulators. Its Node does not list "android-36.bad_", "${long}": a Node lists at most 64 system images, and only those whose name is a valid label name`,
  });
});

it('of many images the first 64 are listed, and the condition says so', () => {
  const names = Array.from({ length: 80 }, (_, index) => `android-${100 + index}.default`);
  expect(Object.keys(emulatorLabels(offer(...names.toReversed())))).toEqual(
    names.slice(0, 64).map((name) => PREFIX + name),
  );
  const { message } = emulatorCondition(offer(...names));
  expect(message).toMatch(
    /^The host has 64 system images for emulators\. Its Node does not list "android-164\.default", /,
  );
  expect(message).toMatch(/ and 8 more: /);
});

it('any names of folders give labels and a message that the API server accepts', () => {
  fc.assert(
    fc.property(
      fc.array(fc.string({ size: 'max', maxLength: 80 }), { size: 'max', maxLength: 100 }),
      (names) => {
        const keys = Object.keys(emulatorLabels(offer(...names)));
        expect(keys.length).toBeLessThanOrEqual(64);
        for (const key of keys) {
          expect(key.slice(PREFIX.length)).toMatch(/^(?=.{1,63}$)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/);
        }
        expect(emulatorCondition(offer(...names)).message.length).toBeLessThan(8_192);
      },
    ),
  );
});

it('labels of images that went away are stale, and no other label is', () => {
  const labels = {
    [`${PREFIX}android-35.default`]: '',
    [`${PREFIX}android-36.default`]: '',
    'tag.berth.dev/x': '',
  };
  const node: Node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'mac1', labels } };
  expect(staleLabels(node, emulatorLabels(offer('android-36.default')))).toEqual([
    `${PREFIX}android-35.default`,
  ]);
});

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
  const reported: EmulatorOffer[] = [];
  const end = new AbortController();
  vi.useFakeTimers({ toFake: ['setTimeout'] });
  try {
    await offers.ask();
    const running = offers.run(end.signal, (offer) => reported.push(offer));
    await vi.advanceTimersByTimeAsync(60_000);
    expect([read.mock.calls.length, reported]).toEqual([3, []]);
    now = { kind: 'none', message: 'gone' };
    await vi.advanceTimersByTimeAsync(60_000);
    expect(reported).toEqual([now]);
    end.abort();
    await running;
  } finally {
    vi.useRealTimers();
  }
});
