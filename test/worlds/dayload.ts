/** The load of one day of a CI fleet: quiet nights, busy days, and work that comes at once. */

/** Number of VMs that run on average, for each hour of the day. It is highest at 10 and at 15 h. */
const CURVE = [
  12, 8, 6, 6, 6, 8, 16, 40, 90, 140, 160, 150, 110, 120, 150, 160, 150, 120, 80, 60, 44, 32, 24, 16,
] as const;
/** Work that comes at once, as a nightly build does: the hour, and the number of VMs. */
const BURSTS = [
  { hour: 2, vms: 40 },
  { hour: 8.5, vms: 60 },
] as const;

export interface Arrival {
  /** Hour of the day. */
  readonly at: number;
  /** Hours for which the VM is used. */
  readonly lasts: number;
}

/** Returns the arrivals of all VMs. The same seed gives the same day. `lives` are the shortest and the longest life, in hours. */
export function dayLoad(seed: number, lives: readonly [number, number]): Arrival[] {
  const random = randomFrom(seed);
  const [shortest, longest] = lives;
  const arrival = (at: number): Arrival => ({ at, lasts: shortest + random() * (longest - shortest) });
  const arrivals = BURSTS.flatMap(({ hour, vms }) => Array.from({ length: vms }, () => arrival(hour)));
  for (let at = 0; at < CURVE.length; ) {
    const from = CURVE[Math.floor(at)] ?? 0;
    const to = CURVE[(Math.floor(at) + 1) % CURVE.length] ?? 0;
    const running = from + (to - from) * (at % 1);
    arrivals.push(arrival(at));
    // The numbers of arrivals follow a Poisson process, so the gaps between them are exponential.
    at += (-Math.log(1 - random()) * (shortest + longest)) / 2 / running;
  }
  return arrivals;
}

/** Returns a generator of numbers from 0 up to 1 that depends only on the seed (mulberry32). */
function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d_2b_79_f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
