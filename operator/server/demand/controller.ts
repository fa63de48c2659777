/**
 * Switches hosts off that nothing needs, and on when VMs need them. One decision follows after the other, because each depends on all hosts.
 * It only requests actions: the reconciler of Servers carries them out.
 */
import { randomUUID } from 'node:crypto';
import type { Logger } from 'pino';
import type { PowerAction, Server } from '../../../api/v1alpha1/server.ts';
import { SERVERS } from '../../../api/v1alpha1/resources.ts';
import { timestamp } from '../../../base/time.ts';
import type { KubeClient } from '../../../kube/client.ts';
import type { Consistency } from '../../../kube/consistency.ts';
import type { Controller, Result } from '../../../kube/controller.ts';
import type { OperatorConfig } from '../../config/config.ts';
import { isByDemand } from '../../host/power.ts';
import { normal, type OperatorEvent, type Recorder, warning } from '../../objects/events.ts';
import { Writer } from '../../objects/writer.ts';
import {
  byDemand,
  type DemandFacts,
  type DemandSources,
  hostFacts,
  type HostDemand,
  hostsIn,
  type DemandState,
  isPending,
  seeEmpty,
} from './facts.ts';
import type { Pod } from '../../../kube/core.ts';
import { fits, take, waitingIn } from '../places.ts';

/** The only key of this controller, because each decision depends on all hosts. */
const DEMAND_KEY = 'demand';
/** Time in milliseconds between two looks if nothing changes. Hosts become empty for long enough, or late, without a change. */
const LOOK_MILLISECONDS = 5_000;
/** Wait in milliseconds after a change. A burst of changes then causes a few looks at all hosts, and not thousands. */
const GATHER_MILLISECONDS = 200;

export interface DemandControllerOptions extends DemandSources {
  readonly client: KubeClient;
  readonly config: OperatorConfig;
  readonly recorder: Recorder;
  readonly consistency: Consistency;
  readonly clock: () => number;
}

export class DemandReconciler {
  readonly #options: DemandControllerOptions;
  readonly #writer: Writer<Server>;
  #emptySince: ReadonlyMap<string, number> = new Map();

  constructor(options: DemandControllerOptions) {
    const { client, consistency, servers } = options;
    this.#options = options;
    this.#writer = new Writer({ client, consistency, type: SERVERS, informer: servers });
  }

  async reconcile(_key: string, { logger }: { logger: Logger }): Promise<Result> {
    const { servers, clock, config } = this.#options;
    const context = { config: config.powerByDemand, now: clock() };
    const hosts = hostsIn(this.#options);
    this.#emptySince = seeEmpty(hosts, this.#emptySince, context.now);
    const decision = planDemand({
      ...context,
      hosts: hosts.map((host) => {
        const seenEmptySince = this.#emptySince.get(host.node.metadata.name);
        return hostFacts({ ...host, seenEmptySince }, context);
      }),
      waiting: waitingIn(this.#options),
      isRequesting: servers.cache.list().some((server) => isPending(server, context.now)),
    });
    if (decision !== undefined) {
      await this.#request(decision, context.now, logger);
    }
    return { requeueAfterMilliseconds: LOOK_MILLISECONDS };
  }

  async #request(
    { server, action, failures, ...decision }: DemandDecision,
    now: number,
    logger: Logger,
  ): Promise<void> {
    const request = { id: randomUUID(), action, requestedAt: timestamp(now), by: byDemand(failures) };
    const written = await this.#writer.patch(DEMAND_KEY, server, { status: { request } }, 'status');
    if (written !== undefined) {
      logger.info(
        { server: server.metadata.name, action, why: decision.why },
        'requesting a power action by demand',
      );
      this.#options.recorder.event(server, eventOf({ server, action, failures, ...decision }));
    }
  }
}

function eventOf({ action, isGivenUp, why }: DemandDecision): OperatorEvent {
  if (isGivenUp) {
    return warning('HostNotStarted', 'SwitchingOff', why);
  }
  return action === 'On'
    ? normal('PowerOnByDemand', 'SwitchingOn', why)
    : normal('PowerOffByDemand', 'SwitchingOff', why);
}

/**
 * Enqueues the only key when an object changes on which a decision depends. The next decision follows at once when the reconciler of Servers
 * has begun the last one, so that many VMs at once do not wait for one host after the other.
 */
export function enqueueDemand(controller: Controller, sources: DemandSources): void {
  const { servers, nodes, vms, pods, emulatorPods, taskPods, jobs } = sources;
  servers.cache.onChange(({ object, previous }) => {
    if (isByDemand(previous?.status?.request) && object.status?.request === undefined) {
      controller.enqueue(DEMAND_KEY);
    }
  });
  for (const { cache } of [servers, nodes, vms, pods, emulatorPods, taskPods, jobs]) {
    cache.onChange(() => controller.enqueueAfter(DEMAND_KEY, GATHER_MILLISECONDS));
  }
}

export interface DemandDecision {
  readonly server: Readonly<Server>;
  readonly action: Exclude<PowerAction, 'Reboot'>;
  /** Number of failed starts of the host in a row, including one that causes this decision. */
  readonly failures: number;
  /** Why, as text for people. It names no VM, because everybody who may read Servers reads it. */
  readonly why: string;
  /** Whether the host did not start in time. */
  readonly isGivenUp: boolean;
}

export function planDemand(facts: DemandFacts): DemandDecision | undefined {
  return facts.isRequesting ? undefined : (switchOn(facts) ?? giveUpStart(facts) ?? switchOff(facts));
}

/** A host for which an action can be requested. */
type Usable = HostDemand & { readonly server: Readonly<Server> };

function usable(hosts: readonly HostDemand[], wanted: DemandState): Usable[] {
  const isUsable = (host: HostDemand): host is Usable => host.server !== undefined && host.isFree;
  return hosts.filter(({ state }) => state === wanted).filter(isUsable);
}

/** Switches on the host of a stopped VM that must run, or else a host for a VM that has no place on any other host. */
function switchOn({ hosts, waiting, now }: DemandFacts): DemandDecision | undefined {
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

function on(host: Usable, why: string): DemandDecision {
  return { server: host.server, action: 'On', failures: host.failures, why, isGivenUp: false };
}

/**
 * Returns the first waiting Pod that fits on one of the candidates, but on no host that is on or starts. The places on these hosts go to the
 * Pods in the order of their age, as the scheduler does it.
 */
function firstWithoutPlace(
  hosts: readonly HostDemand[],
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

function nameOf({ node }: HostDemand): string {
  return node.metadata.name;
}

/**
 * Switches a host off again that did not start in time. Its next start is then a cold start, and until then it uses no power. A host with a
 * stopped VM is left to people.
 */
function giveUpStart({ hosts, config, now }: DemandFacts): DemandDecision | undefined {
  const host = usable(hosts, 'late').find(
    ({ emptySince, server, retryAt }) =>
      emptySince !== undefined && (server.status?.lastAction?.action !== 'Off' || now >= retryAt),
  );
  const why = `The host did not report within ${config.bootSeconds} s after it was switched on`;
  return host && { server: host.server, action: 'Off', failures: host.failures, why, isGivenUp: true };
}

/** Switches off the host that has been empty for the longest time, unless a VM waits for it or too few hosts would stay on. */
function switchOff({ hosts, waiting, config, now }: DemandFacts): DemandDecision | undefined {
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

function countOn(hosts: readonly HostDemand[], architecture: string | undefined): number {
  return hosts.filter(({ state, node }) => state === 'on' && architectureOf(node) === architecture).length;
}

function architectureOf({ metadata }: HostDemand['node']): string | undefined {
  return metadata.labels?.['kubernetes.io/arch'];
}
