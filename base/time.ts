/** Waiting, and how long to wait between tries. */
import { setTimeout as delay } from 'node:timers/promises';

/** Waits; rejects with the signal's reason when it aborts first. */
export async function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  try {
    await delay(milliseconds, undefined, signal === undefined ? {} : { signal });
  } catch (error) {
    throw signal?.aborted ? signal.reason : error;
  }
}

/** Waits, but no longer than until the signal aborts. */
export async function rest(milliseconds: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) {
    return;
  }
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, milliseconds);
  const onAbort = () => resolve();
  signal.addEventListener('abort', onAbort, { once: true });
  await promise;
  clearTimeout(timer);
  signal.removeEventListener('abort', onAbort);
}

export interface BackoffOptions {
  firstMilliseconds: number;
  capMilliseconds: number;
  /** Up to this share of the wait is added at random: 1 spreads waits over one to two times their length. */
  jitter?: number;
  /** Between 0 and 1. */
  random?: () => number;
}

/** Waits that double up to a cap. */
export class Backoff {
  readonly #options: BackoffOptions;
  #base: number;

  constructor(options: BackoffOptions) {
    this.#options = options;
    this.#base = options.firstMilliseconds;
  }

  /** The next wait, in milliseconds; with jitter it can pass the cap by the jitter's share. */
  next(): number {
    const { capMilliseconds, jitter = 0, random = Math.random } = this.#options;
    const wait = this.#base * (1 + jitter * random());
    this.#base = Math.min(this.#base * 2, capMilliseconds);
    return wait;
  }

  reset(): void {
    this.#base = this.#options.firstMilliseconds;
  }
}

/** RFC 3339 with microseconds, as Leases and Events have it. */
export function microTime(millisecondsSince1970: number): string {
  return new Date(millisecondsSince1970).toISOString().replace('Z', '000Z');
}
