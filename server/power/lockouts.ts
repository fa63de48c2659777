/**
 * Locks out sources with many failed sign-ins. Right credentials do not end a lock-out and do not reset the count. The count of a source is
 * forgotten when the source has had no failure for a time.
 */
import { LRUCache } from 'lru-cache';
import { afterMore, type Failures, greater, isLocked, type LockoutRules, recent } from './failures.ts';
import type { SharedFailures } from './sharedfailures.ts';

/** Largest number of sources that one replica counts. They need about 4 MB. */
const SOURCES = 16_384;

export class Lockouts {
  readonly #rules: LockoutRules;
  readonly #shared: Pick<SharedFailures, 'of' | 'add' | 'all'>;
  /** Failures that this replica has seen. They are here before the watch shows them, and also if they are not shared. */
  readonly #own: LRUCache<string, Failures>;
  readonly #onLocked: () => void;

  /** `onLocked` is called for each source that this replica locks out. */
  constructor(
    rules: LockoutRules,
    shared: Pick<SharedFailures, 'of' | 'add' | 'all'>,
    onLocked: () => void = () => undefined,
  ) {
    this.#rules = rules;
    this.#shared = shared;
    this.#own = new LRUCache({ max: SOURCES, ttl: rules.seconds * 1000 });
    this.#onLocked = onLocked;
  }

  /** Reports whether the source gets no answer. */
  isLocked(source: string): boolean {
    return isLocked(this.#failuresOf(source), this.#rules, Date.now());
  }

  /** Number of sources that get no answer. */
  get size(): number {
    const now = Date.now();
    const known = [...this.#shared.all(), ...this.#unshared()];
    return known.filter((failures) => isLocked(failures, this.#rules, now)).length;
  }

  /** Counts a failed sign-in. Returns whether the source still gets an answer to it. */
  async fail(source: string): Promise<boolean> {
    if (this.isLocked(source)) {
      return false;
    }
    const own = this.#set(source, afterMore(this.#failuresOf(source), 1, this.#rules, Date.now()));
    const number = (await this.#shared.add(source)) ?? own.count;
    if (number > own.count) {
      this.#set(source, { count: Math.min(number, this.#rules.failures), last: own.last });
    }
    return number <= this.#rules.failures;
  }

  #failuresOf(source: string): Failures | undefined {
    const now = Date.now();
    const [own, shared] = [this.#own.get(source), this.#shared.of(source)];
    return greater(recent(own, this.#rules, now), recent(shared, this.#rules, now));
  }

  #set(source: string, failures: Failures): Failures {
    const wasLocked = this.isLocked(source);
    this.#own.set(source, failures);
    if (!wasLocked && isLocked(failures, this.#rules, failures.last)) {
      this.#onLocked();
    }
    return failures;
  }

  /** Failures of the sources without a Lease. */
  #unshared(): Failures[] {
    return [...this.#own.entries()].flatMap(([source, failures]) =>
      this.#shared.of(source) === undefined ? [failures] : [],
    );
  }
}
