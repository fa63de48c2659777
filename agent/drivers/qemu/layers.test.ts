import { describe, expect, it } from 'vitest';
import { mergedLayers, nextMerge } from './layermerge.ts';
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

describe('two layers become one', () => {
  /** Returns the ids of the lower and the upper layer. */
  function pairOf(layers: Layer[], parent: string, isLive = false): (string | undefined)[] {
    const { lower, upper } = nextMerge({ layers, parent }, isLive) ?? {};
    return [lower?.id, upper?.id];
  }

  it.each([
    ['the lower one has no snapshot', [layer('a'), layer('b', 'a', 'B')], 'b', ['a', 'b']],
    [
      'neither has a snapshot',
      [layer('a', undefined, 'A'), layer('b', 'a'), layer('c', 'b')],
      'c',
      ['b', 'c'],
    ],
    ['the disk is on another branch', [layer('a'), layer('b', 'a', 'B')], 'other', ['a', 'b']],
  ])('if %s', (_, layers, parent, expected) => {
    expect(pairOf(layers, parent)).toEqual(expected);
  });

  it.each([
    ['the lower one has a snapshot', [layer('a', undefined, 'A'), layer('b', 'a', 'B')], 'b'],
    ['the disk is directly on the lower one', [layer('a'), layer('b', 'a', 'B')], 'a'],
    ['two layers are on the lower one', [layer('a'), layer('b', 'a', 'B'), layer('c', 'a', 'C')], 'c'],
    ['nothing is on the lower one', [layer('a', undefined, 'A'), layer('b', 'a')], 'a'],
  ])('but not if %s', (_, layers, parent) => {
    expect(pairOf(layers, parent)).toEqual([undefined, undefined]);
  });

  it('of a machine with a process only if they are under its disk', () => {
    const branch = [layer('a'), layer('b', 'a', 'B')];
    const disk = [layer('c'), layer('d', 'c', 'D')];
    expect(pairOf([...branch, ...disk], 'd')).toEqual(['a', 'b']);
    expect(pairOf([...branch, ...disk], 'd', true)).toEqual(['c', 'd']);
    expect(pairOf(branch, 'b', true)).toEqual(['a', 'b']);
    expect(pairOf([...branch, layer('c')], 'c', true)).toEqual([undefined, undefined]);
  });

  it('with the file and the place of the lower one, and the id and the snapshot of the upper one', () => {
    const layers = [layer('a', undefined, 'A'), layer('b', 'a'), layer('c', 'b', 'C')];
    const nodes = { c: 'disk' };
    const pair = { lower: layers[1] as Layer, upper: layers[2] as Layer };
    const merged = { ...layer('c', 'a', 'C'), file: 'b.qcow2' };
    expect(mergedLayers({ layers, nodes }, pair, 'layer-b')).toEqual({
      layers: [layers[0], merged],
      nodes: { c: 'layer-b' },
    });
    expect(mergedLayers({ layers, nodes }, pair, undefined)).toEqual({ layers: [layers[0], merged] });
  });
});

it('a disk whose layer is missing, or whose layers are a circle, is refused', () => {
  expect(layersFrom({ layers: LAYERS }, 'c').map(({ id }) => id)).toEqual(['c', 'b', 'a']);
  expect(() => layersFrom({ layers: LAYERS.slice(1) }, 'c')).toThrow('needs the layer a');
  expect(() => layersFrom({ layers: [layer('a', 'b'), layer('b', 'a')] }, 'a')).toThrow('needs the layer a');
});
