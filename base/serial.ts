/** Pieces of work of which one is under way at a time, in the order in which they were asked for. */
export class Serial {
  #last: Promise<unknown> = Promise.resolve();

  /** Begins `work` when all earlier pieces have ended, however they did, and settles as it does. */
  async run<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#last.then(work);
    this.#last = result.catch(() => undefined);
    return await result;
  }
}
