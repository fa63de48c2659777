/**
 * Limits the memory that clients without a token can occupy. Node.js keeps all bytes that a slow client has not taken yet. Without a limit,
 * large answers to many slow clients would fill the memory.
 */
import type { ServerResponse } from 'node:http';
import { limitReading } from '../http/answers.ts';
import { StatusError } from '../http/errors.ts';

/** Largest number of answers at the same time. A browser loads three files for the page. */
const DOWNLOADS = 32;
/** Time limit of one answer in milliseconds. The largest file has 1.7 MB, which a client with 0.5 Mbit/s gets in this time. */
const DOWNLOAD_MILLISECONDS = 30_000;

export class Downloads {
  #open = 0;

  /** Counts an answer until it is sent or its connection is closed. @throws StatusError 503 when too many answers are under way. */
  begin(response: ServerResponse): void {
    if (this.#open >= DOWNLOADS) {
      throw new StatusError(503, 'Too many clients load this page. Try again later');
    }
    this.#open += 1;
    limitReading(response, DOWNLOAD_MILLISECONDS, () => {
      this.#open -= 1;
    });
  }
}
