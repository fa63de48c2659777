/**
 * Model of the API server's rules for one VMPool and its VMs. The operator's real reconciler works against it, with caches that lag and with
 * requests whose answers are lost. Users claim VMs, scale the pool and change its template; hosts start VMs, or fail.
 */
import { pino } from 'pino';
import { API_VERSION, CLAIMED_FROM_LABEL, POOL_LABEL } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { isClaimable, poolUidOf } from '../../api/v1alpha1/poolmembers.ts';
import type { VMPool } from '../../api/v1alpha1/vmpool.ts';
import { timestamp } from '../../base/time.ts';
import { Store } from '../../kube/cache.ts';
import type { KubeClient } from '../../kube/client.ts';
import { Consistency } from '../../kube/consistency.ts';
import { ApiError, DeadlineError } from '../../kube/errors.ts';
import type { Pod } from '../../kube/core.ts';
import { keyOf, type KubeObject, type Resource } from '../../kube/objects.ts';
import { parseConfig } from '../../operator/config/config.ts';
import { PODS_BY_NODE } from '../../operator/host/observe.ts';
import { PoolReconciler } from '../../operator/pool/controller.ts';
import { poolOfVM, type PoolSources, VMS_BY_POOL } from '../../operator/pool/observe.ts';
import { SURGE } from '../../operator/pool/plan.ts';
import { HOSTS_BY_NAMESPACE } from '../../operator/tasks/placement.ts';
import { PODS_WITHOUT_HOST, unboundPods } from '../../operator/vm/triggers.ts';

const NAMESPACE = 'platform-default';
const KEY = `${NAMESPACE}/ci`;
const logger = pino({ level: 'silent' });
const config = parseConfig({}, 'test');

/** What happens to the next request that changes an object. */
export type Fault = 'none' | 'lostAnswer' | 'lostRequest';

interface Event {
  readonly type: 'put' | 'delete';
  readonly object: KubeObject;
}

/** A cache that shows changes only when they are delivered. */
class Lagging<T extends KubeObject> {
  readonly store: Store<T>;
  readonly #events: Event[] = [];

  constructor(indexes: ConstructorParameters<typeof Store<T>>[1] = {}) {
    this.store = new Store<T>(logger, indexes);
  }

  add(type: Event['type'], object: T): void {
    this.#events.push({ type, object: structuredClone(object) });
  }

  deliver(count: number): void {
    for (const { type, object } of this.#events.splice(0, count)) {
      if (type === 'put') {
        this.store.put(object as T);
      } else {
        this.store.delete(keyOf(object), object as T);
      }
      this.store.resourceVersion = object.metadata.resourceVersion ?? '';
    }
  }

  get informer() {
    const { store } = this;
    return { cache: store, readSince: Number.NEGATIVE_INFINITY, cutIfStale: () => undefined };
  }
}

/** Applies a JSON merge patch (RFC 7386). */
function merge(before: object, patch: object): object {
  const merged: Record<string, unknown> = { ...before };
  for (const [key, value] of Object.entries(patch) as [string, unknown][]) {
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
    merged[key] = isObject ? merge(merged[key] ?? {}, value) : value;
    if (value === null) {
      delete merged[key];
    }
  }
  return merged;
}

function conflict(): ApiError {
  return new ApiError('the object has been modified', { status: 409, reason: 'Conflict' });
}

export class PoolModel {
  now = Date.parse('2030-01-01T00:00:00Z');
  fault: Fault = 'none';
  pool: VMPool;
  readonly vms = new Map<string, VM>();
  /** VMs that users have claimed, by uid. */
  readonly claimed = new Map<string, VM>();
  created = 0;
  /** Largest number of VMs above the limit of the pool that existed at any time. It must stay 0. */
  surplus = 0;
  /** Number of claimed VMs that the operator deleted or took back. It must stay 0. */
  lost = 0;
  /** Whether new VMs fail. */
  isBroken = false;
  readonly #vmCache = new Lagging<VM>({ [VMS_BY_POOL]: poolOfVM });
  readonly #poolCache = new Lagging<VMPool>();
  readonly #consistency = new Consistency(() => this.now);
  readonly #reconciler: PoolReconciler;
  #version = 100;
  #uids = 0;

  constructor(spec: Partial<VMPool['spec']> = {}) {
    this.pool = {
      apiVersion: API_VERSION,
      kind: 'VMPool',
      metadata: { namespace: NAMESPACE, name: 'ci', uid: 'pool', generation: 1, resourceVersion: '1' },
      spec: { replicas: 3, template: { spec: { image: 'registry.example/guest:1', cpu: 1 } }, ...spec },
    };
    this.#poolCache.add('put', this.pool);
    this.#poolCache.deliver(1);
    const client = {
      create: this.#create.bind(this),
      mergePatch: this.#patch.bind(this),
      delete: this.#delete.bind(this),
      get: this.#get.bind(this),
    } as unknown as KubeClient;
    const empty = () =>
      new Lagging<never>({ [PODS_BY_NODE]: () => [], [HOSTS_BY_NAMESPACE]: () => [] }).informer;
    const pods = new Lagging<Pod>({ [PODS_WITHOUT_HOST]: unboundPods, [PODS_BY_NODE]: () => [] }).informer;
    const sources = {
      pools: this.#poolCache.informer,
      vms: this.#vmCache.informer,
      vmConfigs: empty(),
      images: empty(),
      isos: empty(),
      nodes: empty(),
      namespaces: empty(),
      pods,
      emulatorPods: empty(),
      taskPods: empty(),
    } as unknown as PoolSources;
    this.#reconciler = new PoolReconciler({
      ...sources,
      config,
      clock: () => this.now,
      client,
      consistency: this.#consistency,
      recorder: { event: () => undefined } as never,
      metrics: { claimed: () => undefined, failed: () => undefined, ran: () => undefined },
      isLeader: () => true,
    });
  }

  /** VMs that the pool owns, with those that are being deleted. */
  get members(): VM[] {
    return [...this.vms.values()].filter((vm) => poolUidOf(vm) === 'pool');
  }

  get ready(): VM[] {
    return this.members.filter((vm) => isClaimable(vm, 'pool'));
  }

  deliver(vms: number, pools = 1): void {
    this.#vmCache.deliver(vms);
    this.#poolCache.deliver(pools);
  }

  /** Runs one reconcile, unless the caches lack the last writes. A failed request ends it. */
  async reconcile(): Promise<void> {
    if (!this.#consistency.ready(KEY)) {
      return;
    }
    try {
      await this.#reconciler.reconcile(KEY, { logger });
    } catch (error) {
      if (!(error instanceof DeadlineError) && !(error instanceof ApiError)) {
        throw error;
      }
    }
  }

  changePool(change: Partial<VMPool['spec']>): void {
    const { metadata, spec } = this.pool;
    const generation = (metadata.generation ?? 0) + 1;
    this.pool = {
      ...this.pool,
      metadata: { ...metadata, ...this.#next(), generation },
      spec: { ...spec, ...change },
    };
    this.#poolCache.add('put', this.pool);
  }

  changeTemplate(): void {
    const { cpu = 1 } = this.pool.spec.template.spec;
    this.changePool({ template: { spec: { image: 'registry.example/guest:1', cpu: cpu + 1 } } });
  }

  /** The hosts start the VMs, or the VMs fail. A VM is Ready, suspended or failed as its spec and the image say. */
  report(count: number): void {
    for (const vm of this.members.filter((one) => !this.#isReported(one)).slice(0, count)) {
      this.#reportVM(vm);
    }
  }

  #isReported({ metadata, status }: VM): boolean {
    return metadata.deletionTimestamp !== undefined || status?.observedGeneration === metadata.generation;
  }

  #reportVM(vm: VM): void {
    const now = timestamp(this.now);
    const { generation = 1 } = vm.metadata;
    const condition = {
      type: 'Ready',
      reason: 'Running',
      message: 'The machine runs',
      lastTransitionTime: now,
    };
    const failure = { reason: 'MachineFailed', message: 'no bootable disk', time: now };
    const status: VM['status'] = {
      observedGeneration: generation,
      nodeName: 'host',
      firstRunningTime: now,
      ...(this.isBroken && { failure }),
      conditions: [
        { ...condition, status: this.isBroken ? 'False' : 'True', observedGeneration: generation },
      ],
    };
    this.#store({ ...vm, status });
  }

  /** A user claims the ready VM at this place. */
  claim(place: number): void {
    const vm = this.ready[place % Math.max(1, this.ready.length)];
    if (vm !== undefined) {
      const { ownerReferences: _owners, ...metadata } = vm.metadata;
      const labels: Record<string, string> = { ...metadata.labels, [CLAIMED_FROM_LABEL]: 'ci' };
      delete labels[POOL_LABEL];
      const claimed = this.#store({ ...vm, metadata: { ...metadata, labels } });
      this.claimed.set(claimed.metadata.uid ?? '', claimed);
    }
  }

  /** The finalizers of deleted VMs go, so these VMs are gone. */
  collect(count: number): void {
    const deleted = [...this.vms.values()].filter(({ metadata }) => metadata.deletionTimestamp !== undefined);
    for (const vm of deleted.slice(0, count)) {
      this.vms.delete(vm.metadata.name);
      this.#vmCache.add('delete', { ...vm, metadata: { ...vm.metadata, ...this.#next() } });
    }
  }

  #next(): { resourceVersion: string } {
    this.#version += 1;
    return { resourceVersion: String(this.#version) };
  }

  #store(vm: VM): VM {
    const stored = { ...vm, metadata: { ...vm.metadata, ...this.#next() } };
    this.vms.set(vm.metadata.name, stored);
    this.#vmCache.add('put', stored);
    return stored;
  }

  /** Carries out a request, unless it or its answer is lost. */
  #send<T>(work: () => T): Promise<T> {
    const { fault } = this;
    this.fault = 'none';
    if (fault === 'lostRequest') {
      return Promise.reject(new DeadlineError('no answer'));
    }
    try {
      const result = work();
      return fault === 'lostAnswer'
        ? Promise.reject(new DeadlineError('no answer'))
        : Promise.resolve(result);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  #create(_type: Resource<VM>, vm: VM): Promise<VM> {
    return this.#send(() => {
      if (this.vms.has(vm.metadata.name)) {
        throw new ApiError('already exists', { status: 409, reason: 'AlreadyExists' });
      }
      this.created += 1;
      this.#uids += 1;
      const more = { uid: `vm-${this.#uids}`, generation: 1, creationTimestamp: timestamp(this.now) };
      const stored = this.#store({ ...structuredClone(vm), metadata: { ...vm.metadata, ...more } });
      const { replicas, update } = this.#poolCache.store.get(KEY)?.spec ?? this.pool.spec;
      const surge = update?.type === 'Replace' ? SURGE : 0;
      this.surplus = Math.max(this.surplus, this.members.length - replicas - surge);
      return stored;
    });
  }

  #patch(
    type: Resource<KubeObject>,
    { name }: { name: string },
    patch: Partial<VM & VMPool>,
  ): Promise<unknown> {
    return this.#send(() => {
      const isPool = type.kind === 'VMPool';
      const object = isPool ? this.pool : this.vms.get(name);
      if (object === undefined) {
        throw new ApiError('not found', { status: 404, reason: 'NotFound' });
      }
      if (object.metadata.resourceVersion !== patch.metadata?.resourceVersion) {
        throw conflict();
      }
      return isPool ? this.#patchPool(patch.status ?? {}) : this.#patchVM(object as VM, patch.spec ?? {});
    });
  }

  #patchPool(patch: object): VMPool {
    const metadata = { ...this.pool.metadata, ...this.#next() };
    this.pool = { ...this.pool, metadata, status: merge(this.pool.status ?? {}, patch) };
    this.#poolCache.add('put', this.pool);
    return this.pool;
  }

  #patchVM(vm: VM, spec: object): VM {
    this.lost += this.claimed.has(vm.metadata.uid ?? '') ? 1 : 0;
    const generation = (vm.metadata.generation ?? 0) + 1;
    return this.#store({ ...vm, metadata: { ...vm.metadata, generation }, spec: { ...vm.spec, ...spec } });
  }

  #delete(
    _type: Resource<VM>,
    { name }: { name: string },
    wanted: { uid: string; resourceVersion?: string },
  ): Promise<void> {
    return this.#send(() => {
      const vm = this.vms.get(name);
      if (vm === undefined || vm.metadata.deletionTimestamp !== undefined) {
        return;
      }
      const { resourceVersion = vm.metadata.resourceVersion } = wanted;
      if (vm.metadata.uid !== wanted.uid || vm.metadata.resourceVersion !== resourceVersion) {
        throw conflict();
      }
      this.lost += this.claimed.has(wanted.uid) ? 1 : 0;
      this.#store({ ...vm, metadata: { ...vm.metadata, deletionTimestamp: timestamp(this.now) } });
    });
  }

  #get(_type: Resource<VM>, { name }: { name: string }): Promise<VM> {
    return this.#send(() => {
      const vm = this.vms.get(name);
      if (vm === undefined) {
        throw new ApiError('not found', { status: 404, reason: 'NotFound' });
      }
      return vm;
    });
  }
}
