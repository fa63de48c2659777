/**
 * Locks out sources with many failed sign-ins. Right credentials do not end a lock-out and do not reset the count. The count of a source is
 * forgotten when the source has had no failure for a time.
 */
import { createHash } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import type { Logger } from 'pino';
import PQueue from 'p-queue';
import { microTime, rest } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { retryChange } from '../../kube/conflicts.ts';
import { type Lease, LEASES } from '../../kube/core.ts';
import { isAlreadyExists, isConflict, isNotFound, unlessMissing } from '../../kube/errors.ts';
import { Informer } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';

/** Largest number of sources that one replica counts. They need about 4 MB. */
const SOURCES = 16_384;

export class Lockouts {
  readonly #rules: LockoutRules;
  readonly #shared: Pick<SharedFailures, 'of' | 'add' | 'all'>;
  /** Failures that this replica has seen. They are here before the watch shows them, and also if they are not shared. */
  readonly #own: LRUCache<string, SignInFailures>;
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

  #failuresOf(source: string): SignInFailures | undefined {
    const now = Date.now();
    const [own, shared] = [this.#own.get(source), this.#shared.of(source)];
    return greater(recent(own, this.#rules, now), recent(shared, this.#rules, now));
  }

  #set(source: string, failures: SignInFailures): SignInFailures {
    const wasLocked = this.isLocked(source);
    this.#own.set(source, failures);
    if (!wasLocked && isLocked(failures, this.#rules, failures.last)) {
      this.#onLocked();
    }
    return failures;
  }

  /** Failures of the sources without a Lease. */
  #unshared(): SignInFailures[] {
    return [...this.#own.entries()].flatMap(([source, failures]) =>
      this.#shared.of(source) === undefined ? [failures] : [],
    );
  }
}

interface LockoutRules {
  /** Number of failed sign-ins after which a source is locked out. */
  readonly failures: number;
  /** Time in seconds for which a source is locked out, and after which earlier failures are forgotten. */
  readonly seconds: number;
}

/** Failed sign-ins of one source. */
export interface SignInFailures {
  readonly count: number;
  /** Time of the last one, in milliseconds since 1970. */
  readonly last: number;
}

/** Returns the failures that still count. After a quiet time none does. */
export function recent(
  failures: SignInFailures | undefined,
  { seconds }: LockoutRules,
  now: number,
): SignInFailures | undefined {
  return failures !== undefined && now - failures.last < seconds * 1000 ? failures : undefined;
}

/** Returns the failures after some more. The count stops at the limit. */
export function afterMore(
  failures: SignInFailures | undefined,
  more: number,
  rules: LockoutRules,
  now: number,
): SignInFailures {
  const before = recent(failures, rules, now)?.count ?? 0;
  return { count: Math.min(before + more, rules.failures), last: now };
}

/** Reports whether the source gets no answer. */
function isLocked(failures: SignInFailures | undefined, rules: LockoutRules, now: number): boolean {
  return (recent(failures, rules, now)?.count ?? 0) >= rules.failures;
}

/** Returns the failures with the greater count. */
function greater(a: SignInFailures | undefined, b: SignInFailures | undefined): SignInFailures | undefined {
  return (a?.count ?? 0) >= (b?.count ?? 0) ? a : b;
}

/** Beginning of the names of the Leases. A policy of the chart lets the HTTP API change only such Leases. */
const NAME_PREFIX = 'berth-lockout-';
const LABEL = 'berth.dev/lockout';
/** Number of hexadecimal digits of the hash in a name. 128 bits cannot be made to collide by choosing sources. */
const HASH_DIGITS = 32;
/** Largest number of Leases, and of new Leases of one replica in a minute. A network of attackers can have far more addresses. */
const LEASES_LIMIT = 1_000;
const NEW_LEASES_PER_MINUTE = 100;
const MINUTE_MILLISECONDS = 60_000;
/**
 * Time in milliseconds for which a failed sign-in waits until its count is stored. The caller waits too, so that the next replica knows the
 * count when the caller has its answer.
 */
const WRITE_MILLISECONDS = 2_000;
/** Largest number of writes at the same time, and of sources with writes. Beyond it, a replica counts alone. */
const WRITES = 8;
const WRITES_WAITING = 64;
/** Share of the quiet time after which each replica looks for Leases that no longer count. */
const SWEEP_SHARE = 1 / 5;

/** Failures of one source on their way to its Lease. Failures that arrive before the write begins go with it. */
interface Batch {
  added: number;
  /** Number of failures before those of the batch, or undefined if the batch is not stored. */
  stored: Promise<number | undefined>;
}

interface SharedFailuresOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  /** Namespace of the Leases. */
  readonly namespace: string;
  readonly rules: LockoutRules;
}

export class SharedFailures {
  readonly #o: SharedFailuresOptions;
  readonly #informer: Informer<Lease>;
  readonly #writes = new PQueue({ concurrency: WRITES });
  /** Batches whose writes have not begun, by source. */
  readonly #batches = new Map<string, Batch>();
  /** Last write of each source. The next one waits for it, because it would only get a conflict. */
  readonly #last = new Map<string, Promise<unknown>>();
  #minute = { begun: 0, created: 0 };
  #warnedAt = Number.NEGATIVE_INFINITY;

  constructor(o: SharedFailuresOptions) {
    this.#o = o;
    const { client, logger, namespace } = o;
    this.#informer = new Informer(client, LEASES, { logger, namespace, labelSelector: LABEL });
  }

  /** Starts to watch the Leases, and to delete those that no longer count. Resolves when all Leases have been read. */
  async start(signal: AbortSignal): Promise<void> {
    this.#informer.start(signal);
    void this.#sweep(signal);
    await this.#informer.synced;
  }

  /** Returns the failures of a source, as last seen in its Lease. */
  of(source: string): SignInFailures | undefined {
    return failuresIn(this.#informer.cache.get(keyOf({ metadata: this.#refOf(source) })));
  }

  /** Returns the failures of all sources. */
  all(): SignInFailures[] {
    return this.#informer.cache.list().flatMap((lease) => failuresIn(lease) ?? []);
  }

  /**
   * Adds one failure of the source. Returns its number among the failures that count, from 1. The result is undefined if the failure was not
   * shared, because there are too many Leases or the API server does not answer. The replica then counts alone.
   */
  async add(source: string): Promise<number | undefined> {
    let batch = this.#batches.get(source);
    if (batch !== undefined) {
      batch.added += 1;
    } else if (this.#last.size >= WRITES_WAITING) {
      return undefined;
    } else {
      batch = this.#begin(source);
    }
    const place = batch.added;
    const before = await batch.stored;
    return before === undefined ? undefined : before + place;
  }

  #begin(source: string): Batch {
    const batch: Batch = { added: 1, stored: Promise.resolve(undefined) };
    this.#batches.set(source, batch);
    const stored = (async () => {
      await this.#last.get(source);
      return await this.#writes.add(async () => {
        this.#batches.delete(source);
        return await this.#store(source, batch.added);
      });
    })();
    batch.stored = stored;
    this.#last.set(source, stored);
    void stored.then(() => {
      if (this.#last.get(source) === stored) {
        this.#last.delete(source);
      }
    });
    return batch;
  }

  /** Stores failures. Returns the number of failures before them, or undefined if they are not stored. */
  async #store(source: string, added: number): Promise<number | undefined> {
    const signal = AbortSignal.timeout(WRITE_MILLISECONDS);
    const ref = this.#refOf(source);
    try {
      const stored = await retryChange(async (number) => {
        // A conflict means that another replica stored a count at the same time.
        const lease =
          number === 1
            ? this.#informer.cache.get(keyOf({ metadata: ref }))
            : await unlessMissing(this.#o.client.get(LEASES, ref, { signal }));
        const before = await this.#write({ source, lease, added, signal });
        return before === 'conflict' ? undefined : { before };
      }, signal);
      if (stored === undefined) {
        throw new Error('another replica changed the Lease in each attempt');
      }
      return stored.before;
    } catch (error) {
      this.#warn(error);
      return undefined;
    }
  }

  async #write(o: {
    source: string;
    lease: Readonly<Lease> | undefined;
    added: number;
    signal: AbortSignal;
  }): Promise<number | undefined | 'conflict'> {
    const { rules } = this.#o;
    const { lease, signal } = o;
    const now = Date.now();
    const before = recent(failuresIn(lease), rules, now);
    if (before !== undefined && before.count >= rules.failures) {
      return before.count;
    }
    if (lease === undefined && !this.#mayCreate(now)) {
      return undefined;
    }
    const spec = this.#specOf(o.source, afterMore(before, o.added, rules, now));
    const isStored = await this.#put(o.source, lease, { spec, signal });
    return isStored ? (before?.count ?? 0) : 'conflict';
  }

  /** Writes the Lease. Returns false if another replica has changed, created or deleted it. */
  async #put(
    source: string,
    lease: Readonly<Lease> | undefined,
    { spec, signal }: { spec: NonNullable<Lease['spec']>; signal: AbortSignal },
  ): Promise<boolean> {
    const { client } = this.#o;
    try {
      await (lease === undefined
        ? client.create(
            LEASES,
            { metadata: { ...this.#refOf(source), labels: { [LABEL]: 'true' } }, spec },
            { signal },
          )
        : client.update(LEASES, { ...lease, spec }, { signal }));
      return true;
    } catch (error) {
      if (isConflict(error) || isAlreadyExists(error) || isNotFound(error)) {
        return false;
      }
      throw error;
    }
  }

  #refOf(source: string): { namespace: string; name: string } {
    const hash = createHash('sha256').update(source).digest('hex').slice(0, HASH_DIGITS);
    return { namespace: this.#o.namespace, name: `${NAME_PREFIX}${hash}` };
  }

  #specOf(source: string, { count, last }: SignInFailures): NonNullable<Lease['spec']> {
    return {
      holderIdentity: source,
      leaseTransitions: count,
      renewTime: microTime(last),
      leaseDurationSeconds: this.#o.rules.seconds,
    };
  }

  #mayCreate(now: number): boolean {
    if (now - this.#minute.begun >= MINUTE_MILLISECONDS) {
      this.#minute = { begun: now, created: 0 };
    }
    if (this.#minute.created >= NEW_LEASES_PER_MINUTE || this.#informer.cache.list().length >= LEASES_LIMIT) {
      return false;
    }
    this.#minute.created += 1;
    return true;
  }

  /** Logs the error, but at most once a minute, because a caller can cause it often. */
  #warn(error: unknown): void {
    const now = performance.now();
    if (now - this.#warnedAt >= MINUTE_MILLISECONDS) {
      this.#warnedAt = now;
      this.#o.logger.warn({ err: error }, 'failed sign-ins are not shared, so each replica counts alone');
    }
  }

  /** Deletes Leases that no longer count, again and again. The waits are random, so that the replicas do not all delete the same ones. */
  async #sweep(signal: AbortSignal): Promise<void> {
    const { rules, logger } = this.#o;
    while (!signal.aborted) {
      await rest(rules.seconds * 1000 * SWEEP_SHARE * (1 + Math.random()), signal);
      try {
        await this.#deleteQuiet(signal);
      } catch (error) {
        if (!signal.aborted) {
          logger.warn({ err: error }, 'Leases of locked-out sources are not deleted yet');
        }
      }
    }
  }

  async #deleteQuiet(signal: AbortSignal): Promise<void> {
    const { client, rules } = this.#o;
    for (const lease of this.#informer.cache.list()) {
      if (recent(failuresIn(lease), rules, Date.now()) !== undefined) {
        continue;
      }
      const { uid, resourceVersion, ...ref } = lease.metadata;
      await client.delete(LEASES, ref, { uid, resourceVersion, signal }).catch((error: unknown) => {
        // Another failure of the source has just been stored.
        if (!isConflict(error)) {
          throw error;
        }
      });
    }
  }
}

/** Reads the failures from a Lease. The result is undefined if there is no Lease, or if somebody has written something else into it. */
function failuresIn(lease: Pick<Lease, 'spec'> | undefined): SignInFailures | undefined {
  const { leaseTransitions: count = 0, renewTime = '' } = lease?.spec ?? {};
  const last = Date.parse(renewTime);
  return Number.isNaN(last) ? undefined : { count, last };
}
