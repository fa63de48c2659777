import { describe, expect, it } from 'vitest';
import { neededLayers } from './layers.ts';
import { type Layer, layersFrom } from './state.ts';

const TAKEN = { takenAt: '2030-01-01T00:00:00Z', consistency: 'Crash', storageBytes: 1 } as const;

function layer(id: string, parent?: string, uid?: string): Layer {
  const snapshot = uid === undefined ? undefined : { uid, ...TAKEN };
  return { id, file: `${id}.qcow2`, parent, diskBytes: 1, snapshot };
}

/** Two branches on the layer `a`: the disk is on `c`, and `d` is the last layer of the other one. */
const LAYERS = [layer('a', undefined, 'A'), layer('b', 'a', 'B'), layer('c', 'b'), layer('d', 'a', 'D')];

describe('the layers that stay', () => {
  it.each([
    [
      ['A', 'B', 'D'],
      ['a', 'b', 'c', 'd'],
      ['A', 'B', 'D'],
    ],
    [['D'], ['a', 'b', 'c', 'd'], ['D']],
    [['A'], ['a', 'b', 'c'], ['A']],
    [[], ['a', 'b', 'c'], []],
  ])('with the snapshots %o are %o', (uids, ids, snapshots) => {
    const kept = neededLayers({ layers: LAYERS, parent: 'c' }, new Set(uids));
    expect(kept.map(({ id }) => id)).toEqual(ids);
    expect(kept.flatMap(({ snapshot }) => snapshot?.uid ?? [])).toEqual(snapshots);
  });

  it('are none if the disk is on the image and no snapshot is left', () => {
    expect(neededLayers({ layers: LAYERS, parent: undefined }, new Set())).toEqual([]);
  });
});

it('a disk whose layer is missing, or whose layers are a circle, is refused', () => {
  expect(layersFrom({ layers: LAYERS }, 'c').map(({ id }) => id)).toEqual(['c', 'b', 'a']);
  expect(() => layersFrom({ layers: LAYERS.slice(1) }, 'c')).toThrow('needs the layer a');
  expect(() => layersFrom({ layers: [layer('a', 'b'), layer('b', 'a')] }, 'a')).toThrow('needs the layer a');
});
