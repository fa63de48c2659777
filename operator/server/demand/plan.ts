/**
 * Decides which host power by demand switches on or off next. One call gives at most one decision, and gives none while the reconciler of
 * Servers has not begun the last one. All functions are pure.
 */
import type { PowerAction, Server } from '../../../api/v1alpha1/server.ts';
import type { Pod } from '../../../kube/core.ts';
import type { DemandFacts, HostFacts } from './facts.ts';
import type { HostState } from './hoststate.ts';
import { fits, take } from './places.ts';

export interface Decision {
  readonly server: Readonly<Server>;
  readonly action: Exclude<PowerAction, 'Reboot'>;
  /** Number of failed starts of the host in a row, including one that causes this decision. */
  readonly failures: number;
  /** Why, as text for people. It names no VM, because everybody who may read Servers reads it. */
  readonly why: string;
  /** Whether the host did not start in time. */
  readonly isGivenUp: boolean;
}

export function planDemand(facts: DemandFacts): Decision | undefined {
  return facts.isRequesting ? undefined : (switchOn(facts) ?? giveUpStart(facts) ?? switchOff(facts));
}

/** A host for which an action can be requested. */
type Usable = HostFacts & { readonly server: Readonly<Server> };

function usable(hosts: readonly HostFacts[], wanted: HostState): Usable[] {
  const isUsable = (host: HostFacts): host is Usable => host.server !== undefined && host.isFree;
  return hosts.filter(({ state }) => state === wanted).filter(isUsable);
}

/** Switches on the host of a stopped VM that must run, or else a host for a VM that has no place on any other host. */
function switchOn({ hosts, waiting, now }: DemandFacts): Decision | undefined {
  const candidates = usable(hosts, 'off').filter(({ retryAt }) => now >= retryAt);
  const awaited = candidates.find(({ isAwaited }) => isAwaited);
  if (awaited !== undefined) {
    return on(awaited, 'A stopped VM on the host must run');
  }
  const isNeeded = candidates.length > 0 && waiting.length > 0;
  const unplaced = isNeeded ? firstWithoutPlace(hosts, waiting, candidates) : undefined;
  const host = unplaced && best(candidates.filter(({ place }) => fits(place(), unplaced)));
  return host && on(host, 'A VM waits, and no host that is on or starts has room for it');
}

function on(host: Usable, why: string): Decision {
  return { server: host.server, action: 'On', failures: host.failures, why, isGivenUp: false };
}

/**
 * Returns the first waiting Pod that fits on one of the candidates, but on no host that is on or starts. The places on these hosts go to the
 * Pods in the order of their age, as the scheduler does it.
 */
function firstWithoutPlace(
  hosts: readonly HostFacts[],
  waiting: readonly Readonly<Pod>[],
  candidates: readonly Usable[],
): Readonly<Pod> | undefined {
  const places = hosts
    .filter(({ state, isFull }) => !isFull && (state === 'on' || state === 'starting'))
    .map(({ place }) => place());
  const offered = candidates.map(({ place }) => place());
  return waiting.find((pod) => !take(places, pod) && offered.some((place) => fits(place, pod)));
}

/** Returns the host with the fewest failed starts. Among equal hosts, the name decides, so that the same hosts stay on. */
function best(hosts: readonly Usable[]): Usable | undefined {
  return hosts.toSorted((a, b) => a.failures - b.failures || (nameOf(a) < nameOf(b) ? -1 : 1))[0];
}

function nameOf({ node }: HostFacts): string {
  return node.metadata.name;
}

/**
 * Switches a host off again that did not start in time. Its next start is then a cold start, and until then it uses no power. A host with a
 * stopped VM is left to people.
 */
function giveUpStart({ hosts, config, now }: DemandFacts): Decision | undefined {
  const host = usable(hosts, 'late').find(
    ({ emptySince, server, retryAt }) =>
      emptySince !== undefined && (server.status?.lastAction?.action !== 'Off' || now >= retryAt),
  );
  const why = `The host did not report within ${config.bootSeconds} s after it was switched on`;
  return host && { server: host.server, action: 'Off', failures: host.failures, why, isGivenUp: true };
}

/** Switches off the host that has been empty for the longest time, unless a VM waits for it or too few hosts would stay on. */
function switchOff({ hosts, waiting, config, now }: DemandFacts): Decision | undefined {
  const { emptySeconds, floor } = config;
  const [host] = usable(hosts, 'on')
    .filter(
      ({ emptySince = now, node, place }) =>
        now >= emptySince + emptySeconds * 1000 &&
        countOn(hosts, architectureOf(node)) > floor &&
        !waiting.some((pod) => fits(place(), pod)),
    )
    .toSorted((a, b) => (a.emptySince ?? now) - (b.emptySince ?? now) || (nameOf(a) < nameOf(b) ? 1 : -1));
  const seconds = Math.floor((now - (host?.emptySince ?? now)) / 1000);
  const why = `The host has been empty for ${seconds} s`;
  return host && { server: host.server, action: 'Off', failures: 0, why, isGivenUp: false };
}

function countOn(hosts: readonly HostFacts[], architecture: string | undefined): number {
  return hosts.filter(({ state, node }) => state === 'on' && architectureOf(node) === architecture).length;
}

function architectureOf({ metadata }: HostFacts['node']): string | undefined {
  return metadata.labels?.['kubernetes.io/arch'];
}
