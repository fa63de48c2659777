import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { parseWithoutManagedFields } from './json.ts';
import { ListSplitter } from './liststream.ts';

const UNITS = ['"', '{', '}', '[', ']', ',', 'é', '🜚', 'a'];
/** Texts with brackets, and with characters that JSON writes with a backslash. */
const text = fc.string({ unit: fc.constantFrom('\\', ...UNITS) });
/** Keys without a backslash. After a key of one backslash, JSON.parse of Node.js 24.21 can read a key of one quote as a backslash. */
const key = fc.string({ unit: fc.constantFrom(...UNITS) });
const value = fc.letrec((tie) => ({
  any: fc.oneof({ depthSize: 'small' }, text, fc.integer(), tie('list'), tie('object')),
  list: fc.array(tie('any'), { maxLength: 3 }),
  object: fc.dictionary(key, tie('any'), { maxKeys: 3 }),
}));
const list = fc.record({
  apiVersion: text,
  items: fc.array(fc.dictionary(key, value.any, { maxKeys: 4 }), { maxLength: 4 }),
  kind: text,
  metadata: fc.record({ continue: text, resourceVersion: text, more: value.object }),
});

function split(json: Buffer, size: number): { items: unknown[]; rest: unknown } {
  const items: unknown[] = [];
  const splitter = new ListSplitter((some) => items.push(...(JSON.parse(some) as unknown[])));
  for (let at = 0; at < json.length; at += size) {
    splitter.push(json.subarray(at, at + size));
  }
  return { items, rest: JSON.parse(splitter.rest) };
}

it('gives each object of a list, whatever its texts are and wherever the pieces end', () => {
  fc.assert(
    fc.property(list, fc.integer({ min: 1, max: 40 }), fc.boolean(), (whole, size, isIndented) => {
      const json = Buffer.from(JSON.stringify(whole, undefined, isIndented ? 2 : 0));
      const { items, ...rest } = whole;
      expect(split(json, size)).toEqual({ items, rest: { ...rest, items: [] } });
    }),
  );
});

it('leaves out the content of managedFields, whatever it is and wherever the pieces end', () => {
  const fields = fc.record({ managedFields: fc.array(value.any, { maxLength: 3 }), name: text });
  const objects = fc.array(fc.record({ metadata: fields, spec: value.any }), { maxLength: 3 });
  fc.assert(
    fc.property(objects, fc.integer({ min: 1, max: 40 }), (items, size) => {
      const emptied = items.map(({ metadata, spec }) => ({
        metadata: { ...metadata, managedFields: [] },
        spec,
      }));
      const json = Buffer.from(JSON.stringify({ items }));
      // A key that is in two pieces is not found. Its list stays, and is removed when the object is parsed.
      expect(split(json, json.length)).toEqual({ items: emptied, rest: { items: [] } });
      const { items: found } = split(json, size);
      expect(found.map((each) => parseWithoutManagedFields(JSON.stringify(each)))).toEqual(
        items.map((each) => parseWithoutManagedFields(JSON.stringify(each))),
      );
    }),
  );
});

it('gives objects while the list still arrives', () => {
  const one = JSON.stringify({ name: 'x'.repeat(40_000) });
  const taken: number[] = [];
  const splitter = new ListSplitter((some) => taken.push((JSON.parse(some) as unknown[]).length));
  splitter.push(Buffer.from(`{"items":[${one}`));
  splitter.push(Buffer.from(`,${one},${one.slice(0, 9)}`));
  expect(taken).toEqual([2]);
  splitter.push(Buffer.from(`${one.slice(9)},${one}`));
  expect(taken).toEqual([2, 2]);
  splitter.push(Buffer.from(`,${one}]}`));
  expect([taken, splitter.rest]).toEqual([[2, 2, 1], '{"items":[]}']);
});

it('keeps a list without objects', () => {
  const empty = '{"items":null,"metadata":{"resourceVersion":"1"}}';
  expect(split(Buffer.from(empty), 7)).toEqual({ items: [], rest: JSON.parse(empty) });
});
