/** Which hosts have the image, and which digest of a tag is the newest known. */
import { type CachedImage, type CacheJob, type Host, isCached, type Observed } from './observed.ts';

/** The names of the host's image that is this one; undefined when it has none. */
export function namesOn(image: CachedImage, host: Host): readonly string[] | undefined {
  return host.images.find((names) => names.some((name) => image.names.includes(name)));
}

/** An image in a registry has two for one platform of several: of the index that its tag names, and of its own manifest. */
export function digestsIn(names: readonly string[]): string[] {
  const digests = names.filter((name) => name.includes('@')).map((name) => name.slice(name.indexOf('@') + 1));
  return [...new Set(digests)];
}

/**
 * Digest that hosts should have. A tag's was last resolved by the cache Job that succeeded last; until one has, most hosts
 * are right. Of the digests of that image the one that most hosts share: that of the index, where platforms differ.
 */
export function newestDigest(observed: Observed): string | undefined {
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

function broughtLast(observed: Observed, image: CachedImage): string[] | undefined {
  const ended = observed.jobs
    .filter(({ type, outcome }) => type === 'cache' && outcome.kind === 'succeeded')
    .toSorted((a, b) => endOf(b).localeCompare(endOf(a)));
  for (const job of ended) {
    const host = observed.hosts.get(job.host);
    const digests = digestsIn((host && namesOn(image, host)) ?? []);
    const reported = job.outcome.kind === 'succeeded' ? job.outcome.report.digest : undefined;
    // Until the host lists what the job brought, it lists what was there before.
    if (digests.length > 0 && (reported === undefined || digests.includes(reported))) {
      return digests;
    }
  }
  return undefined;
}

function endOf({ outcome }: CacheJob): string {
  return (outcome.kind === 'succeeded' ? outcome.finishedAt : undefined) ?? '';
}

/** All digests of images that have one of these; of all images when none has. */
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
