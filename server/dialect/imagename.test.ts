import { expect, it } from 'vitest';
import { decodedImageName, splitImagePath } from './imagename.ts';

const NAME = 'ghcr.io/berth/base:26@sha256:0a';

it('reads a name that is encoded once, twice or three times', () => {
  const once = encodeURIComponent(NAME);
  expect([NAME, once, encodeURIComponent(once)].map(decodedImageName)).toEqual([NAME, NAME, NAME]);
});

it('refuses an encoding that is not valid', () => {
  expect(() => decodedImageName('a%ff')).toThrow(expect.objectContaining({ status: 400 }));
});

it('finds the action after a name with raw slashes', () => {
  const split = (path: string) => splitImagePath(path, ['add', 'remove']);
  expect(split(`${NAME}/remove`)).toEqual({ image: NAME, action: 'remove' });
  expect(split(`${encodeURIComponent(NAME)}/add`)).toEqual({ image: NAME, action: 'add' });
  expect(split('ghcr.io/berth/add-on')).toEqual({ image: 'ghcr.io/berth/add-on', action: undefined });
});
