/** Requests that wait: for a VM or an emulator to run, or for the end of a VM. All of them get an answer when the server stops. */
import type { ServerResponse } from 'node:http';
import { rest } from '../../base/time.ts';
import { holdOpen } from '../../kube/serving/httpserver.ts';
import { StatusError } from './errors.ts';

/** Time for the answers of a stopping server. It is longer than a deletion, and Kubernetes kills a Pod 30 s after it was told to stop. */
const STOP_MILLISECONDS = 15_000;

/** Reason why a request waits no longer: the client is gone, the time is over, or the server stops. */
export class WaitEnd extends Error {
  override readonly name = 'WaitEnd';
  readonly why: 'gone' | 'late' | 'stopping';

  constructor(why: 'gone' | 'late' | 'stopping') {
    super(`the request waits no longer: ${why}`);
    this.why = why;
  }
}

/**
 * Share of all places that one user may have, and one namespace with all its users. A CI system deploys a thousand VMs at once as one user,
 * and others still find a place.
 */
const SHARE = 3 / 4;

/** Owner of a request that waits. */
export interface Owner {
  /** Name of a caller whom the API server knows, because strangers get no place. */
  readonly user: string;
  /** Namespace whose members share places. Each of them can have several accounts. */
  readonly namespace: string;
}

interface Waiting extends Owner {
  /** Resolves when the answer is sent. */
  readonly answered: Promise<void>;
}

export class WaitingRequests {
  readonly #limit: number;
  readonly #waiting = new Map<AbortController, Waiting>();
  #isStopping = false;

  /** `limit` is the largest number of requests that wait at once. */
  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Number of requests that wait. */
  get size(): number {
    return this.#waiting.size;
  }

  get isStopping(): boolean {
    return this.#isStopping;
  }

  /**
   * Runs the work of one request, which must end soon after the signal of its controller aborts.
   *
   * @throws StatusError 429 when too many requests wait, 503 when the server stops, 408 when the client is gone already.
   */
  async run<T>(
    response: ServerResponse,
    { user, namespace }: Owner,
    work: (end: AbortController) => Promise<T>,
  ): Promise<T> {
    this.#refuse({ user, namespace });
    if (response.closed) {
      throw new StatusError(408, 'The client is gone');
    }
    const end = new AbortController();
    const answered = Promise.withResolvers<void>();
    this.#waiting.set(end, { user, namespace, answered: answered.promise });
    holdOpen(response);
    response.once('close', () => {
      end.abort(new WaitEnd('gone'));
      this.#waiting.delete(end);
      answered.resolve();
    });
    return await work(end);
  }

  /** Ends all waits, and resolves when each answer is sent. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    const answers = Promise.all([...this.#waiting.values()].map(async ({ answered }) => await answered));
    for (const end of this.#waiting.keys()) {
      end.abort(new WaitEnd('stopping'));
    }
    const limit = new AbortController();
    await Promise.race([answers, rest(STOP_MILLISECONDS, limit.signal)]);
    limit.abort();
  }

  #refuse({ user, namespace }: Owner): void {
    if (this.#isStopping) {
      throw new StatusError(503, 'The HTTP API is stopping. Try again');
    }
    if (this.#waiting.size >= this.#limit) {
      throw new StatusError(429, `${this.#limit} requests wait already. Try again later`);
    }
    this.#refuseMore(`of user ${user}`, (one) => one.user === user);
    this.#refuseMore(`in namespace ${namespace}`, (one) => one.namespace === namespace);
  }

  /** @throws StatusError 429 when the waiting requests that `isOne` selects have their share. `which` describes them. */
  #refuseMore(which: string, isOne: (waiting: Waiting) => boolean): void {
    const share = Math.floor(this.#limit * SHARE);
    if ([...this.#waiting.values()].filter(isOne).length >= share) {
      throw new StatusError(429, `${share} requests ${which} wait already. Try again later`);
    }
  }
}
