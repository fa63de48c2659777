import { expect, it } from 'vitest';
import { machineImageSourceSchema } from './machine.ts';
import { contentSchema } from './source.ts';

it('the status of an Image keeps each field of each source that a host can fetch', () => {
  const fetched = machineImageSourceSchema.options.filter(
    ({ shape }) => !shape.type.safeParse('unsupported').success,
  );
  expect(fetched).not.toEqual([]);
  const fields = new Set(fetched.flatMap(({ shape }) => Object.keys(shape)));
  expect(Object.keys(contentSchema.shape)).toEqual(expect.arrayContaining([...fields]));
});
