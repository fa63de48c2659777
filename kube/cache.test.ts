import { pino } from 'pino';
import { beforeEach, describe, expect, it } from 'vitest';
import { type ObjectChange, Store } from './cache.ts';
import type { KubeObject } from './objects.ts';

interface Thing extends KubeObject {
  spec: { node?: string; list: string[] };
}

function thing(name: string, uid: string, resourceVersion: string, node?: string): Thing {
  return {
    apiVersion: 'v1',
    kind: 'Thing',
    metadata: { namespace: 'n', name, uid, resourceVersion },
    spec: { list: ['a'], ...(node === undefined ? {} : { node }) },
  };
}

let store: Store<Thing>;
let changes: string[];

function tell({ type, object, previous }: ObjectChange<Thing>): string {
  return `${type} ${object.metadata.uid}@${object.metadata.resourceVersion} was ${previous?.metadata.uid ?? '-'}`;
}

beforeEach(() => {
  store = new Store<Thing>(pino({ level: 'silent' }), {
    node: (object) => (object.spec.node === undefined ? [] : [object.spec.node]),
  });
  changes = [];
  store.onChange((change) => changes.push(tell(change)));
});

describe('cache', () => {
  it('reports added, updated and deleted objects, and does not report the same version again', () => {
    store.put(thing('x', 'u1', '1'));
    store.put(thing('x', 'u1', '1'));
    store.put(thing('x', 'u1', '2'));
    store.delete('n/x', thing('x', 'u1', '3'));
    expect(changes).toEqual(['added u1@1 was -', 'updated u1@2 was u1', 'deleted u1@3 was u1']);
  });

  it('reports an object that was created again under its name as deleted, then added', () => {
    store.put(thing('x', 'u1', '1'));
    store.put(thing('x', 'u2', '5'));
    expect(changes).toEqual(['added u1@1 was -', 'deleted u1@1 was u1', 'added u2@5 was -']);
  });

  it('deletes objects that a full read did not contain', () => {
    store.put(thing('x', 'u1', '1'));
    store.put(thing('y', 'u2', '2'));
    store.retain(new Set(['n/y']));
    expect(store.list().map((object) => object.metadata.name)).toEqual(['y']);
    expect(changes.at(-1)).toBe('deleted u1@1 was u1');
  });

  it('keeps an object that an index cannot read, and the other objects of the index', () => {
    const strange = new Store<Thing>(pino({ level: 'silent' }), {
      list: ({ spec }) => spec.list.map(String),
    });
    strange.put({ ...thing('x', 'u1', '1'), spec: { list: null as unknown as string[] } });
    strange.put(thing('y', 'u2', '2'));
    expect(strange.list().map(({ metadata }) => metadata.name)).toEqual(['x', 'y']);
    strange.put(thing('x', 'u1', '3'));
    expect(strange.byIndex('list', 'a').map(({ metadata }) => metadata.name)).toEqual(['y', 'x']);
  });

  it('keeps an object that its transform cannot read as it is', () => {
    const trim = (object: Thing): Thing => ({ ...object, spec: { list: object.spec.list.slice(1) } });
    const trimmed = new Store<Thing>(pino({ level: 'silent' }), {}, trim);
    trimmed.put({ ...thing('x', 'u1', '1'), spec: { list: null as unknown as string[] } });
    trimmed.put(thing('y', 'u2', '2'));
    expect(trimmed.list().map(({ spec }) => spec.list)).toEqual([null, []]);
  });

  it('keeps its indexes current', () => {
    store.put(thing('x', 'u1', '1', 'a'));
    store.put(thing('y', 'u2', '2', 'a'));
    store.put(thing('x', 'u1', '3', 'b'));
    expect(store.byIndex('node', 'a').map((object) => object.metadata.name)).toEqual(['y']);
    expect(store.byIndex('node', 'b').map((object) => object.metadata.name)).toEqual(['x']);
    store.delete('n/x');
    expect(store.byIndex('node', 'b')).toEqual([]);
    expect(() => store.byIndex('colour', 'b')).toThrow('no index colour');
  });

  it('freezes objects with all their parts', () => {
    store.put(thing('x', 'u1', '1'));
    const object = store.get('n/x') as Thing;
    expect(() => object.spec.list.push('b')).toThrow(TypeError);
    expect(() => {
      object.metadata.name = 'y';
    }).toThrow(TypeError);
  });

  it('gives a late handler all objects, and goes on when another handler throws', () => {
    store.put(thing('x', 'u1', '1'));
    store.put(thing('y', 'u2', '1'));
    const late: string[] = [];
    store.onChange(() => {
      throw new Error('broken handler');
    });
    store.onChange((change) => late.push(tell(change)));
    store.put(thing('x', 'u1', '2'));
    expect(late).toEqual(['added u1@1 was -', 'added u2@1 was -', 'updated u1@2 was u1']);
  });
});
