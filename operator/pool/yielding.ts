/**
 * Makes room for VMs that wait for a host: deletes VMs of pools that nobody has claimed, the oldest first and at most one per second. One
 * decision follows after the other, because each depends on all hosts and all pools.
 */
import type { Logger } from 'pino';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { POOL_DEFAULTS, poolUidOf } from '../../api/v1alpha1/poolmembers.ts';
import { undefinedIf } from '../../base/errors.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { isConflict } from '../../kube/errors.ts';
import { keyOf } from '../../kube/objects.ts';
import { PODS_BY_NODE } from '../host/observe.ts';
import { normal, type Recorder } from '../objects/events.ts';
import { fits, placeOn, take, waitingIn } from '../server/places.ts';
import { isHost } from '../tasks/placement.ts';
import { isWaiting } from '../vm/triggers.ts';
import { poolKeyOf, type PoolSources } from './observe.ts';

/** The only key of this controller. */
const YIELD_KEY = 'yield';
/** Shortest time in milliseconds between two deletions. It gives the scheduler time to use the free place. */
const PAUSE_MILLISECONDS = 1_000;

/** Returns the Pods of VMs that wait for a host, the oldest first, without those of VMs that a pool owns. */
function foreignPods(sources: PoolSources): Readonly<Pod>[] {
  return waitingIn(sources).filter((pod) => {
    const vm = sources.vms.cache.get(keyOf(pod));
    return vm !== undefined && poolUidOf(vm) === undefined && vm.metadata.deletionTimestamp === undefined;
  });
}

/** A VM of a pool that nobody has claimed, with its Pod. */
interface IdleMember {
  readonly vm: Readonly<VM>;
  readonly pod: Readonly<Pod>;
}

/** What the caches have about one host. */
export interface HostWithPools {
  readonly node: Readonly<Node>;
  /** Pods that stay on the host. */
  readonly staying: readonly Readonly<Pod>[];
  /** VMs of pools that can go, the oldest first. */
  readonly idle: readonly IdleMember[];
}

function hostsIn(sources: PoolSources, nodes: readonly Readonly<Node>[]): HostWithPools[] {
  return nodes.map((node) => {
    const { name } = node.metadata;
    const pods = sources.pods.cache.byIndex(PODS_BY_NODE, name);
    const others = [sources.emulatorPods, sources.taskPods].flatMap(({ cache }) =>
      cache.byIndex(PODS_BY_NODE, name),
    );
    const idle = pods.flatMap((pod) => idleMember(sources, pod) ?? []);
    const going = new Set(idle.map(({ pod }) => pod));
    // The place of a VM that is being deleted is free in a moment.
    const staying = pods.filter(
      (pod) => !going.has(pod) && pod.metadata.deletionTimestamp === undefined && !isLeaving(sources, pod),
    );
    return { node, staying: [...staying, ...others], idle: idle.toSorted(byAge) };
  });
}

function isLeaving({ vms }: PoolSources, pod: Readonly<Pod>): boolean {
  return vms.cache.get(keyOf(pod))?.metadata.deletionTimestamp !== undefined;
}

function idleMember({ vms, pools }: PoolSources, pod: Readonly<Pod>): IdleMember | undefined {
  const vm = vms.cache.get(keyOf(pod));
  const key = vm && poolKeyOf(vm);
  const pool = key === undefined ? undefined : pools.cache.get(key);
  if (vm === undefined || pool === undefined || vm.metadata.deletionTimestamp !== undefined) {
    return undefined;
  }
  const { mode, yieldToWaiting = POOL_DEFAULTS.yieldToWaiting } = pool.spec;
  // A VM with mode OneShot can have a job.
  return yieldToWaiting && mode !== 'OneShot' ? { vm, pod } : undefined;
}

function byAge({ vm: { metadata: a } }: IdleMember, { vm: { metadata: b } }: IdleMember): number {
  const [first, second] = [a, b].map(({ creationTimestamp = '', name }) => `${creationTimestamp}/${name}`);
  return (first ?? '') < (second ?? '') ? -1 : 1;
}

/**
 * Returns true if a VM that is not in a pool waits for a slot on one of the hosts, and would have it without the VMs of pools. A VM that no
 * such host can take holds no pool up.
 */
export function awaitedOn(sources: PoolSources, nodes: readonly Readonly<Node>[]): boolean {
  const waiting = foreignPods(sources);
  return (
    waiting.length > 0 &&
    hostsIn(sources, nodes).some(({ node, staying }) => {
      const place = placeOn(node, staying);
      return waiting.some((pod) => fits(place, pod));
    })
  );
}

/**
 * Returns the VM that goes now. The places that are free, or are about to be, go to the waiting Pods in their order. For the first Pod that
 * has none, the host is chosen on which the fewest VMs must go, and of equal ones the host with the oldest.
 */
export function planYield(
  waiting: readonly Readonly<Pod>[],
  hosts: readonly HostWithPools[],
): Readonly<VM> | undefined {
  const places = hosts.map(({ node, staying, idle }) =>
    placeOn(node, [...staying, ...idle.map(({ pod }) => pod)]),
  );
  for (const pod of waiting) {
    if (!take(places, pod)) {
      const choices = hosts
        .map((host) => ({ first: host.idle[0], needed: countNeeded(host, pod) }))
        .filter(({ needed }) => needed > 0 && Number.isFinite(needed));
      const [best] = choices.toSorted((a, b) => a.needed - b.needed || compareMembers(a.first, b.first));
      if (best?.first !== undefined) {
        return best.first.vm;
      }
    }
  }
  return undefined;
}

function compareMembers(a: IdleMember | undefined, b: IdleMember | undefined): number {
  return a === undefined || b === undefined ? 0 : byAge(a, b);
}

/** Returns how many of the host's VMs of pools must go, the oldest first, so that the Pod fits. It is infinite if it never fits. */
function countNeeded({ node, staying, idle }: HostWithPools, pod: Readonly<Pod>): number {
  for (let gone = 0; gone <= idle.length; gone += 1) {
    const left = idle.slice(gone).map((one) => one.pod);
    if (fits(placeOn(node, [...staying, ...left]), pod)) {
      return gone;
    }
  }
  return Number.POSITIVE_INFINITY;
}

export interface YieldOptions extends PoolSources {
  readonly client: KubeClient;
  readonly recorder: Recorder;
}

export class YieldReconciler {
  readonly #options: YieldOptions;
  /** Uids of deleted VMs, until the cache shows the deletion. */
  readonly #deleted = new Set<string>();
  #lastAt = Number.NEGATIVE_INFINITY;

  constructor(options: YieldOptions) {
    this.#options = options;
  }

  async reconcile(_key: string, { logger }: { logger: Logger }): Promise<Result> {
    const waiting = foreignPods(this.#options);
    if (waiting.length === 0) {
      this.#deleted.clear();
      return undefined;
    }
    const now = this.#options.clock();
    // The clock can be set back. A deletion must not wait for that.
    const wait = Math.min(this.#lastAt + PAUSE_MILLISECONDS - now, PAUSE_MILLISECONDS);
    if (wait > 0) {
      return { requeueAfterMilliseconds: wait };
    }
    const hosts = hostsIn(this.#options, this.#options.nodes.cache.list().filter(isHost));
    const vm = planYield(
      waiting,
      hosts.map((host) => this.#withoutDeleted(host)),
    );
    if (vm !== undefined) {
      this.#lastAt = now;
      await this.#delete(vm, logger);
    }
    return { requeueAfterMilliseconds: PAUSE_MILLISECONDS };
  }

  #withoutDeleted({ idle, ...host }: HostWithPools): HostWithPools {
    return { ...host, idle: idle.filter(({ vm }) => !this.#deleted.has(vm.metadata.uid ?? '')) };
  }

  /** Deletes the VM, unless it has changed: perhaps somebody has claimed it. */
  async #delete(vm: Readonly<VM>, logger: Logger): Promise<void> {
    const { client, recorder, pools } = this.#options;
    const { namespace = '', name, uid, resourceVersion } = vm.metadata;
    const deletion = client.delete(VMS, { namespace, name }, { uid, resourceVersion }).then(() => true);
    if ((await undefinedIf(isConflict, deletion)) !== true) {
      return;
    }
    this.#deleted.add(uid ?? '');
    logger.info({ vm: keyOf(vm) }, 'deleted a VM of a pool, because another VM waits for a host');
    const pool = pools.cache.get(poolKeyOf(vm) ?? '');
    if (pool !== undefined) {
      const message = `VM ${name} was deleted, because a VM that is not in a pool waits for a host`;
      recorder.event(pool, normal('Yielded', 'Yielding', message));
    }
  }
}

/** Enqueues the only key when a VM begins to wait for a host. */
export function enqueueYield(controller: Controller, { pods }: PoolSources): void {
  pods.cache.onChange(({ type, object }) => {
    if (type !== 'deleted' && isWaiting(object)) {
      controller.enqueue(YIELD_KEY);
    }
  });
}
