/** Pieces of work of which one is under way at a time, in the order in which they were asked for. */
export class Turns {
  #last: Promise<unknown> = Promise.resolve();

  /** Settles as `work` does, whatever became of the pieces before it. */
  async take<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#last.then(work);
    this.#last = result.catch(() => undefined);
    return await result;
  }
}
