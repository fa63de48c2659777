/** Waits that end when a signal aborts. */
import { addAbortListener } from 'node:events';

/** Returns the result of `promise`. @throws the signal's reason when the signal aborts first. */
export async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise: left, reject } = Promise.withResolvers<never>();
  using _listener = addAbortListener(signal, () => reject(signal.reason));
  return await Promise.race([promise, left]);
}
