/**
 * Waits of the page: for a time, and for the moment when somebody looks at it. Each wait removes its listeners, because a signal outlives
 * thousands of waits.
 */

/** Time in milliseconds for which a hidden page stays up to date. Browsers open few connections to one server for all pages together. */
const HIDDEN_MILLISECONDS = 30_000;

/** Waits this number of milliseconds, or until the signal aborts. */
export async function pauseFor(milliseconds: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) {
    return;
  }
  const { promise, resolve } = Promise.withResolvers<void>();
  const waited = new AbortController();
  const timer = setTimeout(resolve, milliseconds);
  signal.addEventListener('abort', () => resolve(), { signal: waited.signal });
  await promise;
  clearTimeout(timer);
  waited.abort();
}

/** Waits until the page is visible, or until the signal aborts. */
export async function whenShown(signal: AbortSignal): Promise<void> {
  while (document.hidden && !signal.aborted) {
    const { promise, resolve } = Promise.withResolvers<void>();
    const waited = new AbortController();
    document.addEventListener('visibilitychange', () => resolve(), { signal: waited.signal });
    signal.addEventListener('abort', () => resolve(), { signal: waited.signal });
    await promise;
    waited.abort();
  }
}

/** Calls `act` once the page has been hidden for a while. Returns a function that ends the observation. */
export function onHidden(act: () => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const look = () => {
    clearTimeout(timer);
    timer = document.hidden ? setTimeout(act, HIDDEN_MILLISECONDS) : undefined;
  };
  document.addEventListener('visibilitychange', look);
  look();
  return () => {
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', look);
  };
}
