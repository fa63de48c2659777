/** Keeps the times of jobs of the last 24 hours in memory, in entries of five minutes for each namespace. */
import {
  JOB_TIMES_LIMIT,
  JOB_TIMES_MILLISECONDS,
  JOB_TIMES_NAMESPACES,
} from '../../../api/v1alpha1/jobtimelimits.ts';
import { type JobTimes, type JobTimesEntry, parseJobTimes } from '../../../api/v1alpha1/jobtimes.ts';
import { timestamp } from '../../../base/time.ts';

/** What was measured: the time until a job's VM first ran (of a pool: from the claim until it was ready), or the time from there to its end. */
export type Measure = 'waited' | 'ran';

/** Longest time that is kept, in seconds: a year. A clock that was set can make any time. */
const LONGEST_SECONDS = 365 * 86_400;

/** A namespace. Another one can get its name after its deletion. */
export interface NamespaceId {
  readonly name: string;
  readonly uid: string;
}

/** Entries by their five minutes since 1970. */
type Entries = Map<number, JobTimesEntry>;

interface NamespaceTimes {
  readonly uid: string;
  readonly entries: Entries;
}

export class JobTimesRing {
  readonly #namespaces = new Map<string, NamespaceTimes>();
  /** Namespaces whose document has changed since it was taken. */
  readonly #changed = new Set<string>();
  #begunAt: number | undefined;

  /**
   * Adds a time in seconds. `now` is in milliseconds since the epoch. Returns false if there are already {@link JOB_TIMES_NAMESPACES} other
   * namespaces, so that the time is not kept.
   */
  add(namespace: NamespaceId, measure: Measure, seconds: number, now: number): boolean {
    this.#begunAt ??= now;
    const entries = this.#entriesOf(namespace);
    if (entries === undefined) {
      return false;
    }
    const index = Math.floor(now / JOB_TIMES_MILLISECONDS);
    const whole = Math.round(Math.min(Math.max(seconds || 0, 0), LONGEST_SECONDS));
    const entry: JobTimesEntry =
      measure === 'waited' ? [index, 1, whole, whole, 0, 0, 0] : [index, 0, 0, 0, 1, whole, whole];
    entries.set(index, merged(entries.get(index), entry));
    this.#changed.add(namespace.name);
    return true;
  }

  /** Returns the entries of the namespace. The result is undefined if there are already {@link JOB_TIMES_NAMESPACES} other namespaces. */
  #entriesOf({ name, uid }: NamespaceId): Entries | undefined {
    const known = this.#namespaces.get(name);
    if (known?.uid === uid) {
      return known.entries;
    }
    if (known === undefined && this.#namespaces.size >= JOB_TIMES_NAMESPACES) {
      return undefined;
    }
    const times = { uid, entries: new Map<number, JobTimesEntry>() };
    this.#namespaces.set(name, times);
    return times.entries;
  }

  /**
   * Takes the times of the last 24 hours that an earlier process has stored. Jobs that ended between
   * the two are in neither, so each document tells since when this process has measured. A document that cannot be read is dropped, and so
   * is that of a namespace which was deleted meanwhile. `uidOf` returns the UID of the namespace that has the name now.
   */
  restore(
    documents: Readonly<Record<string, string>>,
    now: number,
    uidOf: (namespace: string) => string | undefined,
  ): void {
    this.#begunAt ??= now;
    for (const [name, text] of Object.entries(documents)) {
      // All are written again, those without a place as null.
      this.#changed.add(name);
      const uid = uidOf(name);
      const document = parseJobTimes(text);
      if (uid !== undefined && document?.namespaceUid === uid) {
        const own = this.#entriesOf({ name, uid });
        document.entries.forEach((entry) => own?.set(entry[0], merged(own.get(entry[0]), entry)));
      }
    }
    this.#drop(now);
  }

  /** Forgets a deleted namespace. */
  forget(namespace: string): void {
    if (this.#namespaces.delete(namespace)) {
      this.#changed.add(namespace);
    }
  }

  /** Reports whether a document has changed since it was taken. */
  get hasChanges(): boolean {
    return this.#changed.size > 0;
  }

  /** Drops entries that are older than 24 hours, and namespaces without any. */
  #drop(now: number): void {
    const first = Math.floor(now / JOB_TIMES_MILLISECONDS) - JOB_TIMES_LIMIT + 1;
    for (const [namespace, { entries }] of this.#namespaces) {
      for (const index of [...entries.keys()].filter((one) => one < first)) {
        entries.delete(index);
      }
      if (entries.size === 0) {
        this.forget(namespace);
      }
    }
  }

  /**
   * Calls `store` with the changed documents by their namespaces. A document is null if there is nothing of the last 24 hours.
   *
   * @throws errors of `store`, and the documents then count as changed again.
   */
  async storeChanges(
    now: number,
    store: (documents: Readonly<Record<string, string | null>>) => Promise<void>,
  ): Promise<void> {
    this.#drop(now);
    const taken = [...this.#changed];
    this.#changed.clear();
    const documents = taken.map((namespace) => {
      const times = this.#namespaces.get(namespace);
      return [namespace, times === undefined ? null : JSON.stringify(this.#document(times, now))] as const;
    });
    try {
      await store(Object.fromEntries(documents));
    } catch (error) {
      taken.forEach((namespace) => this.#changed.add(namespace));
      throw error;
    }
  }

  #document({ uid, entries }: NamespaceTimes, now: number): JobTimes {
    // A clock that was set back leaves entries of the future, so the newest by their place count.
    const sorted = [...entries.values()].toSorted(([one], [other]) => one - other).slice(-JOB_TIMES_LIMIT);
    return { namespaceUid: uid, begunAt: timestamp(this.#begunAt ?? now), entries: sorted };
  }
}

/** Returns the entry of the same five minutes for both. */
function merged(one: JobTimesEntry | undefined, other: JobTimesEntry): JobTimesEntry {
  if (one === undefined) {
    return other;
  }
  const [index, waits, waited, longestWait, runs, ran, longestRun] = one;
  return [
    index,
    waits + other[1],
    waited + other[2],
    Math.max(longestWait, other[3]),
    runs + other[4],
    ran + other[5],
    Math.max(longestRun, other[6]),
  ];
}
