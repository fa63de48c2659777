import { describe, expect, it } from 'vitest';
import { keepingEntry } from './cachetargets.ts';
import { CACHE_FINALIZER } from './names.ts';

function entry(name: string, second: number, finalizers?: string[]) {
  const creationTimestamp = `2026-11-01T10:00:0${second}Z`;
  return { metadata: { name, creationTimestamp, ...(finalizers && { finalizers }) } };
}

describe('of several entries for one image', () => {
  it.each([
    ['the one that has begun', [entry('old', 1), entry('begun', 2, [CACHE_FINALIZER])], 'begun'],
    ['the oldest if none has begun', [entry('new', 2), entry('old', 1, ['example.com/other'])], 'old'],
    ['the first by name of the same second', [entry('b', 1), entry('a', 1)], 'a'],
  ])('%s keeps it', (_which, entries, name) => {
    expect(keepingEntry(entries)?.metadata.name).toBe(name);
    expect(keepingEntry(entries.toReversed())?.metadata.name).toBe(name);
  });
});
