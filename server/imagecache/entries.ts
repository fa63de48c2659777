/** Finds, creates and changes ImageCacheEntries. An image has only one entry, even if hosts of several namespaces keep the image. */
import { LRUCache } from 'lru-cache';
import {
  type CachedSource,
  changedByOthers,
  ENTRY_PREFIX,
  entryName,
  type EntryWrite,
  entryWrite,
  type NewEntry,
} from '../../api/http/cachechange.ts';
import { isEmpty } from '../../api/http/cachehosts.ts';
import { type CacheTargets, keepingEntry, referenceOf } from '../../api/v1alpha1/cachetargets.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { IMAGES_LISTED } from '../../api/v1alpha1/reference.ts';
import type { KubeClient } from '../../kube/client.ts';
import { isAlreadyExists, isConflict, unlessMissing } from '../../kube/errors.ts';
import { StatusError } from '../http/errors.ts';
import type { ServerWatches } from '../own/watches.ts';
import { IMAGE_CACHE_ENTRIES } from '../../api/v1alpha1/resources.ts';

/** Largest number of entries that the server creates. This limit is needed, because entries belong to no namespace and have no quota. */
const ENTRIES = 1_000;
/**
 * Largest number of entries that keep images on the hosts of one namespace. Without this limit, the members of one namespace could create
 * all {@link ENTRIES} entries. A Node lists at most this many images. With more entries, some of their images would never count as
 * cached.
 */
const ENTRIES_OF_NAMESPACE = IMAGES_LISTED;
/**
 * Time in milliseconds after which the watch surely shows a new entry. Until then, the server itself remembers the new entry, so that the
 * entry counts in {@link ENTRIES_OF_NAMESPACE}.
 */
const LEARNING_MILLISECONDS = 60_000;
/** Largest number of unused entries that one request deletes before it creates an entry. */
const DELETIONS = 10;
/** Largest number of attempts to write an entry. An attempt fails if somebody else wrote the entry at the same time. */
const ATTEMPTS = 10;

export class Entries {
  readonly #client: KubeClient;
  readonly #watches: ServerWatches;
  /** Targets of the entries that this server created, by the name of the entry. The watch might not show these entries yet. */
  readonly #created = new LRUCache<string, CacheTargets>({ max: ENTRIES, ttl: LEARNING_MILLISECONDS });

  constructor(client: KubeClient, watches: ServerWatches) {
    this.#client = client;
    this.#watches = watches;
  }

  /** Returns the entry that keeps the image with this normalized name. The result is undefined if there is no entry. */
  find(reference: string): Readonly<ImageCacheEntry> | undefined {
    return keepingEntry(this.#watches.entriesFor(reference));
  }

  /**
   * Changes the targets of the image's entry. If there is no entry and the changed targets select hosts, an entry is created. If somebody
   * else wrote the entry at the same time, `change` is called again. `own` contains the names of all hosts of the namespace.
   *
   * @throws StatusError 403 when there are too many entries, and 409 when the entry is being deleted or others change it in each attempt.
   */
  async change(
    source: CachedSource,
    own: ReadonlySet<string>,
    change: (targets: CacheTargets) => CacheTargets,
  ): Promise<void> {
    const reference = referenceOf({ spec: source });
    for (let attempt = 1; attempt <= ATTEMPTS; attempt += 1) {
      const name = this.find(reference)?.metadata.name ?? entryName(reference);
      const entry = await unlessMissing(this.#client.get(IMAGE_CACHE_ENTRIES, { name }));
      const write = entryWrite(entry, source, change);
      if (write === undefined || (await this.#write(write, own))) {
        return;
      }
    }
    throw new StatusError(409, changedByOthers(reference));
  }

  /** Writes the entry. Resolves with false if somebody else wrote the entry at the same time. In this case, another attempt can succeed. */
  async #write(write: EntryWrite, own: ReadonlySet<string>): Promise<boolean> {
    if ('refusal' in write) {
      throw new StatusError(409, write.refusal);
    }
    if ('create' in write) {
      return await this.#create(write.create, own);
    }
    const { name, patch } = write;
    return await doneUnless(isConflict, this.#client.mergePatch(IMAGE_CACHE_ENTRIES, { name }, patch));
  }

  async #create(entry: NewEntry, own: ReadonlySet<string>): Promise<boolean> {
    const { name } = entry.metadata;
    this.#requireShare(own);
    this.#created.set(name, entry.spec.targets ?? {});
    try {
      await this.#makeRoom();
      return await doneUnless(isAlreadyExists, this.#client.create(IMAGE_CACHE_ENTRIES, entry));
    } catch (error) {
      this.#created.delete(name);
      throw error;
    }
  }

  /**
   * Checks that one more entry for the hosts in `own` is allowed. @throws StatusError 403 when too many entries keep images on these hosts.
   */
  #requireShare(own: ReadonlySet<string>): void {
    const known = this.#ownEntries();
    const names = new Set(known.map(({ metadata }) => metadata.name));
    const unseen = [...this.#created].filter(([name]) => !names.has(name)).map(([, targets]) => targets);
    const all = [...known.map(({ spec }) => spec.targets ?? {}), ...unseen];
    const count = all.filter(({ nodes = [] }) => nodes.some((node) => own.has(node))).length;
    if (count >= ENTRIES_OF_NAMESPACE) {
      throw new StatusError(
        403,
        `The hosts of the namespace keep ${ENTRIES_OF_NAMESPACE} images already. Remove an image first`,
      );
    }
  }

  #ownEntries(): readonly Readonly<ImageCacheEntry>[] {
    return this.#watches.entries().filter(({ metadata }) => metadata.name.startsWith(ENTRY_PREFIX));
  }

  /**
   * Deletes some entries that no longer keep an image on any host. An entry that names only hosts that do not exist is one of them, but
   * only while the cache is full. The Node of a host can be deleted for a moment, and then its entries are still needed.
   *
   * @throws StatusError 403 when too many entries are left.
   */
  async #makeRoom(): Promise<void> {
    const known = this.#ownEntries();
    let count = known.length;
    const exists = (name: string) => count < ENTRIES || this.#watches.host(name) !== undefined;
    const unused = known.filter((entry) => isUnused(entry, exists));
    for (const { metadata } of unused.slice(0, DELETIONS)) {
      const { name, uid, resourceVersion } = metadata;
      const deleted = this.#client.delete(IMAGE_CACHE_ENTRIES, { name }, { uid, resourceVersion });
      count -= Number(await doneUnless(isConflict, deleted));
    }
    if (count >= ENTRIES) {
      throw new StatusError(403, `The cache has ${ENTRIES} images already. Remove an image first`);
    }
  }
}

/** Waits for the work and returns true. Returns false if the work fails with an error after which another attempt can succeed. */
async function doneUnless(mayRetry: (error: unknown) => boolean, work: Promise<unknown>): Promise<boolean> {
  try {
    await work;
    return true;
  } catch (error) {
    if (!mayRetry(error)) {
      throw error;
    }
    return false;
  }
}

function isUnused(
  { metadata, spec: { targets = {} }, status }: Readonly<ImageCacheEntry>,
  exists: (name: string) => boolean,
): boolean {
  return (
    isEmpty({ ...targets, nodes: targets.nodes?.filter(exists) }) &&
    status?.observedGeneration === metadata.generation &&
    (status?.holders ?? []).length === 0
  );
}
