import { describe, expect, it } from 'vitest';
import type { NodeCacheState } from '../../../api/v1alpha1/imagecacheentry.ts';
import { parseConfig } from '../../config.ts';
import { resolveImage } from './image.ts';
import type { Observed } from './observed.ts';
import { plan } from './plan.ts';

const NOW = Date.parse('2030-01-01T00:10:00Z');
const queuedAt = '2030-01-01T00:00:00.000Z';

/** Hosts that begin next, of those that are queued so; `full` ones have no free place. */
function next(
  rows: readonly Omit<NodeCacheState, 'state'>[],
  full: readonly string[],
  limit: number,
): string[] {
  const names = rows.map(({ node }) => node);
  const entry = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'ImageCacheEntry',
    metadata: { name: 'guest', uid: 'uid' },
    spec: { reference: 'registry.example/guest', targets: { all: true } },
    status: { nodes: rows.map((row) => ({ ...row, state: 'Queued' })), holders: names },
  };
  const observed: Observed = {
    entry,
    reference: 'registry.example/guest:latest',
    image: resolveImage(entry, undefined),
    duplicateOf: undefined,
    hosts: new Map(
      names.map((name) => [
        name,
        { name, tags: new Set(), silentSince: undefined, isCordoned: false, images: [] },
      ]),
    ),
    freeSlots: (host) => (full.includes(host) ? 0 : 1),
    jobs: [],
    lingering: new Set(),
    config: parseConfig({ cacheJobsPerEntry: limit }, 'test'),
    now: NOW,
  };
  return plan(observed).starts.map(({ host }) => host);
}

describe('the queue of an entry', () => {
  const hosts = ['a', 'b', 'c', 'd', 'e'];

  it('begins with hosts that have a free place', () => {
    const rows = hosts.map((node) => ({ node, queuedAt }));
    expect(next(rows, ['a', 'b', 'c'], 2).toSorted()).toEqual(['d', 'e']);
    expect(next(rows, ['a', 'b', 'c'], 5)).toHaveLength(5);
  });

  it('puts a host whose turn was in vain at its end', () => {
    const tried = (minute: number) => `2030-01-01T00:0${minute}:00.000Z`;
    const rows = [
      { node: 'a', queuedAt, triedAt: tried(3) },
      { node: 'b', queuedAt, triedAt: tried(1) },
      { node: 'c', queuedAt },
      { node: 'd', queuedAt, triedAt: tried(2) },
      { node: 'e', queuedAt: tried(4) },
    ];
    expect(next(rows, hosts, 5)).toEqual(['c', 'b', 'd', 'a', 'e']);
  });
});
