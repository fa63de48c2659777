import { describe, expect, it } from 'vitest';
import type { CacheTargets } from '../v1alpha1/cachetargets.ts';
import type { ImageCacheEntry } from '../v1alpha1/imagecacheentry.ts';
import { cacheChange, entryName, entryWrite, isOneSelection } from './cachechange.ts';
import type { HostNode } from './host.ts';

const SOURCE = { reference: 'registry.example/team/image' };
const NORMALIZED = 'registry.example/team/image:latest';

function host(name: string, ...tags: string[]): HostNode {
  return { metadata: { name, labels: Object.fromEntries(tags.map((tag) => [`tag.berth.dev/${tag}`, ''])) } };
}

const hosts = {
  own: [host('b', 'fast'), host('a', 'fast', 'new')],
  exists: (name: string) => ['a', 'b', 'elsewhere'].includes(name),
};

function entry(targets: CacheTargets, metadata: Partial<ImageCacheEntry['metadata']> = {}): ImageCacheEntry {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'ImageCacheEntry',
    metadata: { name: 'mine', resourceVersion: '7', ...metadata },
    spec: { reference: NORMALIZED, targets },
  };
}

describe('cacheChange', () => {
  it.each([
    [{ nodes: 'a, a,' }, ['a']],
    [{ nodes: ['b', 'a'] }, ['a', 'b']],
    [{ tags: 'fast' }, ['a', 'b']],
    [{ tags: ['fast', 'new'] }, ['a']],
    [{ tags: 'absent' }, []],
    [{ all: true, nodes: '' }, ['a', 'b']],
  ])('%j selects hosts at the time of the request', (selection, expected) => {
    expect(isOneSelection(selection)).toBe(true);
    const planned = cacheChange('add', hosts, selection);
    const { nodes = [] } = planned.change({});
    expect(nodes.toSorted()).toEqual(expected);
    expect(planned.result().items.map(({ node }) => node)).toEqual(expected);
  });

  it.each([{}, { all: false }, { nodes: 'a', tags: 'fast' }, { nodes: 'a', all: true }, { nodes: ',' }])(
    '%j is no clear selection',
    (selection) => {
      expect(isOneSelection(selection)).toBe(false);
      expect(cacheChange('add', hosts, selection).result().items).toEqual([]);
    },
  );

  it('names the hosts that are not of the namespace, and adds the others', () => {
    const planned = cacheChange('add', hosts, { nodes: 'a,elsewhere,absent' });
    expect(planned.missing).toEqual(['elsewhere', 'absent']);
    expect(planned.change({})).toMatchObject({ nodes: ['a'] });
    expect(planned.result().items.map(({ node, code }) => [node, code])).toEqual([
      ['a', 200],
      ['absent', 404],
      ['elsewhere', 404],
    ]);
  });

  it('does not add a host that a tag excludes', () => {
    const planned = cacheChange('add', hosts, { all: true });
    expect(planned.change({ excludeTags: ['new'] })).toMatchObject({ nodes: ['b'] });
    expect(planned.result().items).toMatchObject([
      { node: 'a', code: 409 },
      { node: 'b', code: 200 },
    ]);
  });

  it('removes a host that does not exist any more, and none of another namespace', () => {
    const planned = cacheChange('remove', hosts, { nodes: 'a,elsewhere,gone' });
    expect(planned.change({ nodes: ['a', 'elsewhere', 'gone'] })).toMatchObject({ nodes: ['elsewhere'] });
    expect(planned.result().items.map(({ node, code }) => [node, code])).toEqual([
      ['a', 200],
      ['elsewhere', 404],
      ['gone', 200],
    ]);
  });

  it('forgets hosts that do not exist when an entry has too many names, and not before', () => {
    const planned = cacheChange('add', hosts, { nodes: 'a' });
    const full = [...Array.from({ length: 4_095 }, (_, index) => `gone-${index}`), 'elsewhere'];
    expect(planned.change({ nodes: full })).toMatchObject({ nodes: ['elsewhere', 'a'] });
    const most = full.slice(1);
    expect(planned.change({ nodes: most })).toMatchObject({ nodes: [...most, 'a'] });
    const removed = cacheChange('remove', hosts, { nodes: 'a' }).change({ all: true, excludeNodes: full });
    expect(removed).toMatchObject({ all: true, nodes: [], excludeNodes: ['elsewhere', 'a'] });
  });
});

describe('entryWrite', () => {
  const add = () => ({ nodes: ['a'] });

  it('creates an entry, whose name follows from the image in any spelling', () => {
    const name = entryName(NORMALIZED);
    expect(name).toMatch(/^cached-[0-9a-f]{32}$/);
    const spec = { ...SOURCE, targets: { nodes: ['a'] } };
    expect(entryWrite(undefined, SOURCE, add)).toEqual({ create: { metadata: { name }, spec } });
    expect(entryWrite(undefined, SOURCE, (before) => before)).toBeUndefined();
  });

  it('changes only the names of hosts, and only the entry that was read', () => {
    expect(entryWrite(entry({ all: true, tags: ['fast'] }), SOURCE, add)).toEqual({
      name: 'mine',
      patch: { metadata: { resourceVersion: '7' }, spec: { targets: { nodes: ['a'] } } },
    });
    expect(entryWrite(entry({ nodes: ['a'] }), SOURCE, add)).toBeUndefined();
  });

  it('leaves an entry that is being deleted, or has become that of another image', () => {
    const leaving = entry({}, { deletionTimestamp: '2026-11-23T00:00:00Z' });
    expect(entryWrite(leaving, SOURCE, add)).toEqual({
      refusal: 'The ImageCacheEntry mine is being deleted. Try again later',
    });
    expect(entryWrite(entry({}), { reference: 'registry.example/other:1' }, add)).toEqual({
      refusal: 'The ImageCacheEntry mine names another image. Delete this entry and try again',
    });
  });
});
