import { expect, it } from 'vitest';
import * as z from 'zod';
import { vmDeployBody } from '../../api/http/vmdeploy.ts';
import { normalizeBody } from './bodies.ts';

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
    { NAME: 'a', Cpu: 2, other: 1 },
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

it('reads only the last value of a field that is given in several spellings', () => {
  const given = { vmMetadata: { items: [untouchable()] }, VMMETADATA: { A: 'b' }, vmmetadata: null };
  expect(normalizeBody(vmDeployBody(240), given)).toEqual({ vmMetadata: { A: 'b' } });
});
