/** Measures the speed of a download. */

/** Shortest time over which the speed of a download is measured. Over a shorter time, the measured speed would be too inaccurate. */
const SHORTEST_MILLISECONDS = 500;

/**
 * Returns a function that takes the number of bytes fetched so far, and returns the mean speed in bytes per second since its first call.
 * The speed does not include bytes that an earlier attempt fetched. The result is undefined until the speed is known. `now` is a clock in
 * milliseconds.
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
