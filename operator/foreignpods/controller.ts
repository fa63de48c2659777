/**
 * Removes Pods of other programs that landed on hosts, so that their owners create them again and they run on other nodes. Such a Pod tolerates
 * every taint, and the cluster has no policy berth-foreign-pods, or the Pod is older than the policy.
 */
import { isHost } from '../tasks/placement.ts';
import type { Logger } from 'pino';
import { LRUCache } from 'lru-cache';
import { soonest } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import { type Node, type Pod, PODS } from '../../kube/core.ts';
import { isObjectRefused, unlessMissing } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { type Recorder, warning } from '../objects/events.ts';
import { Writer } from '../objects/writer.ts';
import {
  buildGuard,
  nextRemoval,
  ownerOfRemovable,
  PARKED,
  REMOVABLE_BY_OWNER,
  type PodRemoval,
} from './removal.ts';

/** Key of the guard. All other keys of this controller are uids of owners. */
const GUARD_KEY = 'guard';
/**
 * Time for which the guard stays after the last removal, in milliseconds. The replacement must be scheduled in this time. The Job controller
 * waits longest before it replaces a Pod: up to six minutes.
 */
const GUARD_STAYS_MILLISECONDS = 420_000;
/** Number of owners whose last removal is remembered. A cluster has only a few owners whose Pods tolerate everything. */
const OWNERS_REMEMBERED = 1_000;
/** Time for which the last removal is remembered. It is longer than the longest wait between two removals. */
const REMEMBERED_MILLISECONDS = 900_000;

interface ForeignPodWatches {
  /** Bound Pods of other programs that have not started. */
  readonly foreignPods: Informer<Pod>;
  readonly guards: Informer<Pod>;
  /** Nodes that claim to be hosts. */
  readonly nodes: Informer<Node>;
}

export interface ForeignPodOptions extends ForeignPodWatches {
  readonly client: KubeClient;
  readonly config: OperatorConfig;
  readonly recorder: Recorder;
  readonly consistency: Consistency;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

export class ForeignPodReconciler {
  readonly #options: ForeignPodOptions;
  readonly #pods: Writer<Pod>;
  readonly #guards: Writer<Pod>;
  readonly #removals = new LRUCache<string, PodRemoval>({
    max: OWNERS_REMEMBERED,
    ttl: REMEMBERED_MILLISECONDS,
  });
  /** Time of the last removal of any owner, in milliseconds since the epoch. */
  #removedAt = 0;

  constructor(options: ForeignPodOptions) {
    const { client, consistency, foreignPods, guards } = options;
    this.#options = options;
    this.#pods = new Writer({ client, consistency, type: PODS, informer: foreignPods });
    this.#guards = new Writer({ client, consistency, type: PODS, informer: guards });
  }

  /** Removes at most one Pod of the owner with this uid, or removes the guard when its time is over. */
  async reconcile(key: string, { logger }: { logger: Logger }): Promise<Result> {
    const next = key === GUARD_KEY ? await this.#endGuard() : await this.#removeOne(key, logger);
    return next === undefined
      ? undefined
      : { requeueAfterMilliseconds: Math.max(1, next - this.#options.clock()) };
  }

  /** Returns the time of the next look at this owner. It is undefined if no Pod of the owner waits on a host. */
  async #removeOne(owner: string, logger: Logger): Promise<number | undefined> {
    const { foreignPods, clock } = this.#options;
    const pods = foreignPods.cache
      .byIndex(REMOVABLE_BY_OWNER, owner)
      .filter((pod) => isHost(this.#nodeOf(pod)));
    const decision = nextRemoval(pods, this.#removals.get(owner), clock());
    if (decision.kind !== 'remove') {
      return decision.kind === 'wait' ? decision.at : undefined;
    }
    const { pod, removal } = decision;
    await this.#guard(pod, logger);
    await unlessMissing(this.#pods.deleteUnchanged(pod));
    this.#removals.set(owner, removal);
    this.#removedAt = removal.at;
    this.#tell(pod, logger);
    return removal.at + removal.waitMilliseconds;
  }

  #nodeOf({ spec }: Readonly<Pod>): Readonly<Node> | undefined {
    return this.#options.nodes.cache.get(spec.nodeName ?? '');
  }

  /** Closes all hosts for the replacement, unless the guard exists already. Without the guard, the replacement might need more attempts. */
  async #guard(pod: Readonly<Pod>, logger: Logger): Promise<void> {
    const { guards, config } = this.#options;
    const host = this.#nodeOf(pod);
    if (host === undefined || guards.cache.list().length > 0) {
      return;
    }
    try {
      await this.#guards.create(GUARD_KEY, buildGuard(host, config));
    } catch (error) {
      if (!isObjectRefused(error)) {
        throw error;
      }
      logger.warn({ err: error }, 'the API server refused the Pod that keeps other Pods away from hosts');
    }
  }

  #tell(pod: Pod, logger: Logger): void {
    const host = pod.spec.nodeName ?? '';
    logger.info({ pod: keyOf(pod), host }, 'a Pod that its host does not run was deleted');
    const message = `Host ${host} runs only Pods of Berth. The Pod was deleted, so that its replacement runs on another node`;
    this.#options.recorder.event(pod, warning(PARKED, 'Removing', message));
  }

  /** Deletes the guard when no Pod was removed for a while. Returns the time of the next look at the guard. */
  async #endGuard(): Promise<number | undefined> {
    const { guards, clock } = this.#options;
    const ends = await Promise.all(
      guards.cache.list().map(async (guard) => {
        const created = Date.parse(guard.metadata.creationTimestamp ?? '');
        const end = Math.max(created, this.#removedAt) + GUARD_STAYS_MILLISECONDS;
        if (clock() < end) {
          return end;
        }
        await this.#guards.delete(guard);
        return undefined;
      }),
    );
    return soonest(...ends);
  }
}

/** Returns a function that tells whether a cache has an object for a key of this controller. */
export function foreignPodExists({ foreignPods, guards }: Omit<ForeignPodWatches, 'nodes'>) {
  return (key: string): boolean =>
    key === GUARD_KEY
      ? guards.cache.list().length > 0
      : foreignPods.cache.byIndex(REMOVABLE_BY_OWNER, key).length > 0;
}

/** Enqueues the owner of a Pod that waits on a host, and the guard when it changes. */
export function enqueueForeignPods(
  controller: Controller,
  { foreignPods, guards, nodes }: ForeignPodWatches,
): void {
  foreignPods.cache.onChange(({ object, previous = object }) => {
    [object, previous].flatMap(ownerOfRemovable).forEach((owner) => controller.enqueue(owner));
  });
  guards.cache.onChange(() => controller.enqueue(GUARD_KEY));
  // A Node can become a host after Pods landed on it.
  nodes.cache.onChange(({ type, object, previous }) => {
    if (type !== 'deleted' && isHost(object) && !isHost(previous)) {
      foreignPods.cache
        .list()
        .flatMap(ownerOfRemovable)
        .forEach((owner) => controller.enqueue(owner));
    }
  });
}
