/** The least rate of a transfer. A source that sends slower than this would occupy a place and disk space of the host for days. */
import { type Reason, ReasonedError } from '../../../api/v1alpha1/reasons.ts';

/**
 * Least average rate of one transfer in bytes per second. A pull from a registry has four transfers at once, so a whole image needs 64 KiB
 * per second. Each usable line to a host is far faster: at this rate, an image of 20 GiB would take four days.
 */
const LEAST_BYTES_PER_SECOND = 16 * 1024;
/** Time in milliseconds over which the rate is averaged. It is long enough for a server that restarts or is busy for some minutes. */
const WINDOW_MILLISECONDS = 5 * 60_000;

/** Measures one transfer, including its repeated attempts. Only the time counts for which the host waits for bytes. */
export class LeastRate {
  readonly #what: string;
  readonly #clock: () => number;
  readonly #reason: Reason;
  #bytes = 0;
  #waitedMilliseconds = 0;

  /** `what` is the source in messages. `clock` returns milliseconds like `performance.now()`. `reason` is the reason of the error. */
  constructor(what: string, clock = () => performance.now(), reason: Reason = 'TooSlow') {
    this.#what = what;
    this.#clock = clock;
    this.#reason = reason;
  }

  /** Yields the pieces of a body. @throws ReasonedError `reason` when the source sends too slowly; the error of the body. */
  async *over(body: AsyncIterable<Buffer>): AsyncGenerator<Buffer, void, undefined> {
    let since = this.#clock();
    try {
      for await (const chunk of body) {
        this.#count(chunk.length, since);
        // The time that the receiver takes for a piece does not count, because the source cannot shorten it.
        yield chunk;
        since = this.#clock();
      }
    } catch (error) {
      // Pauses before an interruption count too. Otherwise a source could send a little between long pauses.
      this.#count(0, since);
      throw error;
    }
  }

  #count(bytes: number, since: number): void {
    this.#bytes += bytes;
    this.#waitedMilliseconds += this.#clock() - since;
    if (this.#waitedMilliseconds < WINDOW_MILLISECONDS) {
      return;
    }
    const rate = (this.#bytes * 1000) / this.#waitedMilliseconds;
    this.#bytes = 0;
    this.#waitedMilliseconds = 0;
    if (rate < LEAST_BYTES_PER_SECOND) {
      throw new ReasonedError(
        this.#reason,
        `${this.#what} sent ${Math.floor(rate)} bytes per second for 5 minutes, and the least rate is ${LEAST_BYTES_PER_SECOND}`,
      );
    }
  }
}
