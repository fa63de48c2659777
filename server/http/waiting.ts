/**
 * Counts requests that wait for a VM or an emulator to run, or for the deletion of a VM. When the server stops, all of them get an answer.
 */
import type { ServerResponse } from 'node:http';
import { rest } from '../../base/time.ts';
import { holdOpen } from '../../kube/serving/httpserver.ts';
import { UserShares } from './shares.ts';
import { StatusError } from './errors.ts';

/**
 * Time in milliseconds in which a stopping server answers all waiting requests. Some of them first delete a VM or an emulator, which takes
 * less time than this. The time is shorter than the 30 s after which Kubernetes kills the Pod.
 */
const STOP_MILLISECONDS = 15_000;

/** Reason why a wait ended: the client closed the connection (`gone`), the time limit passed (`late`), or the server stops (`stopping`). */
export class WaitEnd extends Error {
  override readonly name = 'WaitEnd';
  readonly why: 'gone' | 'late' | 'stopping';

  constructor(why: 'gone' | 'late' | 'stopping') {
    super(`the request waits no longer: ${why}`);
    this.why = why;
  }
}

/**
 * Largest share of the places for waiting requests that one user can take. The requests in one namespace can take the same share. The share
 * is large, because a CI system is one user, and can deploy a thousand VMs at the same time. The other places are for other users.
 */
const SHARE = 3 / 4;

/** User and namespace of a request that waits. */
export interface Owner {
  /** Name of the caller. It is always known to the API server, because requests of unknown callers never wait. */
  readonly user: string;
  /**
   * Namespace of the request, if the request has one, or of the service account that sends it. A namespace has its own limit, because one
   * member can have several accounts.
   */
  readonly namespace?: string;
}

export class WaitingRequests {
  readonly #users: UserShares;
  readonly #namespaces: UserShares;
  /** Promises by request. Each resolves when the answer is sent, or when the connection is closed. */
  readonly #waiting = new Map<AbortController, Promise<void>>();
  #isStopping = false;

  /**
   * `limit` is the largest number of requests that wait at the same time, and `userLimit` that of one user. By default, it is
   * {@link SHARE} of `limit`.
   */
  constructor(limit: number, userLimit = Math.floor(limit * SHARE)) {
    this.#users = sharesOf(limit, userLimit, 'of user');
    this.#namespaces = sharesOf(limit, Math.floor(limit * SHARE), 'in namespace');
  }

  /** Number of requests that wait. */
  get size(): number {
    return this.#waiting.size;
  }

  get isStopping(): boolean {
    return this.#isStopping;
  }

  /**
   * Runs the work of one request. The work gets a controller, and must end soon after the controller's signal aborts.
   *
   * @throws StatusError 429 when too many requests wait, 503 when the server stops, 408 when the client has already closed the connection.
   */
  async run<T>(
    response: ServerResponse,
    owner: Owner,
    work: (end: AbortController) => Promise<T>,
  ): Promise<T> {
    if (this.#isStopping) {
      throw new StatusError(503, 'The HTTP API is stopping. Try again');
    }
    const release = this.hold(owner);
    if (response.closed) {
      release();
      throw new StatusError(408, 'The client closed the connection');
    }
    const end = new AbortController();
    const answered = Promise.withResolvers<void>();
    this.#waiting.set(end, answered.promise);
    holdOpen(response);
    response.once('close', () => {
      end.abort(new WaitEnd('gone'));
      this.#waiting.delete(end);
      release();
      answered.resolve();
    });
    return await work(end);
  }

  /**
   * Checks that there is a place. A page cannot read why its WebSocket was refused, so it asks by a plain request, which takes none.
   *
   * @throws StatusError 429 when too many requests wait.
   */
  check(owner: Owner): void {
    this.#heldBy(owner).forEach(([shares, name]) => shares.check(name, 1));
  }

  /**
   * Takes a further place for the work of a request that runs. Returns the function that frees the place.
   *
   * @throws StatusError 429 when too many requests wait.
   */
  hold(owner: Owner): () => void {
    this.check(owner);
    const held = this.#heldBy(owner);
    held.forEach(([shares, name]) => shares.take(name, 1));
    return () => held.forEach(([shares, name]) => shares.release(name, 1));
  }

  /** Ends all waits. Resolves when all answers are sent, or after the time limit. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    const answers = Promise.all(this.#waiting.values());
    for (const end of this.#waiting.keys()) {
      end.abort(new WaitEnd('stopping'));
    }
    const limit = new AbortController();
    await Promise.race([answers, rest(STOP_MILLISECONDS, limit.signal)]);
    limit.abort();
  }

  #heldBy({ user, namespace }: Owner): (readonly [UserShares, string])[] {
    return [
      [this.#users, user],
      ...(namespace === undefined ? [] : [[this.#namespaces, namespace] as const]),
    ];
  }
}

/** `which` is the part of the message that comes before the name of the user or the namespace. */
function sharesOf(limit: number, share: number, which: string): UserShares {
  const refuse = (requests: string): StatusError =>
    new StatusError(429, `${requests} are already waiting. Try again later`);
  return new UserShares({
    user: share,
    total: limit,
    refuseUser: (name) => refuse(`${share} requests ${which} ${name}`),
    refuseAll: () => refuse(`${limit} requests`),
  });
}
