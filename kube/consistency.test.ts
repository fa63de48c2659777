import { describe, expect, it } from 'vitest';
import { Consistency, type Follower } from './consistency.ts';
import { compareResourceVersions } from './objects.ts';

function follower(resourceVersion: string): {
  cache: { resourceVersion: string };
  readSince: number;
  cuts: string[];
} & Follower {
  const cuts: string[] = [];
  return {
    cache: { resourceVersion },
    readSince: Number.NEGATIVE_INFINITY,
    cuts,
    cutIfStale: (version: string) => {
      cuts.push(version);
    },
  };
}

describe('read your own writes', () => {
  it('is not ready until every cache has the written versions', () => {
    const consistency = new Consistency(() => 0);
    const pods = follower('9');
    const vms = follower('99');
    consistency.wrote('n/a', pods, '10');
    consistency.wrote('n/a', vms, '100');
    expect(consistency.ready('n/a')).toBe(false);
    expect(consistency.ready('n/b')).toBe(true);
    pods.cache.resourceVersion = '10';
    expect(consistency.ready('n/a')).toBe(false);
    vms.cache.resourceVersion = '101';
    expect(consistency.ready('n/a')).toBe(true);
  });

  it('remembers the newest write', () => {
    const consistency = new Consistency(() => 0);
    const pods = follower('10');
    consistency.wrote('n/a', pods, '12');
    consistency.wrote('n/a', pods, '11');
    pods.cache.resourceVersion = '11';
    expect(consistency.ready('n/a')).toBe(false);
  });

  it('cuts the watch of a cache that is behind for more than 5 s', () => {
    let now = 0;
    const consistency = new Consistency(() => now);
    const pods = follower('1');
    consistency.wrote('n/a', pods, '2');
    now = 5_000;
    consistency.ready('n/a');
    expect(pods.cuts).toEqual([]);
    now = 5_001;
    consistency.ready('n/a');
    expect(pods.cuts).toEqual(['2']);
  });

  it('is settled by a full read that began after the write, even if versions went back', () => {
    const consistency = new Consistency(() => 100);
    const pods = follower('50');
    consistency.wrote('n/a', pods, '60');
    pods.cache.resourceVersion = '20';
    pods.readSince = 99;
    expect(consistency.ready('n/a'), 'after a read that began before the write').toBe(false);
    pods.readSince = 101;
    expect(consistency.ready('n/a')).toBe(true);
  });

  it('forgets an object', () => {
    const consistency = new Consistency(() => 0);
    consistency.wrote('n/a', follower('1'), '2');
    consistency.wrote('n/b', follower('1'), '2');
    consistency.forget('n/a');
    expect([consistency.ready('n/a'), consistency.ready('n/b')]).toEqual([true, false]);
  });
});

it.each([
  ['', '1'],
  ['9', '10'],
  ['99', '100'],
  ['123', '124'],
])('resourceVersion %j is before %j', (a, b) => {
  expect(compareResourceVersions(a, b)).toBeLessThan(0);
  expect(compareResourceVersions(b, a)).toBeGreaterThan(0);
  expect(compareResourceVersions(a, a)).toBe(0);
});
