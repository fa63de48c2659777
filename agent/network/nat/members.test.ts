import { expect, test } from 'vitest';
import type { Link } from './observe.ts';
import type { Repair } from './plan.ts';
import { TapWatch } from './members.ts';

const TAP: Link = {
  index: 7,
  peer: undefined,
  kind: 'tun',
  up: true,
  master: 'berth0',
  isolated: true,
  addresses: [],
  ipv6: false,
  carrier: false,
};
const HELD: Link = { ...TAP, carrier: true };
const FOREIGN: Link = { ...HELD, kind: 'veth' };
const CREATE: Repair = { kind: 'createTap', device: 't', owner: undefined };

/** Returns whether the tap `t` is lost after each observation. An observation has a link or none, and perhaps a repair. */
function lostAfter(...seen: (readonly [link: Link | undefined, done?: Repair])[]): boolean[] {
  const watch = new TapWatch();
  return seen.map(([link, done]) => {
    watch.notice(['t'], done ? [done] : [], new Map(link ? [['t', link]] : []));
    return watch.lost.has('t');
  });
}

test('a tap that was created again under a running hypervisor is lost', () => {
  expect(lostAfter([HELD], [TAP, CREATE], [TAP])).toEqual([false, true, true]);
});

test('a tap that a foreign device replaced for a while is lost, also when it was created again', () => {
  expect(lostAfter([HELD], [FOREIGN], [TAP, CREATE], [TAP])).toEqual([false, true, true, true]);
});

test('a tap that could not be created again is lost, also when a later repair creates it', () => {
  expect(lostAfter([HELD], [undefined], [TAP, CREATE])).toEqual([false, true, true]);
});

test('a tap of a hypervisor that ended is not lost, nor a tap that none held yet', () => {
  expect(lostAfter([HELD], [TAP], [TAP, CREATE])).toEqual([false, false, false]);
  expect(lostAfter([TAP, CREATE], [FOREIGN], [TAP, CREATE])).toEqual([false, false, false]);
});

test('a tap is no longer lost when a hypervisor holds it, or when its machine is attached again', () => {
  expect(lostAfter([HELD], [undefined], [HELD])).toEqual([false, true, false]);
  const watch = new TapWatch();
  watch.notice(['t'], [], new Map([['t', HELD]]));
  watch.notice(['t'], [CREATE], new Map([['t', TAP]]));
  watch.forget('t');
  watch.notice(['t'], [], new Map([['t', TAP]]));
  expect(watch.lost).toEqual(new Set());
});

test('a tap whose machine is gone is not lost', () => {
  const watch = new TapWatch();
  watch.notice(['t'], [], new Map([['t', HELD]]));
  watch.notice([], [], new Map());
  expect(watch.lost).toEqual(new Set());
});
