/** The image that an entry is for, as hosts are told of it and list it. */
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { normaliseImageName, readReference, repositoryName } from '../../api/v1alpha1/reference.ts';
import { contentOf } from '../image/content.ts';
import type { CachedImage, WaitingForImage } from './observed.ts';

/** The one spelling of its name; entries that have it in common are for the same image. */
export function referenceOf({ spec }: ImageCacheEntry): string {
  const { imageRef, reference = '' } = spec;
  return imageRef === undefined
    ? normaliseImageName(reference)
    : `berth.dev/${imageRef.namespace}/${imageRef.name}`;
}

/** `image`: the object that `imageRef` names, where there is one. */
export function resolveImage(
  entry: ImageCacheEntry,
  image: Image | undefined,
): CachedImage | WaitingForImage {
  const reference = referenceOf(entry);
  const { imageRef } = entry.spec;
  if (imageRef === undefined) {
    return registryImage(reference);
  }
  const name = `Image ${imageRef.name} in namespace ${imageRef.namespace}`;
  if (image === undefined) {
    return { reason: 'ImageNotFound', message: `${name} was not found` };
  }
  return (
    objectImage(image) ?? { reason: 'ImageNotReady', message: `${name} has no content yet: see its status` }
  );
}

function registryImage(reference: string): CachedImage {
  const parts = readReference(reference);
  const digest = typeof parts === 'string' ? undefined : parts.digest;
  const pinned =
    typeof parts === 'string' || digest === undefined ? [] : [`${repositoryName(parts)}@${digest}`];
  return {
    task: { source: { type: 'registry', reference }, format: 'Auto' },
    containerImage: reference,
    names: [...new Set([reference, ...pinned])],
    digest,
  };
}

function objectImage(image: Image): CachedImage | undefined {
  const content = contentOf(image);
  const digest = image.status?.digest;
  if (content === undefined || digest === undefined) {
    return undefined;
  }
  const { source, format, name, containerImage } = content;
  const { architecture } = image.spec;
  return {
    task: { source, format, name, ...(architecture !== undefined && { architecture }) },
    containerImage,
    names: [`${name}@${digest}`],
    digest,
  };
}
