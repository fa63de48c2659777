/** Background loops that send regular requests to running guests. */

export class GuestLoops {
  readonly #ends = new Map<string, AbortController>();

  /** Returns whether the machine with this uid has a loop. */
  has(uid: string): boolean {
    return this.#ends.has(uid);
  }

  /** Starts the loop of a machine, in place of an earlier loop of the machine. `loop` never rejects, and ends when its signal aborts. */
  start(uid: string, loop: (signal: AbortSignal) => Promise<void>): void {
    this.end(uid);
    const end = new AbortController();
    this.#ends.set(uid, end);
    void loop(end.signal);
  }

  end(uid: string): void {
    this.#ends.get(uid)?.abort();
    this.#ends.delete(uid);
  }

  endAll(): void {
    for (const uid of this.#ends.keys()) {
      this.end(uid);
    }
  }
}
