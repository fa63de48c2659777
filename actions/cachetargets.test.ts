import { expect, it } from 'vitest';
import type { CacheTargets } from '../api/v1alpha1/cachetargets.ts';
import { isEmpty, withHosts, withoutHosts, withoutNames } from './cachetargets.ts';

const host = { name: 'host-1', tags: new Set(['fast']) };

it('adds a host by name, and ends its exclusion', () => {
  const added = (targets: CacheTargets) => withHosts(targets, [host]).targets;
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
  expect(withHosts(everywhere, [host]).targets).toBe(everywhere);
  const nowhere = { nodes: ['host-2'] };
  expect(withoutHosts(nowhere, [host])).toBe(nowhere);
  const never = { all: true, excludeTags: ['fast'] };
  expect(withoutHosts(never, [host])).toBe(never);
});

it('does not add a host that a tag excludes, and adds the others', () => {
  const slow = { name: 'host-2', tags: new Set(['slow']) };
  const targets = { excludeTags: ['fast'], excludeNodes: ['host-1'] };
  expect(withHosts(targets, [host, slow])).toEqual({
    targets: { ...targets, nodes: ['host-2'] },
    excluded: new Set(['host-1']),
  });
});

it('removes a host by name, and excludes it from a wider selection', () => {
  expect(withoutHosts({ nodes: ['host-1', 'host-2'] }, [host])).toEqual({
    nodes: ['host-2'],
    excludeNodes: [],
  });
  for (const wider of [{ all: true }, { tags: ['fast'] }]) {
    const targets = withoutHosts({ ...wider, nodes: ['host-1'] }, [host]);
    expect(targets).toEqual({ ...wider, nodes: [], excludeNodes: ['host-1'] });
  }
});

it('removes the name of a host that a tag excludes, because the host can lose this tag later', () => {
  const excluding = { excludeTags: ['fast'], nodes: ['host-1', 'host-2'] };
  expect(withoutHosts(excluding, [host])).toEqual({ ...excluding, nodes: ['host-2'], excludeNodes: [] });
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
