/** Finds, creates and changes ImageCacheEntries. One entry keeps an image on the hosts of all namespaces. */
import { createHash } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { LRUCache } from 'lru-cache';
import { type CacheTargets, keepingEntry, referenceOf } from '../../api/v1alpha1/cachetargets.ts';
import type { ImageCacheEntry, ImageCacheEntrySpec } from '../../api/v1alpha1/imagecacheentry.ts';
import type { KubeClient } from '../../kube/client.ts';
import { isAlreadyExists, isConflict, unlessMissing } from '../../kube/errors.ts';
import { StatusError } from '../http/errors.ts';
import type { Watches } from '../own/watches.ts';
import { IMAGE_CACHE_ENTRIES } from '../resources.ts';
import { isEmpty } from './targets.ts';

export type CachedSource = Pick<ImageCacheEntrySpec, 'reference' | 'imageRef'>;

/** Prefix of the names of entries that the server creates. The rest is a hash of the name of the image. */
const NAME_PREFIX = 'cached-';
const HASH_LENGTH = 32;
/** Limit of entries that the server creates. No quota limits them, because they belong to no namespace. */
const ENTRIES = 1_000;
/** Limit of entries that keep images on the hosts of one namespace, so that its members leave entries to others. Few hosts have more images. */
const ENTRIES_OF_NAMESPACE = 250;
/** Time in which a watch shows a new entry. Until then, the entry counts as one of its namespace anyway. */
const LEARNING_MILLISECONDS = 60_000;
/** Number of unused entries that one request deletes before it creates an entry. */
const DELETIONS = 10;
/** Limit of attempts. Each failed attempt means that somebody else wrote the entry at the same time. */
const ATTEMPTS = 10;

export class Entries {
  readonly #client: KubeClient;
  readonly #watches: Watches;
  /** Targets of new entries by name, which the watch may not show yet. */
  readonly #created = new LRUCache<string, CacheTargets>({ max: ENTRIES, ttl: LEARNING_MILLISECONDS });

  constructor(client: KubeClient, watches: Watches) {
    this.#client = client;
    this.#watches = watches;
  }

  /** Returns the entry that keeps the image, by the normalized name of the image; undefined without an entry. */
  find(reference: string): Readonly<ImageCacheEntry> | undefined {
    return keepingEntry(this.#watches.entriesFor(reference));
  }

  /**
   * Changes the targets of the image's entry. If no entry exists and the changed targets select hosts, an entry is created. `change` is
   * called again when somebody else wrote the entry at the same time. `own` has the names of all hosts of the namespace.
   *
   * @throws StatusError 403 when there are too many entries, and 409 when the entry is being deleted or others write it all the time.
   */
  async change(
    source: CachedSource,
    own: ReadonlySet<string>,
    change: (targets: CacheTargets) => CacheTargets,
  ): Promise<void> {
    const reference = referenceOf({ spec: source });
    for (let attempt = 1; attempt <= ATTEMPTS; attempt += 1) {
      const name = this.find(reference)?.metadata.name ?? nameOf(reference);
      const entry = await unlessMissing(this.#client.get(IMAGE_CACHE_ENTRIES, { name }));
      const isDone =
        entry === undefined
          ? await this.#create(name, { ...source, targets: change({}) }, own)
          : await this.#update(entry, reference, change(entry.spec.targets ?? {}));
      if (isDone) {
        return;
      }
    }
    throw new StatusError(409, `Others change the cache of ${reference} at the same time: try again`);
  }

  async #create(name: string, spec: ImageCacheEntrySpec, own: ReadonlySet<string>): Promise<boolean> {
    const { targets = {} } = spec;
    if (isEmpty(targets)) {
      return true;
    }
    this.#requireShare(own);
    this.#created.set(name, targets);
    try {
      await this.#makeRoom();
      const created = this.#client.create(IMAGE_CACHE_ENTRIES, { metadata: { name }, spec });
      return await doneUnless(isAlreadyExists, created);
    } catch (error) {
      this.#created.delete(name);
      throw error;
    }
  }

  async #update(entry: ImageCacheEntry, reference: string, targets: CacheTargets): Promise<boolean> {
    const { name, resourceVersion, deletionTimestamp } = entry.metadata;
    if (isDeepStrictEqual(entry.spec.targets ?? {}, targets)) {
      return true;
    }
    if (deletionTimestamp !== undefined || referenceOf(entry) !== reference) {
      throw new StatusError(409, `The ImageCacheEntry ${name} is being deleted: try again later`);
    }
    const { nodes, excludeNodes } = targets;
    const patch = { metadata: { resourceVersion }, spec: { targets: { nodes, excludeNodes } } };
    return await doneUnless(isConflict, this.#client.mergePatch(IMAGE_CACHE_ENTRIES, { name }, patch));
  }

  /** @throws StatusError 403 when too many entries keep images on the hosts with these names. */
  #requireShare(own: ReadonlySet<string>): void {
    const known = this.#ownEntries();
    const names = new Set(known.map(({ metadata }) => metadata.name));
    const unseen = [...this.#created].filter(([name]) => !names.has(name)).map(([, targets]) => targets);
    const all = [...known.map(({ spec }) => spec.targets ?? {}), ...unseen];
    const count = all.filter(({ nodes = [] }) => nodes.some((node) => own.has(node))).length;
    if (count >= ENTRIES_OF_NAMESPACE) {
      throw new StatusError(
        403,
        `The hosts of the namespace keep ${ENTRIES_OF_NAMESPACE} images already: remove an image first`,
      );
    }
  }

  #ownEntries(): readonly Readonly<ImageCacheEntry>[] {
    return this.#watches.entries().filter(({ metadata }) => metadata.name.startsWith(NAME_PREFIX));
  }

  /** Deletes some entries that keep an image on no host any more. @throws StatusError 403 when there are too many others. */
  async #makeRoom(): Promise<void> {
    const known = this.#ownEntries();
    let count = known.length;
    for (const { metadata } of known.filter(isUnused).slice(0, DELETIONS)) {
      const { name, uid, resourceVersion } = metadata;
      const deleted = this.#client.delete(IMAGE_CACHE_ENTRIES, { name }, { uid, resourceVersion });
      count -= Number(await doneUnless(isConflict, deleted));
    }
    if (count >= ENTRIES) {
      throw new StatusError(403, `The cache has ${ENTRIES} images already: remove an image first`);
    }
  }
}

/** Returns whether the work was done. The result is false after an error for which another attempt may help. */
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

function nameOf(reference: string): string {
  return NAME_PREFIX + createHash('sha256').update(reference).digest('hex').slice(0, HASH_LENGTH);
}

function isUnused({ metadata, spec, status }: Readonly<ImageCacheEntry>): boolean {
  return (
    isEmpty(spec.targets ?? {}) &&
    status?.observedGeneration === metadata.generation &&
    (status?.holders ?? []).length === 0
  );
}
