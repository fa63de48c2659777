import { expect, it } from 'vitest';
import * as z from 'zod';
import { vmDeployBody } from '../../api/http/vm.ts';
import { normalizeBody } from './bodies.ts';
import type { StatusError } from './errors.ts';

const schema = z.object({
  name: z.string(),
  cpu: z.int().min(1).optional(),
  free: z.int().min(0).optional(),
  expirationSeconds: z.int().min(600).optional(),
  text: z.string().optional(),
  description: z.string(),
});

it.each([
  [
    { NAME: 'a', Cpu: 2, other: null, another: '' },
    { name: 'a', cpu: 2 },
  ],
  [{ name: null, cpu: null }, {}],
  [
    { cpu: 0, free: 0, text: '', description: '' },
    { free: 0, description: '' },
  ],
  // Zero would otherwise become a token with the default life of a year. So it stays, and is refused.
  [{ expirationSeconds: 0 }, { expirationSeconds: 0 }],
  [undefined, {}],
  [null, {}],
  [5, 5],
  [['a'], ['a']],
])('reads %j as %j', (given, read) => {
  expect(normalizeBody(schema, given)).toEqual(read);
});

it.each([
  [{ Items: [{ Key: 'a', Value: 'b' }] }, { items: [{ key: 'a', value: 'b' }] }],
  [
    { Items: 'a text', KEY: 'b' },
    { Items: 'a text', KEY: 'b' },
  ],
  [{ items: [{ key: 'a' }] }, { items: [{ key: 'a' }] }],
  // Go programs write an empty list as null.
  [{ items: null }, {}],
  [{ a: null, b: '' }, { b: '' }],
])('reads the metadata %j as %j', (vmMetadata, read) => {
  expect(normalizeBody(vmDeployBody(240), { VMMetadata: vmMetadata })).toEqual({ vmMetadata: read });
});

/** Returns an object that no caller may look into. */
function untouchable(): object {
  return new Proxy(
    {},
    {
      ownKeys: () => {
        throw new Error('the object was read');
      },
    },
  );
}

it('does not read the elements of a list that every schema refuses for its length', () => {
  const items = Array.from({ length: 4_097 }, untouchable);
  expect(normalizeBody(vmDeployBody(240), { vmMetadata: { items } })).toEqual({ vmMetadata: { items } });
});

it('reads only the last value of a field that is given in several spellings, and refuses the field', () => {
  const given = { vmMetadata: { items: [untouchable()] }, VMMETADATA: { A: 'b' }, vmmetadata: null };
  expect(() => normalizeBody(vmDeployBody(240), given)).toThrow(
    'vmMetadata: is given more than once, in different letter case',
  );
});

/** Returns the fields and the text of the refusal. */
function refusalOf(given: unknown, of: z.ZodType = vmDeployBody(240)) {
  try {
    normalizeBody(of, given);
  } catch (error) {
    const { details, message = '' } = (error as StatusError).body;
    return { fields: details?.causes?.map(({ field }) => field), message };
  }
  return undefined;
}

it.each([
  [{ image: 'a', namePrefix: 'jenkins-', nodeName: 'nohost' }, ['namePrefix', 'nodeName']],
  [
    { image: 'a', vmMetadata: { items: [{ key: 'a', value: 'b', valve: 'c' }] } },
    ['vmMetadata.items.0.valve'],
  ],
  [{ image: 'a', vmMetadata: { items: [], other: 'c' } }, ['vmMetadata.other']],
  [{ image: 'a', vmMetadata: { items: [{ key: 'a', valve: 'c' }] } }, ['vmMetadata.items.0.valve']],
  [{ image: 'a', '': 1 }, ['""']],
  [JSON.parse('{"image": "a", "__proto__": {"cpu": 2}, "constructor": 1}'), ['__proto__', 'constructor']],
])('refuses the unknown fields of %j', (given, fields) => {
  expect(refusalOf(given)).toMatchObject({ fields });
});

it('names the similar field, or else the known fields of the object', () => {
  expect(refusalOf({ displayDip: 1 })?.message).toBe(
    'displayDip: is not a known field (did you mean displayDPI?)',
  );
  const subject = z.object({ kind: z.string().optional(), name: z.string(), namespace: z.string() });
  const subjects = z.object({ serviceaccounts: z.array(subject) });
  const users = { serviceaccounts: [{ name: 'a', namespace: 'platform-a', uid: 'b' }] };
  expect(refusalOf(users, subjects)?.message).toBe(
    'serviceaccounts.0.uid: is not a known field. The known fields of serviceaccounts.0 are kind, name, namespace',
  );
});

it('answers thousands of unknown fields with a short text', () => {
  const many = Object.fromEntries(Array.from({ length: 16_000 }, (_, index) => [`unknown-${index}`, index]));
  const refusal = refusalOf({ ['x'.repeat(1_000_000)]: 1, ...many });
  expect(refusal?.fields).toEqual([`${'x'.repeat(100)}…`, 'unknown-0', 'unknown-1']);
  expect(refusal?.message).toContain('. 15998 more wrong names. The known fields are image, ');
  expect(refusal?.message.length).toBeLessThan(2_000);
  const items = Array.from({ length: 64 }, () => ({ key: 'a', value: 'b', c: 1, d: 2 }));
  const nested = refusalOf({ vmMetadata: { items } });
  expect(nested?.fields).toEqual(['vmMetadata.items.0.c', 'vmMetadata.items.0.d', 'vmMetadata.items.1.c']);
});
