/** Finds out whether the disk of this host is so full, or so broken, that the host must get no new VMs. */
import { messageOf } from '../../base/errors.ts';
import { rest } from '../../base/time.ts';
import { type FreeDisk, isDiskPressed } from '../disks/freedisk.ts';

/**
 * Time limit for the answer of the disk. A disk answers within milliseconds. The limit is necessary, because a broken disk, or one on a dead
 * file server, can fail to answer for ever. The agent still renews its Lease then, so the cluster would place VMs on this host.
 */
const ANSWER_MILLISECONDS = 10_000;

export interface DiskPressure {
  diskPressure: boolean;
  /** Why the free space is unknown, in words for the Node. A host whose free space is unknown has disk pressure. Undefined if it is known. */
  diskFault: string | undefined;
}

export interface DiskPressureOptions {
  minimumFree: number;
  free: () => Promise<FreeDisk>;
  answerMilliseconds?: number;
}

export class DiskPressureLook {
  readonly #options: DiskPressureOptions;
  /** The read that is under way. No second read begins before this read has ended, even if the disk does not answer. */
  #asked: Promise<FreeDisk> | undefined;
  /** Whether the disk was too full when it last answered. A fault must not count here, because after it the host would need more free space. */
  #wasFull = false;

  constructor(options: DiskPressureOptions) {
    this.#options = options;
  }

  /** Reads the free space of the disk. Never rejects. */
  async look(): Promise<DiskPressure> {
    const { minimumFree, free } = this.#options;
    this.#asked ??= free().finally(() => {
      this.#asked = undefined;
    });
    try {
      this.#wasFull = isDiskPressed(await this.#inTime(this.#asked), minimumFree, this.#wasFull);
      return { diskPressure: this.#wasFull, diskFault: undefined };
    } catch (error) {
      const diskFault = `The host takes no new VMs, because the free space of its disk is unknown: ${messageOf(error)}`;
      return { diskPressure: true, diskFault };
    }
  }

  /** Resolves like `asked`. @throws Error when the disk does not answer in time. */
  async #inTime(asked: Promise<FreeDisk>): Promise<FreeDisk> {
    const { answerMilliseconds = ANSWER_MILLISECONDS } = this.#options;
    const answered = new AbortController();
    const limit = rest(answerMilliseconds, answered.signal).then(() => {
      throw new Error(`the disk does not answer within ${answerMilliseconds / 1000} s`);
    });
    // The race ignores a limit that comes after the answer, and this line handles its error.
    limit.catch(() => undefined);
    try {
      return await Promise.race([asked, limit]);
    } finally {
      answered.abort();
    }
  }
}
