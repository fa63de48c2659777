import { expect, it } from 'vitest';
import { listedImages } from './listedimages.ts';

it('leaves out the images and names of a host that lists more than agents list', () => {
  const many = Array.from({ length: 10_000 }, (_, index) => `registry.example/guest:${index}`);
  expect(listedImages(many.map((name) => ({ names: [name] })))).toHaveLength(200);
  expect(listedImages([{ names: many }])).toEqual([{ names: many.slice(0, 256) }]);
  const [first] = many;
  expect(listedImages([{ names: ['a'.repeat(100_000), String(first)], sizeBytes: 1 }])).toEqual([
    { names: [first], sizeBytes: 1 },
  ]);
});
