/** Switches hosts off that nothing needs, and on when VMs need them. It only requests actions: the reconciler of Servers carries them out. */
import { randomUUID } from 'node:crypto';
import type { Logger } from 'pino';
import type { Server } from '../../../api/v1alpha1/server.ts';
import { SERVERS } from '../../../api/v1alpha1/resources.ts';
import { timestamp } from '../../../base/time.ts';
import type { KubeClient } from '../../../kube/client.ts';
import type { Consistency } from '../../../kube/consistency.ts';
import type { Controller, Result } from '../../../kube/controller.ts';
import type { OperatorConfig } from '../../config/config.ts';
import { isByDemand } from '../../host/starting.ts';
import { normal, type OperatorEvent, type Recorder, warning } from '../../objects/events.ts';
import { Writer } from '../../objects/writer.ts';
import { hostFacts, seeEmpty } from './facts.ts';
import { byDemand, isPending } from './hoststate.ts';
import { type DemandSources, hostsIn, waitingIn } from './observe.ts';
import { type Decision, planDemand } from './plan.ts';

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
    { server, action, failures, ...decision }: Decision,
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

function eventOf({ action, isGivenUp, why }: Decision): OperatorEvent {
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
