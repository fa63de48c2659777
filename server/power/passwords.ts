/**
 * Checks passwords one after the other, because each check takes a processor for a time. Strangers can ask for checks, so the users take
 * turns, and nobody can take all places in the queue.
 */
import { createHmac, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { LRUCache } from 'lru-cache';
import PQueue from 'p-queue';
import type { Logger } from 'pino';
import { isWholePassword } from '../../api/v1alpha1/serverusers.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
import type { Comparison } from './passwordworker.ts';

/** Largest number of checks that wait, and shares of one user, of one source and of all names that do not exist. */
const WAITING = 64;
const USER_WAITING = 8;
const SOURCE_WAITING = 8;
const UNKNOWN_WAITING = 8;
/**
 * Time in milliseconds for which a right password is remembered after its last use, and number of remembered passwords. A check takes as
 * much time as hundreds of answers, and clients send their password with each request.
 */
const REMEMBERED_MILLISECONDS = 600_000;
const REMEMBERED = 1_024;
/**
 * Hash of no known password. Names that do not exist are checked with it, so that the time of the answer does not tell which names exist. Its
 * cost is the one that `berth server user add` and the program htpasswd commonly use.
 */
const NOBODY = '$2b$10$abcdefghijklmnopqrstuuMzhDjJq5Nn0UoB7pIZNtIhpGVVgJVZ2';

export interface PasswordSignIn {
  readonly name: string;
  readonly password: string;
  readonly source: string;
}

export class Passwords {
  readonly #thread: Pick<PasswordThread, 'compare'>;
  readonly #queue = new PQueue({ concurrency: 1 });
  /**
   * Checks that wait, by user. The first check of the first user comes next, and then the user is the last one. All names that do not exist
   * count as one user. So guesses for one user, or for names that do not exist, do not delay the other users.
   */
  readonly #lanes = new Map<string, (() => Promise<void>)[]>();
  /** Keyed hashes of right passwords. The key is new in each process, and a new hash of a user makes another keyed hash. */
  readonly #remembered = new LRUCache<string, true>({
    max: REMEMBERED,
    ttl: REMEMBERED_MILLISECONDS,
    updateAgeOnGet: true,
  });
  readonly #key = randomBytes(32);
  /** Checks that wait or run, by keyed hash and source, so that equal requests share one check. */
  readonly #checks = new Map<string, Promise<boolean>>();
  /** Number of checks that wait or run, by user and by source. */
  readonly #places = new Map<string, number>();

  constructor(thread: Pick<PasswordThread, 'compare'>) {
    this.#thread = thread;
  }

  /** Number of checks that wait. */
  get waiting(): number {
    return this.#queue.size;
  }

  /**
   * Reports whether the password is right. `hash` is undefined if the user does not exist. When the turn of a check comes, `isWanted` tells
   * whether its answer is still needed; otherwise the result is false.
   *
   * @throws HttpError 503 when the user exists and too many checks wait.
   */
  async check(signIn: PasswordSignIn, hash: string | undefined, isWanted: () => boolean): Promise<boolean> {
    if (!isWholePassword(signIn.password)) {
      return false;
    }
    if (hash === undefined) {
      await this.#checkNobody(signIn, isWanted);
      return false;
    }
    const mark = this.#markOf(signIn, hash);
    if (this.#remembered.get(mark) === true) {
      return true;
    }
    const places = [`user ${signIn.name}`, `source ${signIn.source}`] as const;
    // Each source has its own check, because only its own lock-out makes a check unwanted.
    const key = `${mark} ${signIn.source}`;
    const isRight = await (this.#checks.get(key) ??
      this.#begin(key, places, async () => {
        return isWanted() && (await this.#thread.compare({ password: signIn.password, hash }));
      }));
    if (isRight) {
      this.#remembered.set(mark, true);
    }
    return isRight;
  }

  async #begin(
    key: string,
    places: readonly [string, string],
    work: () => Promise<boolean>,
  ): Promise<boolean> {
    const [user, source] = places;
    if (
      this.#queue.size >= WAITING ||
      this.#taken(user) >= USER_WAITING ||
      this.#taken(source) >= SOURCE_WAITING
    ) {
      throw new HttpError(503, 'Too many passwords are being checked. Try again in some seconds');
    }
    const check = this.#run(places, work);
    this.#checks.set(key, check);
    try {
      return await check;
    } finally {
      this.#checks.delete(key);
    }
  }

  /** Takes the time of a check, if there is a place. */
  async #checkNobody({ password, source }: PasswordSignIn, isWanted: () => boolean): Promise<void> {
    const places = ['unknown', `source ${source}`] as const;
    if (this.#taken('unknown') < UNKNOWN_WAITING && this.#queue.size < WAITING) {
      await this.#run(
        places,
        async () => isWanted() && (await this.#thread.compare({ password, hash: NOBODY })),
      );
    }
  }

  /** Takes the places of a user and of a source, and runs the work in the user's turn. */
  async #run(
    places: readonly [user: string, source: string],
    work: () => Promise<boolean>,
  ): Promise<boolean> {
    const [user] = places;
    const { promise, resolve, reject } = Promise.withResolvers<boolean>();
    const lane = this.#lanes.get(user) ?? [];
    lane.push(async () => await work().then(resolve, reject));
    this.#lanes.set(user, lane);
    void this.#queue.add(async () => await this.#runNext());
    places.forEach((place) => this.#places.set(place, this.#taken(place) + 1));
    try {
      return await promise;
    } finally {
      places.forEach((place) => this.#leave(place));
    }
  }

  /** Runs the first check of the first user. */
  async #runNext(): Promise<void> {
    const [first] = this.#lanes;
    const [user, lane] = first ?? ['', []];
    const check = lane.shift();
    this.#lanes.delete(user);
    if (lane.length > 0) {
      this.#lanes.set(user, lane);
    }
    await check?.();
  }

  #leave(place: string): void {
    const left = this.#taken(place) - 1;
    if (left > 0) {
      this.#places.set(place, left);
    } else {
      this.#places.delete(place);
    }
  }

  #taken(place: string): number {
    return this.#places.get(place) ?? 0;
  }

  #markOf({ name, password }: PasswordSignIn, hash: string): string {
    return createHmac('sha256', this.#key).update(`${name}\0${hash}\0${password}`).digest('base64');
  }
}

/** The module of the thread. In a bundle, the thread is a file beside the program, with the same name and the extension of the program. */
const MODULE = new URL(`./passwordworker${/\.\w+$/.exec(import.meta.url)?.[0]}`, import.meta.url);
/** Memory of the thread in megabytes. It needs far less. */
const MEMORY_MEGABYTES = 32;

export class PasswordThread {
  readonly #logger: Logger;
  #worker: Worker | undefined;

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  /** Reports whether the hash belongs to the password. Call this function again only after the answer. @throws Error when the thread ends. */
  async compare(comparison: Comparison): Promise<boolean> {
    const worker = (this.#worker ??= this.#start());
    const done = new AbortController();
    const { signal } = done;
    try {
      const answer = once(worker, 'message', { signal });
      const ended = once(worker, 'exit', { signal }).then(() => {
        throw new Error('the thread that checks passwords ended');
      });
      // After the answer, the wait for the end is aborted.
      ended.catch(() => undefined);
      worker.postMessage(comparison, []);
      const [isSame] = await Promise.race([answer, ended]);
      return isSame === true;
    } finally {
      done.abort();
    }
  }

  async stop(): Promise<void> {
    await this.#worker?.terminate();
  }

  #start(): Worker {
    const worker = new Worker(MODULE, { resourceLimits: { maxOldGenerationSizeMb: MEMORY_MEGABYTES } });
    // The thread must not keep a program alive that has nothing else to do.
    worker.unref();
    worker.on('error', (error) =>
      this.#logger.error({ err: error }, 'the thread that checks passwords failed'),
    );
    worker.on('exit', () => {
      if (this.#worker === worker) {
        this.#worker = undefined;
      }
    });
    return worker;
  }
}
