/** Describes the image of an entry: the task for hosts, the digests by which hosts list the image, and the newest digest of a tag. */
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { normaliseImageName, readReference } from '../../api/v1alpha1/reference.ts';
import { contentOf, showsCredentials } from '../image/content.ts';
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
  const { imageRef, reference = '' } = entry.spec;
  if (imageRef === undefined) {
    return registryImage(reference);
  }
  const name = `Image ${imageRef.name} in namespace ${imageRef.namespace}`;
  return image === undefined
    ? { reason: 'ImageNotFound', message: `${name} was not found` }
    : objectImage(image, name, entry.metadata.namespace ?? '');
}

function registryImage(named: string): CachedImage | WaitingForImage {
  const reference = normaliseImageName(named);
  const parts = readReference(reference);
  if (typeof parts === 'string') {
    return {
      reason: 'ImageSourceUnsupported',
      message: `"${reference}" is not an image reference: ${parts}`,
    };
  }
  return {
    task: { source: { type: 'registry', reference }, format: 'Auto' },
    containerImage: reference,
    digest: parts.digest,
  };
}

function objectImage(image: Image, name: string, namespace: string): CachedImage | WaitingForImage {
  const content = contentOf(image);
  if (content?.digest === undefined) {
    return { reason: 'ImageNotReady', message: `${name} has no content yet. Look at its status` };
  }
  const { source, format, containerImage, digest } = content;
  if (showsCredentials(image, source, namespace)) {
    const message = `The entry cannot use ${name}. The URL of the Image can contain credentials, and the Pod that fetches it would show this URL to users of another namespace`;
    return { reason: 'ImageNotReady', message };
  }
  const { architecture } = image.spec;
  return {
    task: { source, format, name: content.name, ...(architecture !== undefined && { architecture }) },
    containerImage,
    digest,
  };
}

/**
 * Returns the digests by which the entry's image is known: the digest that hosts should have, those of earlier versions, and those that the
 * Jobs of the entry have fetched. Only the Jobs of this entry tell the digests of a tag. The lists of hosts do not, because they also have
 * the images of other namespaces.
 */
export function knownDigests({ entry, image, jobs }: ObservedEntry): ReadonlySet<string> {
  if (isCached(image) && image.digest !== undefined) {
    return new Set([image.digest]);
  }
  const { digest, formerDigests = [] } = entry.status ?? {};
  const fetched = jobs.map(({ type, outcome }) =>
    type === 'cache' && outcome.kind === 'succeeded' ? outcome.report.digest : undefined,
  );
  return new Set([digest, ...fetched, ...formerDigests].filter((one) => one !== undefined));
}

/**
 * Returns the digests of the entry's image on the host. The result is undefined if the host does not list the image. If the host has several
 * versions of the image, the one with the digest `wanted` is preferred.
 */
export function digestsOn(
  host: ObservedHost,
  known: ReadonlySet<string>,
  wanted: string | undefined,
): readonly string[] | undefined {
  const found = host.images.filter((digests) => digests.some((digest) => known.has(digest)));
  return found.find((digests) => digests.includes(wanted ?? '')) ?? found[0];
}

/**
 * Returns the digest that hosts should have. For a tag, this is the digest that the last successful cache Job fetched. A host can list two
 * digests of one image: that of the index, and that of the host's own architecture. Hosts of different architectures have only the digest of
 * the index in common. In a mixed cluster, most hosts therefore have this digest.
 */
export function newestDigest(observed: ObservedEntry): string | undefined {
  const { entry, image } = observed;
  const before = entry.status?.digest;
  if (!isCached(image)) {
    return before;
  }
  if (image.digest !== undefined) {
    return image.digest;
  }
  const known = knownDigests(observed);
  const brought = broughtLast(observed);
  const current = brought !== undefined && !brought.includes(before ?? '') ? brought : [before ?? ''];
  const lists = [...observed.hosts.values()].flatMap((host) => {
    return host.images.filter((digests) => digests.some((digest) => known.has(digest)));
  });
  return mostShared(candidates(lists, current), lists, before) ?? before;
}

/** Returns the digests of the image that the Job which ended last has fetched, as its host lists them. */
function broughtLast({ jobs, hosts }: ObservedEntry): readonly string[] | undefined {
  const ended = jobs
    .filter(({ type, outcome }) => type === 'cache' && outcome.kind === 'succeeded')
    .toSorted((a, b) => endOf(b).localeCompare(endOf(a)));
  for (const job of ended) {
    const reported = job.outcome.kind === 'succeeded' ? job.outcome.report.digest : undefined;
    // A host that does not list the image yet is skipped. It has not yet updated its list after the Job.
    const digests = hosts.get(job.host)?.images.find((one) => one.includes(reported ?? ''));
    if (digests !== undefined) {
      return digests;
    }
  }
  return undefined;
}

function endOf({ outcome }: CacheJob): string {
  return (outcome.kind === 'succeeded' ? outcome.finishedAt : undefined) ?? '';
}

/** Returns all digests of each image that has one of the `current` digests. */
function candidates(lists: readonly (readonly string[])[], current: readonly string[]): string[] {
  const same = lists.filter((digests) => digests.some((digest) => current.includes(digest)));
  return [...new Set(same.flat())];
}

function mostShared(
  digests: readonly string[],
  lists: readonly (readonly string[])[],
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
