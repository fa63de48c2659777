/** Checks the invariants of power by demand over thousands of histories of small fleets. */
import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { assertHistories } from '../../../test/support/properties.ts';
import { DemandFleet } from '../../../test/worlds/demandfleet.ts';
import type { Host } from '../../../test/worlds/demandhost.ts';

/** Time limit in milliseconds for thousands of simulated hours, on a machine that may run other work at the same time. */
const TIMEOUT_MILLISECONDS = 120_000;
const BOOT_SECONDS = 60;
const HOUR = 3_600_000;

const HOSTS: readonly Pick<Host, 'name' | 'architecture' | 'namespace'>[] = [
  { name: 'amd-0', architecture: 'amd64' },
  { name: 'amd-1', architecture: 'amd64' },
  { name: 'amd-2', architecture: 'amd64' },
  { name: 'arm-0', architecture: 'arm64' },
  { name: 'arm-1', architecture: 'arm64' },
  { name: 'own-0', architecture: 'amd64', namespace: 'platform-own' },
];
const ACTIONS = [
  'amdVM',
  'amdVM',
  'armVM',
  'ownVM',
  'pinnedVM',
  'endVM',
  'endVM',
  'endAllVMs',
  'stopVM',
  'startVM',
  'second',
  'minute',
  'quarterOfAnHour',
  'quarterOfAnHour',
  'failOver',
  'neverBoots',
  'bootsSlowly',
  'controllerRefuses',
  'controllerIsSlow',
  'controllerIsAway',
  'adminOff',
  'adminOn',
  'cordon',
  'uncordon',
  'hang',
  'repair',
] as const;

interface Step {
  readonly action: (typeof ACTIONS)[number];
  readonly index: number;
}

const STEP: fc.Arbitrary<Step> = fc.record({ action: fc.constantFrom(...ACTIONS), index: fc.nat(100) });
const HISTORIES = { step: STEP, maxLength: 60, numRuns: 300 };

function newFleet(choice = 0, floor = 1): DemandFleet {
  const hosts = HOSTS.map((host) => ({
    ...host,
    slots: 2,
    bootMilliseconds: 30_000,
    acceptMilliseconds: 200,
  }));
  return new DemandFleet({
    hosts,
    config: { emptySeconds: 300, bootSeconds: BOOT_SECONDS, floor },
    choose: (nodes) => nodes[choice % nodes.length],
  });
}

function act(fleet: DemandFleet, { action, index }: Step): void {
  const host = [...fleet.hosts.values()][index % HOSTS.length] as Host;
  const vm = [...fleet.lives.keys()][index % Math.max(1, fleet.lives.size)] ?? '';
  switch (action) {
    case 'amdVM':
      fleet.createVM({ architecture: 'amd64' });
      break;
    case 'armVM':
      fleet.createVM({ architecture: 'arm64' });
      break;
    case 'ownVM':
      fleet.createVM({ dedicatedTo: 'platform-own', nodeName: 'own-0' });
      break;
    case 'pinnedVM':
      fleet.createVM({ nodeName: host.name });
      break;
    case 'endVM':
      fleet.endVM(vm);
      break;
    case 'endAllVMs':
      [...fleet.lives.keys()].forEach((name) => fleet.endVM(name));
      break;
    case 'stopVM':
      fleet.stopVM(vm);
      break;
    case 'startVM':
      fleet.startVM(vm);
      break;
    default:
      actOnHost(fleet, action, host);
  }
  fleet.stabilize();
}

function actOnHost(fleet: DemandFleet, action: Step['action'], host: Host): void {
  switch (action) {
    case 'second':
      return fleet.advance(1_000);
    case 'minute':
      return fleet.advance(60_000, 10_000);
    case 'quarterOfAnHour':
      return fleet.advance(900_000, 30_000);
    case 'failOver':
      return fleet.failOver();
    case 'neverBoots':
      host.bootMilliseconds = undefined;
      return;
    case 'bootsSlowly':
      host.bootMilliseconds = 90_000;
      return;
    case 'controllerRefuses':
      host.acceptMilliseconds = undefined;
      return;
    case 'controllerIsAway':
      return fleet.setReachable(host.name, 'False');
    case 'controllerIsSlow':
      host.acceptMilliseconds = 25_000;
      return;
    default:
      actAsAdmin(fleet, action, host);
  }
}

function actAsAdmin(fleet: DemandFleet, action: Step['action'], host: Host): void {
  switch (action) {
    case 'adminOff':
      return fleet.request(host.name, 'Off');
    case 'adminOn':
      return fleet.request(host.name, 'On');
    case 'cordon':
      return fleet.cordon(host.name, true);
    case 'uncordon':
      return fleet.cordon(host.name, false);
    case 'hang':
      return fleet.hang(host.name);
    default:
      repair(fleet, host);
  }
}

function repair(fleet: DemandFleet, host: Host): void {
  fleet.setReachable(host.name, 'True');
  host.bootMilliseconds = 30_000;
  host.acceptMilliseconds = 200;
}

function fleetAfter(history: readonly Step[], floor = 1): DemandFleet {
  const fleet = newFleet(history[0]?.index, floor);
  history.forEach((step) => act(fleet, step));
  return fleet;
}

describe('power by demand, in any order of events,', { timeout: TIMEOUT_MILLISECONDS }, () => {
  it('switches off no host with a machine, none below the floor, and requests one action at a time', (context) => {
    assertHistories(context, HISTORIES, (history) => {
      expect(fleetAfter(history, (history.length % 3) as 0 | 1 | 2).faults).toEqual([]);
    });
  });

  it('gives each VM a host that it can run on, also a stopped VM that must run again', (context) => {
    assertHistories(context, HISTORIES, (history) => {
      const fleet = fleetAfter(history);
      for (const host of fleet.hosts.values()) {
        repair(fleet, host);
        fleet.cordon(host.name, false);
      }
      // The longest back-off is an hour. After it, each host of the policy has had one more start.
      fleet.advance(3 * HOUR, 30_000);
      const idle = [...fleet.hosts.keys()].filter((name) => fleet.isOffAndUsable(name));
      for (const { pod } of fleet.waiting) {
        expect(idle.filter((name) => fleet.suits(name, pod))).toEqual([]);
      }
      for (const name of idle) {
        const pods = fleet.podsOn(name).filter(({ metadata }) => fleet.isAwaited(metadata.name));
        expect(pods).toEqual([]);
      }
      expect(fleet.faults).toEqual([]);
    });
  });

  it('comes to rest: a fleet whose VMs have all ended keeps the floor on, and switches nothing any more', (context) => {
    assertHistories(context, HISTORIES, (history) => {
      const fleet = fleetAfter(history);
      [...fleet.hosts.values()].forEach((host) => repair(fleet, host));
      act(fleet, { action: 'endAllVMs', index: 0 });
      fleet.advance(3 * HOUR, 30_000);
      const count = fleet.decisions.length;
      fleet.advance(6 * HOUR, 60_000);
      expect(fleet.decisions).toHaveLength(count);
    });
  });
});

describe('a host that never starts', () => {
  it('is tried ever more rarely, but at least once an hour, and other hosts are taken at once', () => {
    const fleet = newFleet();
    fleet.advance(HOUR);
    const off = ['amd-0', 'amd-1', 'amd-2'].filter((name) => !fleet.isOn(name));
    expect(off).toHaveLength(2);
    const [broken = ''] = off;
    (fleet.hosts.get(broken) as Host).bootMilliseconds = undefined;
    ['a', 'b', 'c'].forEach(() => fleet.createVM({ architecture: 'amd64' }));
    const begun = fleet.now;
    fleet.advance(150_000);
    expect(fleet.waiting).toEqual([]);
    fleet.createVM({ nodeName: broken });
    fleet.advance(24 * HOUR, 10_000);
    const tries = fleet.decisions
      .filter(
        ({ decision, at }) =>
          at >= begun && decision.action === 'On' && decision.server.metadata.name === broken,
      )
      .map(({ at }) => at - begun);
    const given = fleet.decisions.filter(
      ({ decision }) => decision.action === 'Off' && decision.failures > 0,
    );
    expect(given.length).toBeGreaterThanOrEqual(tries.length - 1);
    const gaps = tries.slice(1).map((at, index) => at - (tries[index] ?? 0));
    // Six doublings lead from a minute to an hour, and then there is one try for each hour.
    expect(tries.length).toBeLessThanOrEqual(6 + 24);
    expect(Math.max(...gaps)).toBeLessThanOrEqual(HOUR + (BOOT_SECONDS + 30) * 1000);
    gaps.slice(1, 5).forEach((gap, index) => expect(gap).toBeGreaterThan(1.2 * (gaps[index] ?? 0)));
  });
});
