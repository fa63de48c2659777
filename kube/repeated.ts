/** Repeats a request while the API server does not answer, or has only just started. */
import { Backoff } from '../base/backoff.ts';
import { pause } from '../base/time.ts';
import { Patience } from './patience.ts';

/** The first wait and the longest wait between two attempts, in milliseconds, while the API server does not answer. */
const BACKOFF = { firstMilliseconds: 200, capMilliseconds: 5_000, jitter: 1 } as const;

/**
 * Repeats a request until the API server accepts it, or until another attempt is useless.
 *
 * @throws ApiError or CredentialError when another attempt is useless, or the signal's reason when the signal aborts.
 */
export async function repeated<T>(write: () => Promise<T>, signal: AbortSignal): Promise<T> {
  const backoff = new Backoff(BACKOFF);
  const patience = new Patience();
  for (;;) {
    try {
      const written = await write();
      signal.throwIfAborted();
      return written;
    } catch (error) {
      signal.throwIfAborted();
      if (patience.endsWith(error)) {
        throw error;
      }
    }
    await pause(backoff.next(), signal);
  }
}
