/** Background loops that send regular requests to running guests. */
import type { rest } from '../../base/time.ts';

/** Options of a class that sends regular requests to guests. */
export interface LoopOptions {
  /** Called with a machine's uid when the result of a request to its guest differs from the result of the previous request. */
  changed: (uid: string) => void;
  /** Called when a request failed, or its answer could not be processed. */
  onError: (uid: string, error: unknown) => void;
  /** Waits between two requests. The function takes the time in milliseconds. */
  wait?: typeof rest;
}

/** Base class of the classes that send regular requests to guests. Each machine has at most one loop. */
export abstract class GuestLoops {
  readonly #ends = new Map<string, AbortController>();

  /** Returns whether the machine with this uid has a loop. */
  protected has(uid: string): boolean {
    return this.#ends.has(uid);
  }

  /** Starts the loop of a machine, in place of an earlier loop of the machine. `loop` never rejects, and ends when its signal aborts. */
  protected start(uid: string, loop: (signal: AbortSignal) => Promise<void>): void {
    this.forget(uid);
    const end = new AbortController();
    this.#ends.set(uid, end);
    void loop(end.signal);
  }

  /** Ends the loop of the machine with this uid. */
  forget(uid: string): void {
    this.#ends.get(uid)?.abort();
    this.#ends.delete(uid);
  }

  close(): void {
    for (const uid of this.#ends.keys()) {
      this.forget(uid);
    }
  }
}
