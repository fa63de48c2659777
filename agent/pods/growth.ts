/** By how much the disks of machines grew lately. */

/** Who fills a disk does so in seconds; what was before says nothing of the present. */
const WINDOW_MILLISECONDS = 10_000;

interface Sample {
  /** Milliseconds. */
  readonly at: number;
  /** Bytes by uid. */
  readonly sizes: ReadonlyMap<string, number>;
}

export class Growth {
  /** The oldest first; some twenty, with two looks a second. */
  #samples: Sample[] = [];

  note(sizes: ReadonlyMap<string, number>, at: number): void {
    this.#samples = [
      ...this.#samples.filter((sample) => at - sample.at <= WINDOW_MILLISECONDS),
      { at, sizes },
    ];
  }

  clear(): void {
    this.#samples = [];
  }

  /** Bytes since the first look of the window that saw the machine; never less than 0. */
  of(uid: string): number {
    const first = this.#samples.find(({ sizes }) => sizes.has(uid))?.sizes.get(uid);
    const last = this.#samples.at(-1)?.sizes.get(uid);
    return first === undefined || last === undefined ? 0 : Math.max(0, last - first);
  }
}
