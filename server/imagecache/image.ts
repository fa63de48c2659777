/**
 * Finds the image that a request for the cache names. The name is either a reference to an image in a registry, or the name of an Image
 * object.
 */
import type { CachedSource } from '../../api/http/cachechange.ts';
import { cachedObjectName } from '../../api/v1alpha1/cachetargets.ts';
import { isImageReference, normaliseImageName, readReference } from '../../api/v1alpha1/reference.ts';
import { isObjectName } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { findAs } from '../callers/objects.ts';
import { invalidField, notFound } from '../http/errors.ts';
import { IMAGES } from '../../api/v1alpha1/resources.ts';
import type { Entries } from './entries.ts';

export interface Named {
  readonly image: string;
  readonly namespace: string;
}

/**
 * Returns the image to cache. An Image object is read with the rights of the caller. If the namespace has no Image of this name, the one in
 * the default namespace is read.
 *
 * @throws StatusError 422 when the reference is wrong, and 404 when the Image object does not exist.
 */
export async function imageToCache(
  { image, namespace }: Named,
  caller: KubeClient,
  defaultNamespace: string,
): Promise<CachedSource> {
  if (isImageReference(image)) {
    return { reference: checkedReference(image) };
  }
  const { metadata } = await findAs(caller, IMAGES, { namespace, name: image }, defaultNamespace);
  return { imageRef: { namespace: metadata.namespace ?? namespace, name: image } };
}

/**
 * Returns an image that hosts might already have in their cache. The function does not read the Image object, because somebody might have
 * deleted this object after hosts cached the image.
 *
 * @throws StatusError 422 when the reference is wrong, and 404 when no Image object can have the name.
 */
export function cachedImage(
  { image, namespace }: Named,
  entries: Entries,
  defaultNamespace: string,
): CachedSource {
  if (isImageReference(image)) {
    return { reference: checkedReference(image) };
  }
  if (!isObjectName(image)) {
    throw notFound('images.berth.dev', image);
  }
  const isOwn = entries.find(cachedObjectName(namespace, image)) !== undefined;
  return { imageRef: { namespace: isOwn ? namespace : defaultNamespace, name: image } };
}

function checkedReference(text: string): string {
  const parts = readReference(text);
  if (typeof parts === 'string') {
    throw invalidField('image', `not an image reference: ${parts}`);
  }
  return normaliseImageName(text);
}
