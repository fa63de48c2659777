import { expect, test } from 'vitest';
import type { Attachment } from './attachments.ts';
import type { Layout } from './layout.ts';
import { describeFailures, type Evidence, reportOn } from './report.ts';

const layout = { bridge: 'berth0', probe: { innerPort: 'inner', outerPort: 'outer' } } as Layout;
const [a, b] = ['a', 'b'].map(
  (uid): Attachment => ({ uid, macAddress: '', address: '10.213.0.20', tap: `tap-${uid}`, ports: [] }),
);
const NO_FAULT: Evidence = {
  failedRepair: undefined,
  foreignDevices: new Map(),
  lostPaths: [],
  foreign: [],
  lostTaps: new Set(),
  withheldPorts: new Map(),
};

function report(evidence: Partial<Evidence>): ReturnType<typeof reportOn> {
  return reportOn(layout, a && b ? [a, b] : [], { ...NO_FAULT, ...evidence });
}

test('a foreign device in the place of a tap is the fault of its machine alone, also if a hypervisor lost the tap', () => {
  const foreignDevices = new Map([['tap-a', 'Device tap-a is foreign']]);
  const { healthy, faults, machines } = report({ foreignDevices, lostTaps: new Set(['tap-a']) });
  expect({ healthy, faults }).toEqual({ healthy: true, faults: ['Machine a: Device tap-a is foreign'] });
  expect(machines['a']).toEqual({ healthy: false, message: 'Device tap-a is foreign' });
  expect(machines['b']?.healthy).toBe(true);
});

test('a foreign device in the place of the bridge is the first fault of all machines', () => {
  const foreignDevices = new Map([[layout.bridge, 'Device berth0 is foreign']]);
  const { healthy, faults, machines } = report({ foreignDevices, lostPaths: ['out'] });
  expect({ healthy, faults }).toEqual({
    healthy: false,
    faults: ['Device berth0 is foreign', 'Packets from a guest to the outside are lost'],
  });
  expect(machines['b']).toEqual({ healthy: false, message: faults.join('; ') });
});

test('failed repairs are named as far as a message has room, and the others are counted', () => {
  const failures = Array.from({ length: 500 }, (_none, index) => `Tap ${index} was missing`);
  const first = 'Tap 0 was missing; Tap 1 was missing; Tap 2 was missing';
  expect(describeFailures(failures.slice(0, 3))).toBe(first);
  expect(describeFailures(failures)).toBe(`${first}; Further failed repairs: 497`);
});
