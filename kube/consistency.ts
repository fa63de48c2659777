/** Reading one's own writes, after the consistency store of Kubernetes 1.36 (KEP-5647). */
import { BEHIND_MILLISECONDS, type Informer } from './informer.ts';
import { compareResourceVersions, type KubeObject } from './objects.ts';

/** What is asked of an informer here. */
export type Follower = Pick<Informer<KubeObject>, 'cutIfStale' | 'readSince'> & {
  readonly cache: { readonly resourceVersion: string };
};

interface Written {
  resourceVersion: string;
  /** By `performance.now()`. */
  at: number;
}

/**
 * Per key of a controller, the newest version written, by the informer that will bring it back.
 * Only write down what the informer's selectors show, or the key waits for the next bookmark.
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

  /** Whether every cache has all that was written for the key. A cache that is long behind has its watch cut. */
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

  /** A full read that began after the write settles it too: after a restored backup, versions start lower. */
  #hasSeen(informer: Follower, written: Written): boolean {
    const caughtUp = compareResourceVersions(informer.cache.resourceVersion, written.resourceVersion) >= 0;
    return caughtUp || informer.readSince > written.at;
  }
}
