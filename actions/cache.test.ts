import { describe, expect, it, vi } from 'vitest';
import type { HostNode } from '../api/http/host.ts';
import type { CacheTargets } from '../api/v1alpha1/cachetargets.ts';
import { pause } from '../base/time.ts';
import { ApiError } from '../kube/errors.ts';
import { cacheAccess, cacheEntry, type CacheObjects } from '../test/fixtures/cacheaccess.ts';
import {
  type CacheChange,
  changeCache,
  isEmpty,
  isOneSelection,
  withHosts,
  withoutHosts,
  withoutNames,
} from './cache.ts';

vi.mock(import('../base/time.ts'), { spy: true });

const IMAGE = 'registry.example/team/image';
const NORMALIZED = 'registry.example/team/image:latest';

function host(name: string, ...tags: string[]): HostNode {
  return { metadata: { name, labels: Object.fromEntries(tags.map((tag) => [`tag.berth.dev/${tag}`, ''])) } };
}

const HOSTS = [host('b', 'fast'), host('a', 'fast', 'new')];

/** Changes the cache. Returns the answer, and what was written. */
async function changed(change: Partial<CacheChange>, objects: CacheObjects = {}) {
  const { access, writes } = cacheAccess({ hosts: HOSTS, ...objects });
  const { items } = await changeCache(access, { action: 'add', image: IMAGE, selection: {}, ...change });
  return { codes: items.map(({ node, code }) => [node, code]), writes };
}

function entryWith(targets: CacheTargets) {
  return cacheEntry({ reference: NORMALIZED, targets });
}

function patchOf(nodes: string[], excludeNodes: string[] = []) {
  return [
    {
      name: 'mine',
      patch: { metadata: { resourceVersion: '7' }, spec: { targets: { nodes, excludeNodes } } },
    },
  ];
}

describe('a change of the cache', () => {
  it.each([
    [{ nodes: 'a, a,' }, ['a']],
    [{ nodes: ['b', 'a'] }, ['a', 'b']],
    [{ tags: 'fast' }, ['a', 'b']],
    [{ tags: ['fast', 'new'] }, ['a']],
    [{ all: true, nodes: '' }, ['a', 'b']],
  ])('%j selects hosts at the time of the request', async (selection, expected) => {
    const { codes, writes } = await changed({ selection });
    expect(codes).toEqual(expected.map((name) => [name, 200]));
    expect(writes).toMatchObject([
      { create: { metadata: { namespace: 'platform-ci' }, spec: { reference: NORMALIZED } } },
    ]);
  });

  it.each([{}, { all: false }, { nodes: 'a', tags: 'fast' }, { nodes: 'a', all: true }, { nodes: ',' }])(
    '%j is no clear selection',
    (selection) => {
      expect(isOneSelection(selection)).toBe(false);
    },
  );

  it.each([
    [{ tags: 'fast,absent' }, HOSTS, 'No host of namespace platform-ci has all of these tags: fast, absent'],
    [{ all: true }, [], 'There are no hosts in namespace platform-ci'],
  ])('%j that selects no host is an error', async (selection, hosts, message) => {
    for (const action of ['add', 'remove'] as const) {
      const refused = changed({ action, selection }, { hosts });
      await expect(refused).rejects.toMatchObject({ kind: 'missing', message });
    }
  });

  it('tells unknown hosts, and changes the others unless the caller refuses', async () => {
    const selection = { nodes: 'a,elsewhere,absent' };
    for (const action of ['add', 'remove'] as const) {
      const { codes } = await changed({ action, selection });
      expect(codes).toEqual([
        ['a', 200],
        ['absent', 404],
        ['elsewhere', 404],
      ]);
    }
    const onUnknown = vi.fn<(names: readonly string[]) => void>().mockImplementation(() => {
      throw new Error('refused');
    });
    await expect(changed({ selection, onUnknown })).rejects.toThrow('refused');
    expect(onUnknown).toHaveBeenCalledWith(['elsewhere', 'absent']);
  });

  it('does not add a host that a tag excludes', async () => {
    const { codes, writes } = await changed(
      { selection: { all: true } },
      { entries: [entryWith({ excludeTags: ['new'] })] },
    );
    expect(codes).toEqual([
      ['a', 409],
      ['b', 200],
    ]);
    expect(writes).toEqual(patchOf(['b']));
  });

  it('removes a host that the namespace has lost from the entry', async () => {
    const entries = [entryWith({ nodes: ['a', 'gone'] })];
    const { codes, writes } = await changed(
      { action: 'remove', selection: { nodes: 'a,gone,other' } },
      { entries },
    );
    expect(codes).toEqual([
      ['a', 200],
      ['gone', 200],
      ['other', 404],
    ]);
    expect(writes).toEqual(patchOf([]));
  });

  it('forgets hosts that do not exist when an entry has too many names, and not before', async () => {
    const full = Array.from({ length: 4_096 }, (_, index) => `gone-${index}`);
    const selection = { nodes: 'a' };
    const added = await changed({ selection }, { entries: [entryWith({ nodes: full })] });
    expect(added.writes).toEqual(patchOf(['a']));
    const most = full.slice(1);
    const more = await changed({ selection }, { entries: [entryWith({ nodes: most })] });
    expect(more.writes).toEqual(patchOf([...most, 'a']));
  });
});

describe('the entry', () => {
  const selection = { nodes: 'a' };

  it('has a name that follows from the image in any spelling', async () => {
    const names = [];
    for (const image of [IMAGE, NORMALIZED, 'registry.example:443/team/image']) {
      const { writes } = await changed({ image, selection });
      names.push((writes[0] as { create: { metadata: { name: string } } }).create.metadata.name);
    }
    expect(new Set(names).size).toBe(1);
    expect(names[0]).toMatch(/^cached-[0-9a-f]{32}$/);
    expect((await changed({ action: 'remove', selection })).writes).toEqual([]);
  });

  it('gets other names of hosts only, and is written only if it changes', async () => {
    const wide = await changed(
      { selection },
      { entries: [entryWith({ tags: ['new'], excludeNodes: ['a'] })] },
    );
    expect(wide.writes).toEqual(patchOf([]));
    expect((await changed({ selection }, { entries: [entryWith({ nodes: ['a'] })] })).writes).toEqual([]);
  });

  it('that is being deleted is left alone, and the next one has another name', async () => {
    const { writes } = await changed({ selection });
    const { name } = (writes[0] as { create: { metadata: { name: string } } }).create.metadata;
    const leaving = cacheEntry(
      { reference: NORMALIZED, targets: { all: true } },
      {},
      { name, uid: 'leaving', deletionTimestamp: '2026-11-23T00:00:00Z' },
    );
    const next = await changed({ selection }, { entries: [leaving] });
    expect(next.writes).toMatchObject([
      { create: { metadata: { name: expect.not.stringContaining(name) as string } } },
    ]);
    expect((await changed({ action: 'remove', selection }, { entries: [leaving] })).writes).toEqual([]);
  });

  it('is left alone if it has become that of another image', async () => {
    const { writes } = await changed({ selection });
    const { name } = (writes[0] as { create: { metadata: { name: string } } }).create.metadata;
    const other = cacheEntry({ reference: 'registry.example/other:1' }, {}, { name });
    await expect(changed({ selection }, { entries: [other] })).rejects.toMatchObject({
      kind: 'refused',
      message: `The ImageCacheEntry ${name} names another image. Delete this entry and try again`,
    });
  });

  it('that Berth created is deleted when no host is left in it, and one that a user created is not', async () => {
    const remove = async (name: string, targets: CacheTargets) => {
      const entry = cacheEntry({ reference: NORMALIZED, targets }, {}, { name });
      return (await changed({ action: 'remove', selection: { all: true } }, { entries: [entry] })).writes;
    };
    for (const targets of [{ nodes: ['a', 'b'] }, {}]) {
      expect(await remove('cached-image', targets)).toEqual([{ delete: 'cached-image' }]);
    }
    expect(await remove('mine', { nodes: ['a', 'b'] })).toEqual(patchOf([]));
    expect(await remove('cached-image', { tags: ['fast'] })).toMatchObject([{ patch: {} }]);
  });

  it('is read and written again after growing waits while others change it, and then no more', async () => {
    const waits = vi.mocked(pause).mockResolvedValue();
    const { access } = cacheAccess({ hosts: HOSTS, entries: [entryWith({ nodes: ['b'] })] });
    const write = vi.spyOn(access.client, 'mergePatch');
    const conflict = new ApiError('it has changed', { status: 409, reason: 'Conflict' });
    write.mockRejectedValueOnce(conflict).mockRejectedValueOnce(conflict);
    const change = { action: 'add', image: IMAGE, selection } as const;
    expect(await changeCache(access, change)).toMatchObject({ items: [{ node: 'a', code: 200 }] });
    expect([write, waits].map(({ mock }) => mock.calls.length)).toEqual([3, 2]);
    write.mockRejectedValue(conflict);
    const message = `Other clients are changing the cache of ${IMAGE}. Try again`;
    await expect(changeCache(access, change)).rejects.toMatchObject({ kind: 'busy', message });
    const all = waits.mock.calls.slice(2).map(([milliseconds]) => milliseconds);
    expect(all).toHaveLength(9);
    for (const [index, shortest] of [10, 20, 40, 80, 160, 250, 250, 250, 250].entries()) {
      expect(all[index]).toBeGreaterThanOrEqual(shortest);
      expect(all[index]).toBeLessThanOrEqual(2 * shortest);
    }
    waits.mockReset();
  });

  it('of another namespace is neither found nor changed', async () => {
    const theirs = cacheEntry({ reference: NORMALIZED }, {}, { namespace: 'platform-qa' });
    expect((await changed({ selection }, { entries: [theirs] })).writes).toMatchObject([{ create: {} }]);
  });

  it('names the Image of the namespace, or else that of the default namespace', async () => {
    const image = (namespace: string) => ({
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'Image',
      metadata: { name: 'golden', namespace },
      spec: { source: {} },
    });
    const both = [image('platform-default'), image('platform-ci')];
    const refOf = async (images: typeof both) =>
      (await changed({ image: 'golden', selection }, { images })).writes[0];
    const spec = (namespace: string) => ({ create: { spec: { imageRef: { namespace, name: 'golden' } } } });
    expect(await refOf(both)).toMatchObject(spec('platform-ci'));
    expect(await refOf(both.slice(0, 1))).toMatchObject(spec('platform-default'));
    const message = 'images.berth.dev "golden" not found';
    for (const action of ['add', 'remove'] as const) {
      const missing = changed({ action, image: 'golden', selection });
      await expect(missing).rejects.toMatchObject({ kind: 'missing', message });
    }
  });
});

const fastHost = { name: 'host-1', tags: new Set(['fast']) };

it('adds a host by name, and ends its exclusion', () => {
  const added = (targets: CacheTargets) => withHosts(targets, [fastHost]).targets;
  expect(added({})).toEqual({ nodes: ['host-1'], excludeNodes: [] });
  expect(added({ all: true, excludeNodes: ['host-1', 'host-2'] })).toEqual({
    all: true,
    nodes: [],
    excludeNodes: ['host-2'],
  });
  expect(added({ nodes: ['host-1'], excludeNodes: ['host-1'] })).toEqual({
    nodes: ['host-1'],
    excludeNodes: [],
  });
});

it('changes nothing for a host that has or lacks the image anyway', () => {
  const everywhere = { tags: ['fast'] };
  expect(withHosts(everywhere, [fastHost]).targets).toBe(everywhere);
  const nowhere = { nodes: ['host-2'] };
  expect(withoutHosts(nowhere, [fastHost])).toBe(nowhere);
  const never = { all: true, excludeTags: ['fast'] };
  expect(withoutHosts(never, [fastHost])).toBe(never);
});

it('does not add a host that a tag excludes, and adds the others', () => {
  const slow = { name: 'host-2', tags: new Set(['slow']) };
  const targets = { excludeTags: ['fast'], excludeNodes: ['host-1'] };
  expect(withHosts(targets, [fastHost, slow])).toEqual({
    targets: { ...targets, nodes: ['host-2'] },
    excluded: new Set(['host-1']),
  });
});

it('removes a host by name, and excludes it from a wider selection', () => {
  expect(withoutHosts({ nodes: ['host-1', 'host-2'] }, [fastHost])).toEqual({
    nodes: ['host-2'],
    excludeNodes: [],
  });
  for (const wider of [{ all: true }, { tags: ['fast'] }]) {
    const targets = withoutHosts({ ...wider, nodes: ['host-1'] }, [fastHost]);
    expect(targets).toEqual({ ...wider, nodes: [], excludeNodes: ['host-1'] });
  }
});

it('removes the name of a host that a tag excludes, because the host can lose this tag later', () => {
  const excluding = { excludeTags: ['fast'], nodes: ['host-1', 'host-2'] };
  expect(withoutHosts(excluding, [fastHost])).toEqual({ ...excluding, nodes: ['host-2'], excludeNodes: [] });
});

it('adds and removes the largest number of hosts without a pause that others notice', () => {
  const hosts = Array.from({ length: 4_096 }, (_, index) => ({
    name: `host-${index}`,
    tags: new Set<string>(),
  }));
  const started = performance.now();
  const { targets } = withHosts({}, hosts);
  expect(targets.nodes).toHaveLength(4_096);
  expect(withoutHosts(targets, hosts)).toEqual({ nodes: [], excludeNodes: [] });
  expect(withoutHosts({ all: true }, hosts).excludeNodes).toHaveLength(4_096);
  // A search through all names for each name would take 6 s.
  expect(performance.now() - started).toBeLessThan(1_000);
});

it('is empty only if no host can get the image later', () => {
  expect([{}, { nodes: [], excludeNodes: ['host-1'] }].map(isEmpty)).toEqual([true, true]);
  expect([{ all: true }, { tags: ['fast'] }, { nodes: ['host-1'] }].map(isEmpty)).toEqual([
    false,
    false,
    false,
  ]);
});

it('forgets hosts that do not exist, without excluding a later host of the name', () => {
  const gone = new Set(['host-2', 'host-3']);
  expect(withoutNames({ nodes: ['host-1', 'host-2'] }, gone)).toEqual({ nodes: ['host-1'] });
  const everywhere = { all: true };
  expect(withoutNames(everywhere, gone)).toBe(everywhere);
});
