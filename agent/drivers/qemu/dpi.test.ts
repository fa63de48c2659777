import { expect, it } from 'vitest';
import { FollowedSize } from './dpi.ts';

const WANTED = { width: 1920, height: 1080 };
const TEXT = { width: 720, height: 400 };
const MENU = { width: 800, height: 600 };
const CLIENT = { width: 1600, height: 900 };

/** Returns the sizes for which the DPI is set. */
function set(followed: FollowedSize, ...sizes: { width: number; height: number }[]) {
  return sizes.filter((size) => followed.counts(size));
}

it('leaves sizes of the firmware and of boot menus alone', () => {
  expect(set(new FollowedSize(WANTED), TEXT, MENU, TEXT, WANTED)).toEqual([WANTED]);
});

it('follows a client that changes the size of a booted guest', () => {
  const followed = new FollowedSize(WANTED);
  expect(set(followed, WANTED, CLIENT, MENU)).toEqual([WANTED, CLIENT, MENU]);
  expect(set(followed, TEXT, { width: 5000, height: 5000 })).toEqual([]);
});

it('leaves sizes alone again while the guest boots, and knows the size of the client afterwards', () => {
  const followed = new FollowedSize(WANTED);
  set(followed, WANTED, CLIENT);
  followed.boots();
  expect(set(followed, TEXT, MENU, CLIENT, WANTED)).toEqual([CLIENT, WANTED]);
});

it('keeps the size of a client over a restart of the agent', () => {
  const followed = new FollowedSize(WANTED);
  expect(followed.adopt(CLIENT)).toBe(false);
  expect(set(followed, MENU)).toEqual([MENU]);
  expect(new FollowedSize(WANTED).adopt(WANTED)).toBe(true);
});

it('waits for the wanted size if the agent restarts while the guest boots', () => {
  const followed = new FollowedSize(WANTED);
  expect(followed.adopt(TEXT)).toBe(false);
  expect(set(followed, MENU, WANTED)).toEqual([WANTED]);
});
