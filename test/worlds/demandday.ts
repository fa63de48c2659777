/** One day of a fleet whose hosts are switched by demand, on virtual time. */
import { type Arrival, dayLoad } from './dayload.ts';
import { DemandFleet } from './demandfleet.ts';
import type { Host } from './demandhost.ts';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
/** Shortest and longest time in hours for which a VM is used. */
const LIVES = [4 / 60, 40 / 60] as const;

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
  /** VMs that run. */
  readonly vms: number;
  readonly waiting: number;
  readonly hostsOn: number;
}

export interface Day {
  readonly samples: readonly Sample[];
  readonly vms: number;
  readonly longestWaitSeconds: number;
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
  for (const arrival of dayLoad(seed, LIVES)) {
    fleet.after(arrival.at * HOUR, () => arrive(fleet, arrival, waits));
  }
  const samples: Sample[] = [];
  for (let minute = 1; minute <= 24 * 60; minute += 1) {
    fleet.advance(MINUTE, 10_000);
    const hostsOn = [...fleet.hosts.keys()].filter((name) => fleet.isOn(name)).length;
    const waiting = fleet.waiting.length;
    samples.push({ hour: minute / 60, vms: fleet.lives.size - waiting, waiting, hostsOn });
  }
  const actions = fleet.decisions.map(({ decision }) => decision.action);
  return {
    samples,
    vms: waits.length,
    longestWaitSeconds: waits.reduce((most, wait) => Math.max(most, wait), 0) / 1000,
    hostHours: samples.reduce((sum, { hostsOn }) => sum + hostsOn, 0) / 60,
    allHostHours: hosts * 24,
    switchedOn: actions.filter((action) => action === 'On').length,
    switchedOff: actions.filter((action) => action === 'Off').length,
    faults: fleet.faults,
  };
}

/** A VM arrives. It ends some time after its arrival, but not before it got a host. */
function arrive(fleet: DemandFleet, { lasts }: Arrival, waits: number[]): void {
  const name = fleet.createVM();
  const life = fleet.lives.get(name);
  const end = () => {
    if (life?.boundAt === undefined) {
      fleet.after(MINUTE, end);
      return;
    }
    waits.push(life.boundAt - life.createdAt);
    fleet.endVM(name);
  };
  fleet.after(lasts * HOUR, end);
}
