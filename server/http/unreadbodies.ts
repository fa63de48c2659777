/**
 * Drops the rest of bodies that nobody reads, one after the other. Clients read the answer only after they have sent the whole body. If the
 * server dropped all bodies at once, it would be busy for seconds while many clients send large bodies, and answer nobody else.
 */
import type { IncomingMessage } from 'node:http';
import { setTimeout as rest } from 'node:timers/promises';
import PQueue from 'p-queue';

/**
 * Number of dropped bytes per millisecond, on average: 16 MiB per second. A MiB takes about 10 ms of the processor, most of it for TLS, so
 * dropping takes a sixth of the time of the server.
 */
const DROPPED_BYTES_PER_MILLISECOND = (16 * 1024 ** 2) / 1000;

export class UnreadBodies {
  readonly #queue = new PQueue({ concurrency: 1 });
  /** Bodies that are being dropped. */
  readonly #dropping = new WeakSet<IncomingMessage>();
  /** Bodies of which bytes have arrived that wait to be dropped. */
  readonly #waiting = new WeakSet<IncomingMessage>();

  /** Drops the rest of the body. While its bytes wait, the client can send no more than the buffers hold. */
  drop(body: IncomingMessage): void {
    if (!this.#dropping.has(body)) {
      this.#dropping.add(body);
      // Only bytes that have arrived take a turn. So clients that send nothing delay nobody.
      body.on('readable', () => this.#wait(body));
    }
  }

  #wait(body: IncomingMessage): void {
    if (!this.#waiting.has(body)) {
      this.#waiting.add(body);
      void this.#queue.add(async () => await this.#readNext(body));
    }
  }

  async #readNext(body: IncomingMessage): Promise<void> {
    this.#waiting.delete(body);
    let bytes = 0;
    for (let chunk = body.read() as Buffer | null; chunk !== null; chunk = body.read() as Buffer | null) {
      bytes += chunk.length;
    }
    await rest(Math.ceil(bytes / DROPPED_BYTES_PER_MILLISECOND), undefined, { ref: false });
  }
}
