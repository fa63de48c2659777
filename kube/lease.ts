/** Elects a leader with a Lease, compatible with client-go. */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { KubeClient } from './client.ts';
import { type Lease, LEASES } from './core.ts';
import { isAlreadyExists, isConflict, isNotFound } from './errors.ts';
import { Informer } from './informer.ts';
import { runtimeMetrics } from './metrics.ts';
import { microTime, rest } from '../base/time.ts';

/** Times of a lease in milliseconds. */
export interface LeaseTimings {
  /** Time for which a lease is valid if it is not renewed. */
  duration: number;
  /** Time for which a leader tries to renew the lease before it gives up. It is less than `duration`. */
  renewDeadline: number;
  /** Interval between two renewals, and between two attempts to acquire the lease. */
  retry: number;
}

/** Default times of a lease. A killed leader is replaced within 11 s. With client-go's times (15, 10 and 2 s) it takes up to 24 s. */
const LEASE_TIMINGS: LeaseTimings = { duration: 9_000, renewDeadline: 6_000, retry: 1_000 };

/** Time limit of a request for the lease, as a multiple of `retry`. It leaves time for another attempt if the connection is dead. */
const REQUEST_RETRIES = 2;

export interface LeaderElectionOptions {
  /** Client with its own transport, which other requests cannot delay. It has no `guard`, because a guard lets only the leader write. */
  client: KubeClient;
  namespace: string;
  name: string;
  /** Name that is unique to this process, not only to this host. */
  identity: string;
  lease?: Partial<LeaseTimings>;
  logger: Logger;
  /** When this signal aborts, a candidate gives up. A leader still renews the lease until its work has ended and it calls `release`. */
  signal: AbortSignal;
  metrics: Registry;
  onStartedLeading: () => void;
  /** Called when the lease is lost. The process must then end all work at once. */
  onLost: () => void;
}

export interface LeaderElection {
  /** Returns whether this process holds the lease, by the system's monotonic clock. The check is cheap enough for `KubeClient.guard`. */
  isHeld(): boolean;
  /** Releases the lease, so that other candidates need not wait until it expires. Call this function when all work has ended. */
  release(): Promise<void>;
  /** Resolves when this process has released or lost the lease, or when `signal` aborts while this process is not the leader. */
  readonly done: Promise<void>;
}

/** Tries to acquire the lease until `signal` aborts. Only the local clock measures the lease's age, because clocks of computers differ. */
export function runLeaderElection(options: LeaderElectionOptions): LeaderElection {
  return new Candidate(options);
}

class Candidate implements LeaderElection {
  readonly done: Promise<void>;
  readonly #options: LeaderElectionOptions;
  readonly #timings: LeaseTimings;
  readonly #releasing = new AbortController();
  /** The lease as this process last read or wrote it. */
  #lease: Lease | undefined;
  /** Time when this process noticed the last change of the lease, by `performance.now()`. */
  #changedAt = 0;
  #leading = false;
  /** Time when the last successful renewal was sent, by `performance.now()`. */
  #renewedAt = 0;
  #wake: (() => void) | undefined;
  #holding: Promise<void> = Promise.resolve();

  constructor(options: LeaderElectionOptions) {
    this.#options = options;
    this.#timings = { ...LEASE_TIMINGS, ...options.lease };
    this.done = this.#run();
  }

  isHeld(): boolean {
    return this.#leading && performance.now() - this.#renewedAt < this.#timings.duration;
  }

  async release(): Promise<void> {
    this.#releasing.abort();
    await this.#holding;
    if (!this.isHeld() || this.#lease === undefined) {
      return;
    }
    this.#setLeading(false);
    try {
      await this.#write(this.#lease, { ...this.#lease.spec, holderIdentity: '', leaseDurationSeconds: 1 });
      this.#options.logger.info('lease released');
    } catch (error) {
      this.#options.logger.warn({ err: error }, 'the lease is not released and stays valid until it expires');
    }
  }

  async #run(): Promise<void> {
    this.#setLeading(false);
    await this.#standBy();
    if (!this.#leading) {
      return;
    }
    if (this.#options.signal.aborted) {
      await this.release();
      return;
    }
    this.#options.logger.info({ identity: this.#options.identity }, 'leading');
    this.#options.onStartedLeading();
    const lost = this.#hold();
    this.#holding = lost.then(() => undefined);
    if (await lost) {
      this.#setLeading(false);
      this.#options.logger.error('lease lost');
      this.#options.onLost();
    }
  }

  #setLeading(leading: boolean): void {
    this.#leading = leading;
    runtimeMetrics(this.#options.metrics).leader.set({ name: this.#options.name }, leading ? 1 : 0);
  }

  /** Resolves when the candidate is the leader, or when the signal has aborted. */
  async #standBy(): Promise<void> {
    const { signal, logger } = this.#options;
    const watching = new AbortController();
    this.#watch(watching.signal);
    try {
      while (!signal.aborted && !this.#leading) {
        const milliseconds = this.#waitFor();
        if (milliseconds > 0) {
          await this.#waitForChange(milliseconds, signal);
        } else if (!(await this.#acquire(logger))) {
          await rest(this.#timings.retry, signal);
        }
      }
    } finally {
      watching.abort(new Error('this process is no longer a candidate for the lease'));
    }
  }

  /** Watches the lease to notice a release immediately. Otherwise only the next attempt to acquire the lease would notice the release. */
  #watch(signal: AbortSignal): void {
    const { client, namespace, name, logger } = this.#options;
    const informer = new Informer(client, LEASES, {
      namespace,
      fieldSelector: `metadata.name=${name}`,
      logger,
    });
    informer.cache.onChange((change) => {
      if (this.#leading) {
        return;
      }
      this.#observe(change.type === 'deleted' ? undefined : change.object);
      this.#wake?.();
    });
    informer.start(signal);
  }

  #observe(lease: Lease | undefined): void {
    if (lease?.metadata.resourceVersion !== this.#lease?.metadata.resourceVersion) {
      this.#lease = lease;
      this.#changedAt = performance.now();
    }
  }

  /** Returns the time in milliseconds that this candidate must wait before it may try to acquire the lease. */
  #waitFor(): number {
    const { holderIdentity, leaseDurationSeconds: seconds } = this.#lease?.spec ?? {};
    if (!holderIdentity || holderIdentity === this.#options.identity) {
      return 0;
    }
    const duration = seconds === undefined ? this.#timings.duration : seconds * 1000;
    return this.#changedAt + duration - performance.now();
  }

  async #waitForChange(milliseconds: number, signal: AbortSignal): Promise<void> {
    const changed = new AbortController();
    this.#wake = () => changed.abort();
    await rest(milliseconds, AbortSignal.any([signal, changed.signal]));
    this.#wake = undefined;
  }

  async #acquire(logger: Logger): Promise<boolean> {
    try {
      await this.#read();
      if (this.#waitFor() > 0) {
        return true;
      }
      await this.#take();
      return true;
    } catch (error) {
      const beaten = isConflict(error) || isAlreadyExists(error);
      logger[beaten ? 'info' : 'warn']({ err: error }, 'lease not acquired');
      return false;
    }
  }

  async #read(): Promise<void> {
    const { client, namespace, name } = this.#options;
    const deadlineMilliseconds = this.#timings.renewDeadline;
    try {
      this.#observe(await client.get(LEASES, { namespace, name }, { deadlineMilliseconds }));
    } catch (error) {
      if (!isNotFound(error)) {
        throw error;
      }
      this.#observe(undefined);
    }
  }

  async #take(): Promise<void> {
    const { client, namespace, name, identity } = this.#options;
    const now = microTime(Date.now());
    const transitions = this.#lease?.spec?.leaseTransitions ?? 0;
    const spec = {
      holderIdentity: identity,
      leaseDurationSeconds: Math.ceil(this.#timings.duration / 1000),
      acquireTime: now,
      renewTime: now,
      leaseTransitions: this.#lease === undefined ? 0 : transitions + 1,
    };
    const sent = performance.now();
    if (this.#lease === undefined) {
      const object = { metadata: { namespace, name }, spec };
      const deadlineMilliseconds = this.#timings.renewDeadline;
      this.#lease = await client.create(LEASES, object, { deadlineMilliseconds });
    } else {
      await this.#write(this.#lease, spec);
    }
    this.#renewedAt = sent;
    this.#setLeading(true);
  }

  /** Stores the lease with its resourceVersion, so that the request fails if another process has changed the lease. */
  async #write(lease: Lease, spec: NonNullable<Lease['spec']>): Promise<void> {
    const { duration, renewDeadline, retry } = this.#timings;
    const left = this.#leading ? this.#renewedAt + renewDeadline - performance.now() : duration;
    const deadlineMilliseconds = Math.max(1, Math.min(left, retry * REQUEST_RETRIES));
    this.#lease = await this.#options.client.update(LEASES, { ...lease, spec }, { deadlineMilliseconds });
  }

  /** Renews the lease until this process releases or loses it. Returns false after a release, and true after a loss. */
  async #hold(): Promise<boolean> {
    const { signal } = this.#releasing;
    while (!signal.aborted) {
      await rest(this.#timings.retry, signal);
      if (signal.aborted) {
        return false;
      }
      if (!this.isHeld() || (await this.#renewalLost())) {
        return true;
      }
    }
    return false;
  }

  async #renewalLost(): Promise<boolean> {
    try {
      return !(await this.#renew());
    } catch (error) {
      const late = performance.now() - this.#renewedAt > this.#timings.renewDeadline - 1;
      this.#options.logger.warn({ err: error, late }, 'lease not renewed');
      return late;
    }
  }

  /** Renews the lease once. Returns false when another process holds the lease. */
  async #renew(): Promise<boolean> {
    const sent = performance.now();
    try {
      await this.#writeRenewal();
    } catch (error) {
      if (!isConflict(error) && !isNotFound(error)) {
        throw error;
      }
      // A conflict does not prove that another process changed the lease. It also occurs if the answer to an earlier request of this
      // process was lost. After a deletion, another candidate can already lead. Therefore the lease is read again and its holder is checked.
      runtimeMetrics(this.#options.metrics).slowPath.inc({ name: this.#options.name });
      await this.#read();
      if (this.#lease?.spec?.holderIdentity !== this.#options.identity) {
        return false;
      }
      await this.#writeRenewal();
    }
    this.#renewedAt = sent;
    return true;
  }

  async #writeRenewal(): Promise<void> {
    if (this.#lease === undefined) {
      throw new Error('the lease has been deleted');
    }
    await this.#write(this.#lease, { ...this.#lease.spec, renewTime: microTime(Date.now()) });
  }
}
