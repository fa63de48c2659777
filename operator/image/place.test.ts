import { describe, expect, it } from 'vitest';
import type { Image } from '../../api/v1alpha1/image.ts';
import { readReference } from '../../api/v1alpha1/reference.ts';
import { parseConfig } from '../config/config.ts';
import { storageTarget } from './place.ts';

/** Longest name that the API server accepts for an Image or ISO. */
const NAME_LENGTH = 253;
const NAMESPACE = 'n'.repeat(63);
/** Longest file name in a folder. The agent first writes the content under a name with this suffix. */
const FILE_NAME_LENGTH = 255;
const SUFFIX = '.partial';
/** Longest repository that registries accept. */
const REPOSITORY_LENGTH = 255;

const folder = parseConfig({ imageStorage: { folder: true } }, 'test');
const registry = parseConfig({ imageStorage: { registry: { prefix: 'registry.example/berth' } } }, 'test');

function image(name: string, uid = 'u'): Image {
  const metadata = { namespace: NAMESPACE, name, uid };
  return { apiVersion: 'berth.dev/v1alpha1', kind: 'Image', metadata, spec: { source: {} } };
}

describe('the place of content in the image storage', () => {
  // The cut of a name can end with a dot or a dash, which a repository must not have at its end.
  it.each([
    ['a long name', 'a'.repeat(NAME_LENGTH)],
    ['a long name with dots', `${'a.'.repeat(NAME_LENGTH / 2)}a`],
    ['a name whose cut ends with dashes', `${'a'.repeat(126)}--b`],
  ])('is one that the storage accepts, also for an image with %s', (_, name) => {
    const file = storageTarget(image(name), folder, 'v');
    expect(file).toMatchObject({ type: 'folder' });
    const [, written = ''] = file?.type === 'folder' ? file.path.split('/') : [];
    expect(`${written}${SUFFIX}`.length).toBeLessThanOrEqual(FILE_NAME_LENGTH);
    const artifact = storageTarget(image(name), registry, 'v');
    const parts = artifact?.type === 'registry' ? readReference(artifact.reference) : undefined;
    expect(parts).toMatchObject({ registry: 'registry.example' });
    const repository = typeof parts === 'object' ? parts.repository : '';
    expect(repository.length).toBeLessThanOrEqual(REPOSITORY_LENGTH);
  });

  it.each([
    ['folder', folder],
    ['registry', registry],
  ])('in a %s differs for images whose long names differ only at the end', (_, config) => {
    const start = 'a'.repeat(NAME_LENGTH - 1);
    const [one, other] = [image(`${start}1`, 'one'), image(`${start}2`, 'other')];
    expect(storageTarget(one, config, 'v')).not.toEqual(storageTarget(other, config, 'v'));
  });
});
