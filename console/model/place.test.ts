import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { formatPlace, parsePlace, type Place, VM_VIEWS } from './place.ts';
import { SORT_KEYS } from './vms.ts';

const name = fc.string({ minLength: 1 });
const namespace = fc.option(name, { nil: undefined });
const place: fc.Arbitrary<Place> = fc.oneof(
  fc.record({ page: fc.constant('fleet' as const), namespace }),
  fc.record({
    page: fc.constant('vms' as const),
    namespace,
    filter: fc.string(),
    sort: fc.constantFrom(...SORT_KEYS),
  }),
  fc.record({
    page: fc.constant('vm' as const),
    namespace: name,
    name,
    view: fc.constantFrom(undefined, ...VM_VIEWS),
  }),
  fc.record(
    {
      page: fc.constant('objects' as const),
      plural: name,
      namespace,
      filter: fc.string(),
      by: fc.constant('host' as const),
    },
    { requiredKeys: ['page', 'plural', 'namespace', 'filter'] },
  ),
  fc.record(
    { page: fc.constant('deploy' as const), namespace, like: name },
    { requiredKeys: ['page', 'namespace'] },
  ),
  fc.record({ page: fc.constantFrom('access' as const, 'times' as const), namespace }),
);

it('an address leads to the place from which it was made', () => {
  fc.assert(
    fc.property(place, (one) => {
      expect(parsePlace(formatPlace(one))).toEqual(one);
    }),
  );
});

it.each([
  '',
  '#',
  '#/',
  '#/nothing',
  '#/fleet/x',
  '#javascript:alert(1)',
  '#/%zz',
  '#/constructor',
  '#/__proto__/a/b',
])('the address %s leads to the fleet', (address) =>
  expect(parsePlace(address)).toEqual({ page: 'fleet', namespace: undefined }),
);

it('any address leads somewhere', () => {
  fc.assert(
    fc.property(fc.string(), (text) => {
      expect(parsePlace(`#/vms${text}`).page).toMatch(/^\w+$/);
    }),
  );
});
