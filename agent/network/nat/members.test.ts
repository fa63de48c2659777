import { existsSync } from 'node:fs';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Link } from './devices.ts';
import type { Repair } from './plan.ts';
import { natLayout } from '../../../test/fixtures/natlayout.ts';
import { Members, TapWatch } from './members.ts';
import { makeFolder } from '../../../test/support/folder.ts';

const MACHINE = { uid: 'vm', macAddress: '52:54:00:00:00:01', address: '10.97.0.20', tap: 't', ports: [] };
const PROGRAM = { uid: 'emulator', address: '10.97.1.20', device: 'd', exposedPort: 5555, ports: [] };

/** Program that the tests use in place of conntrack. It adds its arguments to a file. */
const CONNTRACK = '#!/bin/sh\necho "$@" >> "$0.calls"\n';

let root: string;
let directory: string;

beforeEach(async () => {
  root = makeFolder();
  directory = join(root, 'network');
  await writeFile(join(root, 'conntrack'), CONNTRACK, { mode: 0o755 });
  vi.stubEnv('PATH', `${root}${delimiter}${process.env['PATH']}`);
});

afterEach(async () => {
  vi.unstubAllEnvs();
});

/** Returns the members that an agent reads at its start. */
async function loaded(): Promise<Members> {
  const layout = natLayout({ directory, runtimeDirectory: root });
  const members = new Members(layout, directory);
  await members.load();
  return members;
}

test.each([MACHINE, PROGRAM])(
  '$uid can be detached again until the files are written without it',
  async (one) => {
    const members = await loaded();
    members.put(one, {});
    expect(members.leave(one.uid)).toEqual(one);
    await mkdir(join(directory, 'attachments.json'), { recursive: true });
    await expect(members.remove(one.uid)).rejects.toThrow('attachments.json');
    expect(members.leave(one.uid)).toEqual(one);
    await rm(directory, { recursive: true });
    await members.save();
    expect((await loaded()).all).toEqual([one]);
    await members.remove(one.uid);
    expect(members.leave(one.uid)).toBeUndefined();
    expect((await loaded()).all).toEqual([]);
  },
);

test('a machine that is being detached is not wanted, but keeps its address and ports', async () => {
  const members = await loaded();
  const ports = [{ protocol: 'TCP' as const, hostPort: 8022, guestPort: 22 }];
  const machine = { ...MACHINE, ports };
  members.put(machine, {});
  members.leave(machine.uid);
  expect(members.wanted).toEqual({ machines: [], namespaces: [] });
  expect(members.size).toBe(1);
  expect(members.holders).toEqual([{ ...MACHINE, ports }]);
  expect(members.addresses()).toEqual(new Set([machine.address]));
  expect(members.addressOf(machine.uid)).toBe(machine.address);
  members.put(machine, {});
  expect(members.holders).toEqual([machine]);
  expect(members.wanted.machines).toEqual([machine]);
});

test('connections of a machine that an earlier agent perhaps did not attach completely are forgotten once', async () => {
  const earlier = await loaded();
  earlier.put(MACHINE, {});
  await earlier.save();
  const members = await loaded();
  members.put(MACHINE, { running: false });
  await members.forgetFormer(MACHINE);
  const calls = await readFile(join(root, 'conntrack.calls'), 'utf8');
  expect(calls.trim().split('\n').toSorted()).toEqual([
    `-D --orig-src ${MACHINE.address}`,
    `-D --reply-src ${MACHINE.address}`,
  ]);
  members.put(MACHINE, {});
  await members.forgetFormer(MACHINE);
  expect(await readFile(join(root, 'conntrack.calls'), 'utf8')).toBe(calls);
});

test('a machine that already runs when the agent starts keeps its connections', async () => {
  const earlier = await loaded();
  earlier.put(MACHINE, {});
  await earlier.save();
  const members = await loaded();
  members.put(MACHINE, { running: true });
  await members.forgetFormer(MACHINE);
  expect(existsSync(join(root, 'conntrack.calls'))).toBe(false);
});

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

test.each([
  ['lost while it has no carrier', TAP, [true, true, false]],
  ['not lost with a carrier', HELD, [false, false, false]],
])('a tap whose hypervisor ran before the agent started is %s', (_what, link, lost) => {
  const watch = new TapWatch();
  const links = new Map([['t', link]]);
  watch.notice(['t'], [], links);
  watch.adopt('t', links);
  const seen = [watch.lost.has('t')];
  for (const next of [link, HELD]) {
    watch.notice(['t'], [], new Map([['t', next]]));
    seen.push(watch.lost.has('t'));
  }
  expect(seen).toEqual(lost);
});

test('a tap whose machine is gone is not lost', () => {
  const watch = new TapWatch();
  watch.notice(['t'], [], new Map([['t', HELD]]));
  watch.notice([], [], new Map());
  expect(watch.lost).toEqual(new Set());
});
