/** One day of a fleet whose hosts are switched by demand, on virtual time. The load is that of a CI fleet: quiet nights, a busy day. */
import { DemandFleet } from './demandfleet.ts';
import type { Host } from './demandhost.ts';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
/** Number of VMs that run on average, for each hour of the day. It is highest at 10 and at 15 h. */
const CURVE = [
  12, 8, 6, 6, 6, 8, 16, 40, 90, 140, 160, 150, 110, 120, 150, 160, 150, 120, 80, 60, 44, 32, 24, 16,
] as const;
/** Shortest and longest time in milliseconds for which a VM runs. */
const SHORTEST = 4 * MINUTE;
const LONGEST = 40 * MINUTE;
/** Work that comes at once, as a nightly build does: the hour, and the number of VMs. */
const BURSTS = [
  { hour: 2, vms: 40 },
  { hour: 8.5, vms: 60 },
] as const;

export interface DayOptions {
  readonly hosts: number;
  readonly slots: number;
  readonly bootSeconds: number;
  /** Time in milliseconds in which a controller accepts a request. */
  readonly acceptMilliseconds: number;
  readonly emptySeconds: number;
  readonly floor: number;
  readonly seed: number;
}

export interface Sample {
  readonly hour: number;
  readonly vms: number;
  readonly waiting: number;
  readonly hostsOn: number;
}

export interface Day {
  readonly samples: readonly Sample[];
  readonly vms: number;
  readonly longestWaitSeconds: number;
  readonly waitedVMs: number;
  /** Hours for which hosts had power, and hours if all hosts had power all day. */
  readonly hostHours: number;
  readonly allHostHours: number;
  readonly switchedOn: number;
  readonly switchedOff: number;
  readonly faults: readonly string[];
}

/** Lives through one day. The same options give the same day. */
export function liveThroughDay(options: DayOptions): Day {
  const { hosts, slots, bootSeconds, acceptMilliseconds, emptySeconds, floor, seed } = options;
  const fleet = new DemandFleet({
    hosts: Array.from(
      { length: hosts },
      (_, index): Host => ({
        name: `host-${String(index).padStart(3, '0')}`,
        architecture: 'amd64',
        slots,
        bootMilliseconds: bootSeconds * 1000,
        acceptMilliseconds,
      }),
    ),
    config: { emptySeconds, floor, bootSeconds: 2 * bootSeconds },
  });
  const waits: number[] = [];
  const random = randomFrom(seed);
  planLoad(fleet, random, waits);
  const samples: Sample[] = [];
  let hostMinutes = 0;
  for (let minute = 0; minute < DAY / MINUTE; minute += 1) {
    fleet.advance(MINUTE, 10_000);
    const hostsOn = [...fleet.hosts.keys()].filter((name) => fleet.isOn(name)).length;
    hostMinutes += hostsOn;
    const waiting = fleet.waiting.length;
    samples.push({ hour: (minute + 1) / 60, vms: fleet.lives.size - waiting, waiting, hostsOn });
  }
  const actions = fleet.decisions.map(({ decision }) => decision.action);
  return {
    samples,
    vms: waits.length,
    longestWaitSeconds: waits.reduce((most, wait) => Math.max(most, wait), 0) / 1000,
    waitedVMs: waits.filter((wait) => wait > 0).length,
    hostHours: hostMinutes / 60,
    allHostHours: hosts * 24,
    switchedOn: actions.filter((action) => action === 'On').length,
    switchedOff: actions.filter((action) => action === 'Off').length,
    faults: fleet.faults,
  };
}

/** Plans the arrival of all VMs of the day. Each VM ends some time after its arrival, but not before it got a host. */
function planLoad(fleet: DemandFleet, random: () => number, waits: number[]): void {
  const arrive = () => {
    const name = fleet.createVM();
    const life = fleet.lives.get(name);
    const lasts = SHORTEST + random() * (LONGEST - SHORTEST);
    const end = () => {
      if (life?.boundAt === undefined) {
        fleet.after(MINUTE, end);
        return;
      }
      waits.push(life.boundAt - life.createdAt);
      fleet.endVM(name);
    };
    fleet.after(lasts, end);
  };
  const meanLife = (SHORTEST + LONGEST) / 2;
  for (let at = 0; at < DAY; ) {
    const hour = at / HOUR;
    const from = CURVE[Math.floor(hour)] ?? 0;
    const to = CURVE[(Math.floor(hour) + 1) % CURVE.length] ?? 0;
    const running = from + (to - from) * (hour % 1);
    // The numbers of arrivals follow a Poisson process, so the gaps between them are exponential.
    at += (-Math.log(1 - random()) * meanLife) / running;
    fleet.after(at, arrive);
  }
  for (const { hour, vms } of BURSTS) {
    fleet.after(hour * HOUR, () => Array.from({ length: vms }).forEach(arrive));
  }
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
