/** Limits the memory of answers that clients have not read yet. A long list stays in memory for as long as its client reads slowly. */
import type { ServerResponse } from 'node:http';
import { StatusError } from './errors.ts';

/** Answers up to this length do not count. They are lists of some hundred VMs, and everything that is no list. */
const FREE_LENGTH = 64 * 1024;
/** Limit of all other answers together, in characters of JSON. The container of the server has 512 MiB. */
const TOTAL_LENGTH = 96 * 1024 * 1024;

export class UnreadAnswers {
  #length = 0;

  /** Counts an answer until it is sent or its client is gone. @throws StatusError 503 while clients have not read too many others. */
  add(response: ServerResponse, payload: unknown): void {
    const length = typeof payload === 'string' ? payload.length : 0;
    // A response that is closed already has no other event.
    if (length <= FREE_LENGTH || response.destroyed) {
      return;
    }
    if (this.#length + length > TOTAL_LENGTH) {
      throw new StatusError(503, 'Too many long answers wait for their clients: try again later');
    }
    this.#length += length;
    response.once('close', () => {
      this.#length -= length;
    });
  }
}
