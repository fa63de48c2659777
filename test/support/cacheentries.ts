/** ImageCacheEntries, as a test makes and watches them. */
import type {
  ImageCacheEntry,
  ImageCacheEntrySpec,
  NodeCacheState,
} from '../../api/v1alpha1/imagecacheentry.ts';
import { IMAGE_CACHE_ENTRIES } from '../../operator/objects/resources.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { isGone, waitForObject } from './objects.ts';
import { waitFor, type WaitOptions } from '../../hack/wait.ts';

export class CacheEntries {
  readonly #cluster: Cluster;

  constructor(cluster: Cluster) {
    this.#cluster = cluster;
  }

  create(name: string, spec: ImageCacheEntrySpec): Promise<ImageCacheEntry> {
    return this.#cluster.client().create(IMAGE_CACHE_ENTRIES, { metadata: { name }, spec });
  }

  get(name: string): Promise<ImageCacheEntry> {
    return this.#cluster.client().get(IMAGE_CACHE_ENTRIES, { name });
  }

  async list(): Promise<ImageCacheEntry[]> {
    return (await this.#cluster.client().list(IMAGE_CACHE_ENTRIES)).items;
  }

  patch(name: string, spec: object): Promise<ImageCacheEntry> {
    return this.#cluster.client().mergePatch(IMAGE_CACHE_ENTRIES, { name }, { spec });
  }

  /** As `kubectl delete --wait=false` does. */
  delete(name: string): Promise<void> {
    return this.#cluster.client().delete(IMAGE_CACHE_ENTRIES, { name });
  }

  async waitUntilGone(name: string, options?: WaitOptions): Promise<void> {
    await waitFor(`entry ${name} to be gone`, () => isGone(() => this.get(name)), options);
  }

  /** So many hosts have the image, and they are all that should. */
  waitUntilCached(name: string, count: number, options?: WaitOptions): Promise<ImageCacheEntry> {
    return this.waitFor(
      name,
      `${count} hosts to have the image`,
      (entry) => entry.status?.cached === count && readyOf(entry)?.status === 'True',
      options,
    );
  }

  waitFor(
    name: string,
    what: string,
    matches: (entry: ImageCacheEntry) => boolean,
    options?: WaitOptions,
  ): Promise<ImageCacheEntry> {
    return waitForObject(`entry ${name}: ${what}`, () => this.get(name), matches, options);
  }
}

export function readyOf(entry: ImageCacheEntry) {
  return entry.status?.conditions?.find(({ type }) => type === 'Ready');
}

export function rowOf(entry: ImageCacheEntry, host: string): NodeCacheState | undefined {
  return entry.status?.nodes?.find(({ node }) => node === host);
}
