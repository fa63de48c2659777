/** Watches the Nodes of hosts, the Pods on hosts, namespaces, pools and their VMs, with the server's own identity. */
import { EventEmitter, on } from 'node:events';
import { LRUCache } from 'lru-cache';
import type { Logger } from 'pino';
import type { ClaimAttempts, PoolMembers } from '../../actions/claim.ts';
import { listedImages } from '../../api/v1alpha1/reference.ts';
import {
  CORDONED_FOR_ANNOTATION,
  HOST_MARK,
  HOST_VALUE,
  POOL_LABEL,
  WORKLOAD_LABEL,
} from '../../api/v1alpha1/names.ts';
import { isClaimable, poolUidOf } from '../../api/v1alpha1/poolmembers.ts';
import { VM_POOLS, VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMPool } from '../../api/v1alpha1/vmpool.ts';
import { isHostCondition } from '../../api/http/host.ts';
import { keepFields } from '../../kube/objects.ts';
import type { KubeClient } from '../../kube/client.ts';
import { NAMESPACES, type Namespace, NODES, type Node, PODS, type Pod } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { StatusError } from '../http/errors.ts';

/** Name of the index that finds Pods by the Node to which they are bound. */
const PODS_BY_NODE = 'node';
/** Name of the index that finds VMs by the key (`namespace/name`) of the pool in their label. */
const VMS_BY_POOL = 'pool';
/** Largest number of versions of VMs whose claims are known. It is many times the number of claims within the delay of a watch. */
const ATTEMPTS = 8_192;

export class ServerWatches {
  readonly #nodes: Informer<Node>;
  readonly #pods: Informer<Pod>;
  readonly #namespaces: Informer<Namespace>;
  readonly #pools: Informer<VMPool>;
  readonly #poolVMs: Informer<VM>;
  /** Emits the VMs of pools that become ready, by the key of the pool. */
  readonly #readyVMs = new EventEmitter().setMaxListeners(0);
  readonly #attempts = new LRUCache<string, true>({ max: ATTEMPTS });
  #isFilled = false;

  constructor(client: KubeClient, logger: Logger) {
    this.#nodes = new Informer(client, NODES, {
      logger,
      labelSelector: `${HOST_MARK}=${HOST_VALUE}`,
      transform: trimNode,
    });
    this.#pods = new Informer(client, PODS, {
      logger,
      labelSelector: WORKLOAD_LABEL,
      transform: trimPod,
      indexes: { [PODS_BY_NODE]: ({ spec: { nodeName } }) => (nodeName === undefined ? [] : [nodeName]) },
    });
    this.#namespaces = new Informer(client, NAMESPACES, { logger });
    this.#pools = new Informer(client, VM_POOLS, { logger, transform: trimPool });
    this.#poolVMs = new Informer(client, VMS, {
      logger,
      labelSelector: POOL_LABEL,
      transform: trimVM,
      indexes: { [VMS_BY_POOL]: (vm) => [poolKeyOf(vm)] },
    });
    this.#poolVMs.cache.onChange(({ type, object }) => {
      if (type !== 'deleted' && isClaimable(object, poolUidOf(object))) {
        this.#readyVMs.emit(poolKeyOf(object), object);
      }
    });
  }

  start(signal: AbortSignal): void {
    const informers = [this.#nodes, this.#pods, this.#namespaces, this.#pools, this.#poolVMs];
    informers.forEach((informer) => informer.start(signal));
    Promise.all(informers.map(({ synced }) => synced)).then(
      () => {
        this.#isFilled = true;
      },
      () => undefined,
    );
  }

  /** Returns the reason why the server cannot answer requests yet. The result is undefined if the server can answer. */
  unready(): string | undefined {
    return this.#isFilled ? undefined : 'the caches are not filled yet';
  }

  /** Returns the Nodes of all hosts. @throws StatusError 503 before all watched objects have been read. */
  hosts(): readonly Readonly<Node>[] {
    this.#requireFilled();
    return this.#nodes.cache.list();
  }

  host(name: string): Readonly<Node> | undefined {
    this.#requireFilled();
    return this.#nodes.cache.get(name);
  }

  /** Returns the architecture of a host and of its machines. The result is undefined if the host is not known. */
  architectureOf(name: string): string | undefined {
    const { metadata, status } = this.#nodes.cache.get(name) ?? {};
    return status?.nodeInfo?.architecture ?? metadata?.labels?.['kubernetes.io/arch'];
  }

  /** Returns the Pods of machines and tasks that are bound to the host. */
  podsOn(host: string): readonly Readonly<Pod>[] {
    return this.#pods.cache.byIndex(PODS_BY_NODE, host);
  }

  /** Pools and their VMs. @throws StatusError 503 before all watched objects have been read. */
  readonly members: PoolMembers = {
    pool: ({ namespace, name }) => {
      const pool = this.#pools.cache.get(`${namespace}/${name}`);
      const isOpen = pool?.spec.mode !== 'OneShot' && pool?.metadata.deletionTimestamp === undefined;
      return isOpen ? pool : undefined;
    },
    list: async ({ metadata: { namespace, name } }) => {
      this.#requireFilled();
      const items = this.#poolVMs.cache.byIndex(VMS_BY_POOL, `${namespace}/${name}`);
      return await Promise.resolve({ items, resourceVersion: this.#poolVMs.cache.resourceVersion });
    },
    follow: ({ metadata: { namespace, name } }, _resourceVersion, signal) =>
      this.#readyMembers(`${namespace}/${name}`, signal),
  };

  /** Claims of all callers of this process. */
  readonly attempts: ClaimAttempts = {
    has: (version) => this.#attempts.has(version),
    add: (version) => void this.#attempts.set(version, true),
    delete: (version) => this.#attempts.delete(version),
  };

  /** Yields each VM of the pool that becomes ready from now on. @throws the signal's reason when the signal aborts. */
  async *#readyMembers(key: string, signal: AbortSignal): AsyncGenerator<Readonly<VM>> {
    try {
      for await (const [vm] of on(this.#readyVMs, key, { signal })) {
        yield vm as Readonly<VM>;
      }
    } catch (error) {
      signal.throwIfAborted();
      throw error;
    }
  }

  /** Returns all namespaces of the cluster. @throws StatusError 503 before all watched objects have been read. */
  namespaces(): readonly Readonly<Namespace>[] {
    this.#requireFilled();
    return this.#namespaces.cache.list();
  }

  namespace(name: string): Readonly<Namespace> | undefined {
    this.#requireFilled();
    return this.#namespaces.cache.get(name);
  }

  #requireFilled(): void {
    if (!this.#isFilled) {
      throw new StatusError(
        503,
        'The HTTP API is starting and has not read all watched objects yet. Try again later',
      );
    }
  }
}

/** Removes fields that no answer shows, for example conditions whose times an agent updates again and again. */
function trimNode({ metadata, status = {}, ...node }: Node): Node {
  const { capacity: _capacity, conditions = [], images, ...rest } = status;
  const shown = conditions
    .filter(({ type }) => isHostCondition(type))
    .map((condition) => keepFields(condition, ['type', 'status', 'reason', 'message']));
  const { annotations = {}, ...kept } = metadata;
  return {
    ...node,
    metadata: { ...kept, annotations: keepFields(annotations, [CORDONED_FOR_ANNOTATION]) },
    status: { ...rest, conditions: shown, images: listedImages(images) },
  };
}

/** Keeps only the fields of a Pod that the server reads. */
function trimPod({ apiVersion, kind, metadata, spec, status }: Pod): Pod {
  return {
    apiVersion,
    kind,
    metadata: keepFields(metadata, ['name', 'namespace', 'uid', 'resourceVersion', 'labels']),
    spec: {
      ...keepFields(spec, ['nodeName']),
      containers: spec.containers.map((container) => keepFields(container, ['name', 'image', 'resources'])),
    },
    ...(status?.phase === undefined ? {} : { status: { phase: status.phase } }),
  };
}

/** Returns the key (`namespace/name`) of the pool in the label of the VM. */
function poolKeyOf({ metadata: { namespace, labels } }: Readonly<VM>): string {
  return `${namespace}/${labels?.[POOL_LABEL]}`;
}

/** Keeps only the fields of a pool that the claim of a ready VM reads. The template is not among them. */
function trimPool({ apiVersion, kind, metadata, spec, status }: VMPool): VMPool {
  return {
    apiVersion,
    kind,
    metadata: keepFields(metadata, ['name', 'namespace', 'uid', 'resourceVersion', 'deletionTimestamp']),
    spec: { ...keepFields(spec, ['mode', 'replicas']), template: { spec: {} } },
    status: keepFields(status ?? {}, ['revision']),
  };
}

/** Keeps only the fields of a pool's VM that a claim reads. */
function trimVM({ apiVersion, kind, metadata, spec, status }: VM): VM {
  const { annotations: _annotations, finalizers: _finalizers, ...kept } = metadata;
  const conditions = status?.conditions?.filter(({ type }) => type === 'Ready');
  return { apiVersion, kind, metadata: kept, spec: keepFields(spec, ['powerState']), status: { conditions } };
}
