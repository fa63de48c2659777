import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { parseWithoutManagedFields } from './json.ts';

/** Text that looks like a list of managed fields. It has characters that end strings and lists. */
const text = fc.string({
  unit: fc.constantFrom('a', '"', '\\', '[', ']', ',', '{', '}', '"managedFields":[', 'é', '😀'),
});
/**
 * Keys without backslashes, which no key of Kubernetes has. After JSON.parse of Node.js 24.21 has read a key that ends in a backslash
 * (`a\\`), it confuses that key with the key `a"`.
 */
const key = text.map((one) => one.replaceAll('\\', ''));
const value = fc.letrec((tie) => ({
  any: fc.oneof(
    { depthSize: 'small', maxDepth: 4 },
    text,
    fc.integer(),
    fc.constant(null),
    fc.array(tie('any'), { maxLength: 4 }),
    fc.dictionary(fc.oneof(key, fc.constantFrom('name', 'labels')), tie('any'), { maxKeys: 4 }),
  ),
})).any;
const keys = fc.uniqueArray(fc.constantFrom('a', 'managedFields', 'name', 'z'), { minLength: 1 });

it('reads the same as JSON.parse except managedFields, at any place and with any content', () => {
  fc.assert(
    fc.property(keys, value, fc.array(value), (names, other, fields) => {
      const metadata = Object.fromEntries(
        names.map((name) => [name, name === 'managedFields' ? fields : other]),
      );
      const { managedFields: _, ...rest } = metadata;
      const sent = JSON.stringify({ kind: 'List', items: [{ metadata, spec: other }, { metadata }] });
      const want = JSON.stringify({
        kind: 'List',
        items: [{ metadata: rest, spec: other }, { metadata: rest }],
      });
      expect(JSON.stringify(parseWithoutManagedFields(sent))).toBe(want);
    }),
    { numRuns: 2_000 },
  );
});

it.each(['{"metadata":{"managedFields":[{"a":"', '{"managedFields":[', '{"a":', ''])(
  'refuses text that ends too early: %s',
  (cut) => {
    expect(() => parseWithoutManagedFields(cut)).toThrow(SyntaxError);
  },
);
