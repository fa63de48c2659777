import { describe, expect, test } from 'vitest';
import { mistakesOf, specFields, titlesOf } from './fields.ts';

const FIELDS = new Map([['VM', ['cpu', 'placement.tag']]]);
const TITLES = new Map([['a.test.ts', new Set(['the guest has %s processors', 'a tag is refused'])]]);
const PROVEN = {
  cpu: 'a.test.ts: the guest has %s processors',
  'placement.tag': 'refused a.test.ts: a tag is refused',
};

describe('the table of fields', () => {
  test('is complete when each field has a test that exists', () => {
    expect(mistakesOf({ VM: PROVEN }, FIELDS, TITLES)).toEqual([]);
  });

  test('is incomplete without an entry for a field', () => {
    const { cpu } = PROVEN;
    const missing = 'VM.placement.tag has no entry: name the test that shows its effect';
    expect(mistakesOf({ VM: { cpu } }, FIELDS, TITLES)).toEqual([missing]);
  });

  test('may name only tests that exist, in the file that has them', () => {
    for (const cpu of ['a.test.ts: another title', 'b.test.ts: a tag is refused', 'a tag is refused']) {
      expect(mistakesOf({ VM: { ...PROVEN, cpu } }, FIELDS, TITLES)).toEqual([
        `VM.cpu names no test: ${cpu}`,
      ]);
    }
  });

  test('may name only fields that exist', () => {
    const table = { VM: { ...PROVEN, colour: PROVEN.cpu }, Boat: { mast: PROVEN.cpu } };
    expect(mistakesOf(table, FIELDS, TITLES)).toEqual([
      'VM.colour is no field of a spec',
      'Boat.mast is no field of a spec',
    ]);
  });
});

test('titles are found in all calls that make tests', () => {
  const text = [
    "test('one', () => {});",
    "  it.skip(\n    'two', () => {});",
    "it.each(CASES)('three of %s', () => {});",
    "it.for<[string, Spec]>([\n  ['a', {}],\n])('four', () => {});",
    "test(`it's five`, { timeout: 1 }, () => {});",
    "expect('six').toBe('six');",
  ].join('\n');
  expect([...titlesOf(text)].toSorted()).toEqual(['four', "it's five", 'one', 'three of %s', 'two']);
});

test('the fields of a spec are those that hold a value', () => {
  const vm = specFields().get('VM') ?? [];
  expect(vm).toEqual(expect.arrayContaining(['cpu', 'placement.tag', 'imagePullSecrets[].name']));
  expect(vm).not.toContain('placement');
});
