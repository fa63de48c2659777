import { getEventListeners } from 'node:events';
import { afterEach, expect, it, vi } from 'vitest';
import { pauseFor, whenShown } from './waits.ts';

afterEach(() => {
  vi.unstubAllGlobals();
});

it('a wait for a time leaves no listener behind', async () => {
  const { signal } = new AbortController();
  await pauseFor(1, signal);
  await pauseFor(1, signal);
  expect(getEventListeners(signal, 'abort')).toEqual([]);
});

it('a wait for a time ends when its signal aborts, and does not begin after that', async () => {
  const end = new AbortController();
  const wait = pauseFor(600_000, end.signal);
  end.abort();
  await wait;
  await pauseFor(600_000, end.signal);
  expect(getEventListeners(end.signal, 'abort')).toEqual([]);
});

it('a wait for a visible page leaves no listener behind', async () => {
  const page = Object.assign(new EventTarget(), { hidden: true });
  vi.stubGlobal('document', page);
  const { signal } = new AbortController();
  const wait = whenShown(signal);
  page.hidden = false;
  page.dispatchEvent(new Event('visibilitychange'));
  await wait;
  expect(getEventListeners(signal, 'abort')).toEqual([]);
  expect(getEventListeners(page, 'visibilitychange')).toEqual([]);
});
