/** Describes the image of an entry: the task for hosts, the hosts that list the image, and the newest known digest of a tag. */
import { referenceOf } from '../../api/v1alpha1/cachetargets.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { readReference, repositoryName } from '../../api/v1alpha1/reference.ts';
import { registryReference } from '../../api/v1alpha1/source.ts';
import { contentOf } from '../image/content.ts';
import {
  type CachedImage,
  type CacheJob,
  type ObservedHost,
  isCached,
  type ObservedEntry,
  type WaitingForImage,
} from './observed.ts';

/** Returns the image of an entry, or the reason why it is not available yet. `image` is the object that `imageRef` names, if it exists. */
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
    objectImage(image) ?? {
      reason: 'ImageNotReady',
      message: `${name} has no content yet. Look at its status`,
    }
  );
}

function registryImage(reference: string): CachedImage | WaitingForImage {
  const parts = readReference(reference);
  if (typeof parts === 'string') {
    return {
      reason: 'ImageSourceUnsupported',
      message: `"${reference}" is not an image reference: ${parts}`,
    };
  }
  const { digest } = parts;
  const pinned = digest === undefined ? [] : [`${repositoryName(parts)}@${digest}`];
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
    names: [],
    digest: pinnedDigest(registryReference(source)) ?? digest,
  };
}

/**
 * Returns the digest in a reference. For an image for several platforms, it is the digest of the index. The status of an Image contains
 * only the digest for the platform of the host that fetched the Image first.
 */
function pinnedDigest(reference: string | undefined): string | undefined {
  const parts = reference === undefined ? '' : readReference(reference);
  return typeof parts === 'string' ? undefined : parts.digest;
}

/** Returns true if the host lists the fetched image. For a tag, the host must list the digest that the Job reported for this tag. */
export function isBrought(
  image: ObservedEntry['image'],
  listed: readonly string[],
  digest: string | undefined,
): boolean {
  const isTag = isCached(image) && image.digest === undefined;
  return !isTag || digest === undefined || digestsIn(listed).includes(digest);
}

/** Returns the names under which the host lists this image. The result is undefined if the host does not list it. */
export function namesOn(image: CachedImage, host: ObservedHost): readonly string[] | undefined {
  return host.images.find((listed) => isListed(image, listed));
}

/**
 * Returns true if these names of an image on a host are names of `image`. Hosts of different platforms list an Image object with different
 * digests. Therefore one name must be that of the object, and any name must have the digest of the content.
 */
function isListed({ names, digest = '', task }: CachedImage, listed: readonly string[]): boolean {
  return task.name === undefined
    ? listed.some((name) => names.includes(name))
    : listed.some((name) => name.startsWith(`${task.name}@`)) && digestsIn(listed).includes(digest);
}

/**
 * Returns the digests in the names of an image. An image for several platforms has two digests: the digest of the index that the tag names,
 * and the digest of the manifest for the host's platform.
 */
export function digestsIn(names: readonly string[]): string[] {
  const digests = names.filter((name) => name.includes('@')).map((name) => name.slice(name.indexOf('@') + 1));
  return [...new Set(digests)];
}

/**
 * Returns the digest that hosts should have. For a tag, this is the digest that the last successful cache Job fetched. Before the first
 * success, this is the digest that most hosts have. A host can list two digests of one image: that of the index, and that of the host's
 * own architecture. Hosts of different architectures have only the digest of the index in common. In a mixed cluster, most hosts therefore
 * have this digest.
 */
export function newestDigest(observed: ObservedEntry): string | undefined {
  const { entry, image } = observed;
  const known = entry.status?.digest;
  if (!isCached(image)) {
    return known;
  }
  if (image.digest !== undefined) {
    return image.digest;
  }
  const lists = [...observed.hosts.values()]
    .map((host) => digestsIn(namesOn(image, host) ?? []))
    .filter((digests) => digests.length > 0);
  const brought = broughtLast(observed, image);
  const current = brought !== undefined && !brought.includes(known ?? '') ? brought : [known ?? ''];
  return mostShared(candidates(lists, current), lists, known) ?? known;
}

function broughtLast(observed: ObservedEntry, image: CachedImage): string[] | undefined {
  const ended = observed.jobs
    .filter(({ type, outcome }) => type === 'cache' && outcome.kind === 'succeeded')
    .toSorted((a, b) => endOf(b).localeCompare(endOf(a)));
  for (const job of ended) {
    const host = observed.hosts.get(job.host);
    const digests = digestsIn((host && namesOn(image, host)) ?? []);
    const reported = job.outcome.kind === 'succeeded' ? job.outcome.report.digest : undefined;
    // A host that still lists the previous image is skipped. It has not yet updated its list after the Job.
    if (digests.length > 0 && (reported === undefined || digests.includes(reported))) {
      return digests;
    }
  }
  return undefined;
}

function endOf({ outcome }: CacheJob): string {
  return (outcome.kind === 'succeeded' ? outcome.finishedAt : undefined) ?? '';
}

/**
 * Returns all digests of each image that has one of the `current` digests. If there is no such image, returns the digests of all images.
 */
function candidates(lists: readonly string[][], current: readonly string[]): string[] {
  const same = lists.filter((digests) => digests.some((digest) => current.includes(digest)));
  return [...new Set((same.length > 0 ? same : lists).flat())];
}

function mostShared(
  digests: readonly string[],
  lists: readonly string[][],
  known: string | undefined,
): string | undefined {
  let best: { digest: string; count: number } | undefined;
  for (const digest of digests) {
    const count = lists.filter((list) => list.includes(digest)).length;
    if (best === undefined || count > best.count || (count === best.count && digest === known)) {
      best = { digest, count };
    }
  }
  return best?.digest;
}
