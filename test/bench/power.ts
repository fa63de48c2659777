/**
 * Measures power by demand over a day of 50 hosts: once on virtual time with the planner of the operator alone, and once in minutes with the
 * whole operator, a real API server and a real scheduler, where an hour of the day takes some seconds.
 */
import { pino } from 'pino';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { SERVERS, VMS } from '../../api/v1alpha1/resources.ts';
import { pause } from '../../base/time.ts';
import { bundle } from '../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { Informer } from '../../kube/informer.ts';
import { VMs } from '../fixtures/vms.ts';
import { dayLoad } from '../worlds/dayload.ts';
import { type Day, liveThroughDay, type Sample } from '../worlds/demandday.ts';
import { PoweredHosts } from '../worlds/poweredhosts.ts';
import { format, seconds } from './report.ts';
import type { Verdict } from './verdicts.ts';

/** Hosts of the day, and slots of each. */
export const DAY_HOSTS = 50;
export const DAY_SLOTS = 4;
/** Seconds of the measurement for an hour of the day. A day takes six minutes. */
const HOUR_SECONDS = 15;
/** Shortest and longest time in hours for which a VM is used. Shorter lives would measure the API server of a small machine. */
const LIVES = [1, 3] as const;
const REAL = { bootSeconds: 6, emptySeconds: 5, floor: 2 } as const;
const VIRTUAL = { bootSeconds: 180, emptySeconds: 900, floor: 2, acceptMilliseconds: 500 } as const;
/** Number of hosts that are on when the day begins. */
const FIRST_HOSTS = 4;
/** Time in seconds that a VM may wait longer than for the boot of a host. */
const ALLOWED_SECONDS = 10;

export interface PowerDays {
  readonly virtual: Day;
  readonly real: Day;
}

export async function measurePower(seed = 1): Promise<PowerDays> {
  const virtual = liveThroughDay({ hosts: DAY_HOSTS, slots: DAY_SLOTS, seed, ...VIRTUAL });
  await bundle();
  const cluster = await startCluster({ name: 'bench-power' });
  try {
    return { virtual, real: await measureDay(cluster, seed) };
  } finally {
    await cluster.stop();
  }
}

async function measureDay(cluster: Cluster, seed: number): Promise<Day> {
  const { bootSeconds, emptySeconds, floor } = REAL;
  await using hosts = await PoweredHosts.create(cluster, {
    count: DAY_HOSTS,
    bootMilliseconds: bootSeconds * 1000,
    on: FIRST_HOSTS,
  });
  const operator = await cluster.startOperator({
    bundle: true,
    config: {
      defaults: { architecture: 'arm64' },
      powerByDemand: { enabled: true, emptySeconds, floor, bootSeconds: 3 * bootSeconds },
    },
  });
  await waitFor('the operator to read the power of all servers', async () => {
    const { items } = await cluster.client().list(SERVERS);
    return items.every(({ status }) => status?.power !== undefined);
  });
  const day = new RealDay(cluster, hosts);
  const result = await day.live(seed);
  await operator.stop();
  return result;
}

class RealDay {
  readonly #vms: VMs;
  readonly #hosts: PoweredHosts;
  readonly #informer: Informer<VM>;
  readonly #ended = new AbortController();
  /** Times of `performance.now()` when the VMs were requested. */
  readonly #waiting = new Map<string, number>();
  readonly #running = new Set<string>();
  readonly #lasts = new Map<string, number>();
  readonly #waits: number[] = [];
  readonly #errors: unknown[] = [];
  #switches = { on: 0, off: 0 };

  constructor(cluster: Cluster, hosts: PoweredHosts) {
    this.#vms = new VMs(cluster);
    this.#hosts = hosts;
    this.#informer = new Informer(cluster.client(), VMS, { logger: pino({ level: 'silent' }) });
    this.#informer.cache.onChange(({ object }) => this.#see(object));
  }

  async live(seed: number): Promise<Day> {
    this.#informer.start(this.#ended.signal);
    const begun = performance.now();
    const hourNow = () => (performance.now() - begun) / 1000 / HOUR_SECONDS;
    const load = dayLoad(seed, LIVES).toSorted((a, b) => a.at - b.at);
    const samples: Sample[] = [];
    let before = new Set(this.#hosts.on);
    for (let hour = hourNow(); hour < 24; hour = hourNow()) {
      while (load[0] !== undefined && load[0].at <= hour) {
        this.#request(load.shift()?.lasts ?? 0);
      }
      const on = new Set(this.#hosts.on);
      this.#switches.on += [...on].filter((name) => !before.has(name)).length;
      this.#switches.off += [...before].filter((name) => !on.has(name)).length;
      before = on;
      samples.push({ hour, vms: this.#running.size, waiting: this.#waiting.size, hostsOn: on.size });
      await pause(HOUR_SECONDS * 10, this.#ended.signal);
    }
    await waitFor('the last VMs to run', async () => this.#waiting.size === 0);
    this.#ended.abort(new Error('the day is over'));
    const mean = samples.reduce((sum, { hostsOn }) => sum + hostsOn, 0) / samples.length;
    return {
      samples,
      vms: this.#waits.length,
      longestWaitSeconds: Math.max(...this.#waits) / 1000,
      hostHours: mean * 24,
      allHostHours: DAY_HOSTS * 24,
      switchedOn: this.#switches.on,
      switchedOff: this.#switches.off,
      faults: [...this.#errors, ...this.#hosts.errors].map(String),
    };
  }

  #request(lasts: number): void {
    const name = `vm-${this.#lasts.size}`;
    this.#lasts.set(name, lasts);
    this.#waiting.set(name, performance.now());
    this.#vms.create(name).catch((error: unknown) => this.#errors.push(error));
  }

  #see({ metadata: { name }, status }: Readonly<VM>): void {
    const requested = this.#waiting.get(name);
    if (requested === undefined || status?.phase !== 'Running') {
      return;
    }
    this.#waits.push(performance.now() - requested);
    this.#waiting.delete(name);
    this.#running.add(name);
    void this.#endLater(name, requested);
  }

  /** Ends a running VM when its time is over. The time begins with the request as in the day on virtual time, so that both have one load. */
  async #endLater(name: string, requested: number): Promise<void> {
    const until = requested + (this.#lasts.get(name) ?? 0) * HOUR_SECONDS * 1000;
    try {
      await pause(Math.max(0, until - performance.now()), this.#ended.signal);
      this.#running.delete(name);
      await this.#vms.delete(name);
    } catch (error) {
      if (!this.#ended.signal.aborted) {
        this.#errors.push(error);
      }
    }
  }
}

export function powerTable({ virtual, real }: PowerDays): string {
  const row = (label: string, value: (day: Day) => string): string[] => [label, value(virtual), value(real)];
  return format([
    [
      `a day of ${DAY_HOSTS} hosts with ${DAY_SLOTS} slots`,
      'planner, virtual time',
      'operator, real cluster',
    ],
    ['an hour of the day takes', 'no time', `${HOUR_SECONDS} s`],
    ['boot of a host', `${VIRTUAL.bootSeconds} s`, `${REAL.bootSeconds} s`],
    row('VMs', ({ vms }) => String(vms)),
    row('longest wait of a VM', ({ longestWaitSeconds }) => seconds(longestWaitSeconds)),
    row('time with a VM in each slot', fullText),
    row('hosts switched on', ({ switchedOn }) => String(switchedOn)),
    row('hosts switched off', ({ switchedOff }) => String(switchedOff)),
    row('host-hours', ({ hostHours }) => hostHours.toFixed(0)),
    row('host-hours if all hosts are on', ({ allHostHours }) => String(allHostHours)),
    row('saved', savedText),
  ]);
}

/** Describes for how long the fleet was full. No host can then be switched on for a VM that waits. */
function fullText({ samples }: Day): string {
  const full = samples.filter(({ vms }) => vms >= DAY_HOSTS * DAY_SLOTS);
  return `${((24 * 60 * full.length) / samples.length).toFixed(0)} min of the day`;
}

function savedText({ hostHours, allHostHours }: Day): string {
  return `${(100 * (1 - hostHours / allHostHours)).toFixed(0)} %`;
}

export function powerVerdicts({ virtual, real }: PowerDays): Verdict[] {
  const verdict = (name: string, { longestWaitSeconds }: Day, bootSeconds: number): Verdict => ({
    claim: `power: longest wait of a VM, ${name}`,
    measured: seconds(longestWaitSeconds),
    target: `at most ${bootSeconds + ALLOWED_SECONDS} s`,
    reached: longestWaitSeconds <= bootSeconds + ALLOWED_SECONDS,
  });
  return [
    verdict('virtual time', virtual, VIRTUAL.bootSeconds),
    verdict('real cluster', real, REAL.bootSeconds),
    {
      claim: 'power: errors of the simulation',
      measured: String(virtual.faults.length + real.faults.length),
      target: '0',
      reached: virtual.faults.length + real.faults.length === 0,
    },
  ];
}
