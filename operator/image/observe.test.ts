import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import type { Image } from '../../api/v1alpha1/image.ts';
import { Store } from '../../kube/cache.ts';
import type { Informer } from '../../kube/informer.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { parseConfig } from '../config/config.ts';
import { TASKS_BY_OWNER } from '../tasks/owner.ts';
import { imagesAffected } from './controller.ts';
import { observeImage } from './observe.ts';

const config = parseConfig({}, 'test');

function image(namespace: string, name: string, source: Image['spec']['source']): Image {
  const metadata = { namespace, name, uid: `${namespace}/${name}` };
  return { apiVersion: 'berth.dev/v1alpha1', kind: 'Image', metadata, spec: { source } };
}

function holding<T extends KubeObject>(objects: readonly T[]): Informer<T> {
  const cache = new Store<T>(pino({ level: 'silent' }), { [TASKS_BY_OWNER]: () => [] });
  objects.forEach((object) => cache.put(object));
  return { cache } as unknown as Informer<T>;
}

const EMPTY = { empty: { size: '1Gi' } };

/**
 * Returns the uid of the object that a copy in platform-ci copies, and the keys (`namespace/name`) of the Images that a change of
 * this object concerns. `others` are the existing Images.
 */
function copied(name: string, copyOf: { name: string; namespace?: string }, others: readonly Image[]) {
  const copy = image('platform-ci', name, { copyOf });
  const objects = holding([copy, ...others]);
  const none = { vms: holding([]), jobs: holding([]), taskPods: holding([]) };
  const sources = { kind: 'Image' as const, objects, config, clock: () => 0, ...none };
  const { origin } = observeImage(sources as unknown as Parameters<typeof observeImage>[0], copy);
  const told = origin && imagesAffected({ kind: 'Image', objects, config }).byOrigin(origin);
  return { origin: origin?.metadata.uid, told };
}

describe('the origin of a copied Image', () => {
  const shared = image('platform-default', 'golden', EMPTY);
  const own = image('platform-ci', 'golden', EMPTY);

  it('is looked up in its own namespace, then in the default one', () => {
    const told = ['platform-ci/copy'];
    expect(copied('copy', { name: 'golden' }, [shared, own])).toEqual({ origin: 'platform-ci/golden', told });
    expect(copied('copy', { name: 'golden' }, [shared])).toEqual({ origin: 'platform-default/golden', told });
    expect(copied('copy', { name: 'golden' }, [])).toEqual({ origin: undefined, told: undefined });
  });

  it('is in the named namespace, and nowhere else', () => {
    const copyOf = { name: 'golden', namespace: 'platform-qa' };
    expect(copied('copy', copyOf, [shared, own]).origin).toBeUndefined();
  });

  it('is never the Image itself, which may have the name of its origin', () => {
    expect(copied('golden', { name: 'golden' }, [shared])).toEqual({
      origin: 'platform-default/golden',
      told: ['platform-ci/golden'],
    });
  });
});
