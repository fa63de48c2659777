import { expect, it } from 'vitest';
import type { KubeObject } from '../../kube/objects.ts';
import { Collection } from './collection.ts';

const object = (name: string, resourceVersion = '1'): KubeObject => ({
  apiVersion: 'v1',
  kind: 'Thing',
  metadata: { name, namespace: 'team', resourceVersion },
});

it('is as a list and the events after it leave it', () => {
  const things = new Collection();
  things.replace([object('a'), object('b')]);
  things.apply({ type: 'MODIFIED', object: object('a', '2') });
  things.apply({ type: 'ADDED', object: object('c') });
  things.apply({ type: 'DELETED', object: object('b') });
  things.apply({ type: 'BOOKMARK', object: object('d') });
  expect(things.all.map(({ metadata }) => `${metadata.name}${metadata.resourceVersion}`)).toEqual([
    'a2',
    'c1',
  ]);
  expect(things.get('team/a')?.metadata.resourceVersion).toBe('2');
  things.replace([object('e')]);
  expect(things.size).toBe(1);
});
