import { expect, it } from 'vitest';
import { isEmpty, withHost, withoutHost, withoutNames } from './targets.ts';

const host = { name: 'host-1', tags: new Set(['fast']) };

it('adds a host by name, and ends its exclusion', () => {
  expect(withHost({}, host)).toEqual({ nodes: ['host-1'], excludeNodes: [] });
  expect(withHost({ all: true, excludeNodes: ['host-1', 'host-2'] }, host)).toEqual({
    all: true,
    excludeNodes: ['host-2'],
  });
  expect(withHost({ nodes: ['host-1'], excludeNodes: ['host-1'] }, host)).toEqual({
    nodes: ['host-1'],
    excludeNodes: [],
  });
});

it('changes nothing for a host that has or lacks the image anyway', () => {
  const everywhere = { tags: ['fast'] };
  expect(withHost(everywhere, host)).toBe(everywhere);
  const nowhere = { nodes: ['host-2'] };
  expect(withoutHost(nowhere, host)).toBe(nowhere);
});

it('does not add a host that a tag excludes', () => {
  expect(withHost({ all: true, excludeTags: ['fast'] }, host)).toBeUndefined();
});

it('removes a host by name, and excludes it from a wider selection', () => {
  expect(withoutHost({ nodes: ['host-1', 'host-2'] }, host)).toEqual({ nodes: ['host-2'] });
  for (const wider of [{ all: true }, { tags: ['fast'] }]) {
    const targets = withoutHost({ ...wider, nodes: ['host-1'] }, host);
    expect(targets).toEqual({ ...wider, nodes: [], excludeNodes: ['host-1'] });
  }
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
