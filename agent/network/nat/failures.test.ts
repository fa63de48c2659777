import { expect, test } from 'vitest';
import { Failures } from './failures.ts';
import type { Layout } from './layout.ts';
import type { Repair } from './plan.ts';

const layout = { namespaces: { prefix: 'bn' } } as Layout;

function tap(device: string): Repair {
  return { kind: 'createTap', device, owner: undefined };
}

test('failed repairs are named as far as a message has room, and the others are counted', () => {
  const failures = new Failures(layout);
  const first = [0, 1, 2].map((index) => `Tap bt${index} was missing, and it failed`).join('; ');
  for (let index = 0; index < 500; index++) {
    failures.add(tap(`bt${index}`), 'it failed');
    if (index === 2) {
      expect(failures.described().failed).toBe(first);
    }
  }
  expect(failures.described().failed).toBe(`${first}; Further failed repairs: 497`);
});

test('a failed repair of a namespace concerns no machine but its own, and precludes only its further repairs', () => {
  const failures = new Failures(layout);
  failures.add({ kind: 'createPair', device: 'bn1' }, 'it failed');
  const told = 'Network namespace bn1 was not connected to this host, and it failed';
  expect(failures.areGeneral).toBe(false);
  expect(failures.described()).toEqual({ failed: undefined, failedNamespaces: new Map([['bn1', told]]) });
  expect(failures.precludes({ kind: 'raiseDevice', device: 'bn1' })).toBe(true);
  expect(failures.precludes({ kind: 'raiseDevice', device: 'bn2' })).toBe(false);
  expect(failures.precludes({ kind: 'loadRules' })).toBe(false);
});
