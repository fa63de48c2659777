/** Measures how fast an image is fetched, for people who wait for it. */

/** Shortest time over which a speed is measured. A shorter time gives figures that mean nothing. */
const SHORTEST_MILLISECONDS = 500;

/**
 * Returns a function that takes the number of bytes fetched so far, and returns the mean speed in bytes per second since its first call.
 * Bytes of an earlier attempt were there at the first call and do not count. The result is undefined until the speed is known. `now` is
 * a clock in milliseconds.
 */
export function meanSpeed(now = () => performance.now()): (bytes: number | undefined) => number | undefined {
  let first: { bytes: number; at: number } | undefined;
  return (bytes) => {
    if (bytes === undefined) {
      return undefined;
    }
    first ??= { bytes, at: now() };
    const milliseconds = now() - first.at;
    return milliseconds < SHORTEST_MILLISECONDS
      ? undefined
      : Math.round(((bytes - first.bytes) * 1000) / milliseconds);
  };
}
