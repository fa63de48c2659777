/** A queue that runs one piece of work at a time, in the order of the calls. */
export class Serial {
  #last: Promise<unknown> = Promise.resolve();

  /**
   * Begins `work` when the work of all earlier calls has ended or failed. The promise resolves with the result of `work`, or rejects with
   * its error.
   */
  async run<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#last.then(work);
    this.#last = result.catch(() => undefined);
    return await result;
  }
}
