import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { ROWS_IN_PAGE, visibleRange } from './visible.ts';

const HEIGHT = 30;

it('keeps the height of the whole list, and has all rows that are visible, in at most 200 rows', () => {
  const viewport = fc.record({ top: fc.nat(400_000), height: fc.integer({ min: 1, max: 5_000 }) });
  fc.assert(
    fc.property(fc.nat(10_000), viewport, (rows, { top, height }) => {
      const scrolled = Math.min(top, Math.max(0, rows * HEIGHT - height));
      const { first, end, above, below } = visibleRange(rows, HEIGHT, { top: scrolled, height });
      expect(end - first).toBeLessThanOrEqual(ROWS_IN_PAGE);
      expect(above + (end - first) * HEIGHT + below).toBe(rows * HEIGHT);
      expect(above).toBeLessThanOrEqual(scrolled);
      expect(end * HEIGHT).toBeGreaterThanOrEqual(Math.min(rows * HEIGHT, scrolled + height));
    }),
  );
});

it('shows the end of a list that became shorter than the place to which it was scrolled', () => {
  expect(visibleRange(10, HEIGHT, { top: 90_000, height: 300 })).toMatchObject({ end: 10, below: 0 });
});
