import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { Shares, type Use } from './spacemeter.ts';

const CAPACITY = 100;
const TENANTS = ['a', 'b', 'c'];

const use: fc.Arbitrary<Use> = fc.record({
  tenants: fc.uniqueArray(fc.constantFrom(...TENANTS), { maxLength: 2 }),
  sizeBytes: fc.integer({ min: 1, max: 60 }),
});

function usedBy(tenant: string, uses: readonly Use[]): number {
  return uses.filter(({ tenants }) => tenants.includes(tenant)).reduce((sum, one) => sum + one.sizeBytes, 0);
}

it('no tenant within its share loses content to a tenant above its share, which first loses its own', () => {
  const inputs = fc.tuple(fc.array(use, { maxLength: 12, size: 'max' }), fc.constantFrom(...TENANTS));
  const property = fc.property(inputs, ([uses, tenant]) => {
    const isOver = (one: string): boolean => usedBy(one, uses) > CAPACITY / 2;
    const belongsToOthersWithin = ({ tenants }: Use): boolean =>
      tenants.some((one) => one !== tenant && !isOver(one));
    const removable = new Shares(uses, CAPACITY).removable(tenant, uses);
    expect(removable.some(belongsToOthersWithin) && isOver(tenant)).toBe(false);
    // A tenant within its share can remove everything, and content of tenants within their shares comes last.
    expect(removable.length).toBe(
      isOver(tenant) ? uses.filter((one) => !belongsToOthersWithin(one)).length : uses.length,
    );
    expect(removable.findIndex(belongsToOthersWithin)).toBe(
      isOver(tenant) || !uses.some(belongsToOthersWithin)
        ? -1
        : uses.filter((one) => !belongsToOthersWithin(one)).length,
    );
  });
  fc.assert(property, { numRuns: 2_000 });
});

it('content of equal tenants is removed in the given order, the content of the largest excess first', () => {
  const of = (tenant: string, sizeBytes: number, name: string) => ({ tenants: [tenant], sizeBytes, name });
  const content = [
    of('b', 10, 'b1'),
    of('a', 40, 'a1'),
    of('c', 60, 'c1'),
    of('a', 40, 'a2'),
    of('b', 10, 'b2'),
  ];
  const names = new Shares(content, CAPACITY).removable('d', content).map(({ name }) => name);
  expect(names).toEqual(['a1', 'a2', 'c1', 'b1', 'b2']);
});
