/** Limits the memory of answers that clients have not read yet. A long list stays in memory for as long as its client reads slowly. */
import type { ServerResponse } from 'node:http';
import { StatusError } from './errors.ts';

/** Answers up to this number of bytes do not count. They are lists of some hundred VMs, and everything that is no list. */
const FREE_BYTES = 64 * 1024;
/** Limit of all other answers together in bytes. The container of the server has 512 MiB. */
const TOTAL_BYTES = 96 * 1024 * 1024;
/** Time limit of one answer that counts. A client with 1.2 Mbit/s gets the longest list in time, and 10,000 VMs with half of it. */
const ANSWER_MILLISECONDS = 60_000;

export class UnreadAnswers {
  #bytes = 0;

  /**
   * Counts an answer until it is sent or its client is gone. A client that reads too slowly is disconnected.
   *
   * @throws StatusError 503 while clients have not read too many others.
   */
  add(response: ServerResponse, payload: unknown): void {
    const bytes = typeof payload === 'string' ? Buffer.byteLength(payload) : 0;
    // A response that is closed already has no other event.
    if (bytes <= FREE_BYTES || response.destroyed) {
      return;
    }
    if (this.#bytes + bytes > TOTAL_BYTES) {
      throw new StatusError(503, 'Too many long answers wait for their clients: try again later');
    }
    this.#bytes += bytes;
    const limit = setTimeout(() => response.destroy(), ANSWER_MILLISECONDS);
    response.once('close', () => {
      clearTimeout(limit);
      this.#bytes -= bytes;
    });
  }
}
