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
const BYTES_PER_MILLISECOND = (16 * 1024 ** 2) / 1000;
/**
 * Longest time in milliseconds for one turn of a body. Then it is the turn of another body, so a client that sends nothing delays the others
 * only for this time. The time limit of the request ends a body that has many turns.
 */
const TURN_MILLISECONDS = 50;

export class UnreadBodies {
  readonly #queue = new PQueue({ concurrency: 1 });
  /** Bodies that wait for a turn or have it. */
  readonly #dropping = new WeakSet<IncomingMessage>();

  /** Drops the rest of the body when it is its turn. Until then, the client can send no more than the buffers hold. */
  drop(body: IncomingMessage): void {
    if (body.complete || body.destroyed) {
      body.resume();
    } else if (!this.#dropping.has(body)) {
      this.#dropping.add(body);
      body.pause();
      void this.#queue.add(async () => await this.#turn(body));
    }
  }

  async #turn(body: IncomingMessage): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    let bytes = 0;
    const onData = (chunk: Buffer): void => {
      bytes += chunk.length;
    };
    const timer = setTimeout(resolve, TURN_MILLISECONDS);
    body.once('close', resolve).once('end', resolve).on('data', onData).resume();
    await promise;
    clearTimeout(timer);
    body.off('close', resolve).off('end', resolve).off('data', onData);
    this.#dropping.delete(body);
    this.drop(body);
    await rest(bytes / BYTES_PER_MILLISECOND, undefined, { ref: false });
  }
}
