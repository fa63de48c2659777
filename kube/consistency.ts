/** Checks whether the caches already contain the changes that this process made. Kubernetes 1.36 has such a check, too (KEP-5647). */
import { BEHIND_MILLISECONDS, type Informer } from './informer.ts';
import { compareResourceVersions, type KubeObject } from './objects.ts';

/** The methods of an informer that this file uses. */
export type Follower = Pick<Informer<KubeObject>, 'cutIfStale' | 'readSince'> & {
  readonly cache: { readonly resourceVersion: string };
};

interface Written {
  resourceVersion: string;
  /** Time of the change in milliseconds, as `performance.now()` returns it. */
  at: number;
}

/**
 * Remembers the newest resourceVersion that this process wrote, separately for each key of a controller and each informer. A key is
 * reconciled only after the informer's cache has reached the recorded resourceVersion. Record only changes of objects that match the
 * informer's selectors. The informer gets no events about other objects, so a recorded change of another object would delay the key until
 * the next bookmark.
 */
export class Consistency {
  readonly #written = new Map<string, Map<Follower, Written>>();
  readonly #now: () => number;

  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  wrote(key: string, informer: Follower, resourceVersion: string): void {
    const versions = this.#written.get(key) ?? new Map<Follower, Written>();
    const known = versions.get(informer);
    if (known === undefined || compareResourceVersions(known.resourceVersion, resourceVersion) < 0) {
      versions.set(informer, { resourceVersion, at: this.#now() });
      this.#written.set(key, versions);
    }
  }

  /**
   * Returns whether all caches contain the recorded changes of the key. If a cache still lacks a change after 5 s, this function restarts
   * the watch of that cache.
   */
  ready(key: string): boolean {
    const versions = this.#written.get(key);
    if (versions === undefined) {
      return true;
    }
    for (const [informer, written] of versions) {
      if (this.#hasSeen(informer, written)) {
        versions.delete(informer);
      } else if (this.#now() - written.at > BEHIND_MILLISECONDS) {
        informer.cutIfStale(written.resourceVersion);
      }
    }
    if (versions.size > 0) {
      return false;
    }
    this.#written.delete(key);
    return true;
  }

  forget(key: string): void {
    this.#written.delete(key);
  }

  /**
   * Returns whether the cache contains the change. The result is also true if all objects were read again after the change. In that case,
   * the resourceVersions are not compared, because a restore of etcd from a backup can make them lower.
   */
  #hasSeen(informer: Follower, written: Written): boolean {
    const caughtUp = compareResourceVersions(informer.cache.resourceVersion, written.resourceVersion) >= 0;
    return caughtUp || informer.readSince > written.at;
  }
}
