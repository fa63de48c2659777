/** Starts the runners for GitHub. */
import { hostname } from 'node:os';
import type { Logger } from 'pino';
import { HOST_KEY, HOST_VALUE, SCALE_SET_LABEL, WORKLOAD_LABEL } from '../api/v1alpha1/names.ts';
import type { Reason } from '../api/v1alpha1/reasons.ts';
import type { Image } from '../api/v1alpha1/image.ts';
import type { ISO } from '../api/v1alpha1/iso.ts';
import { IMAGES, ISOS, RUNNER_SETS, VM_CONFIGS, VMS } from '../api/v1alpha1/resources.ts';
import { Addresses } from '../base/addresses.ts';
import { Proxies } from '../base/proxy.ts';
import type { VM } from '../api/v1alpha1/vm.ts';
import type { KubeClient } from '../kube/client.ts';
import { Consistency } from '../kube/consistency.ts';
import { Controller } from '../kube/controller.ts';
import { NAMESPACES, type Node, NODES, type Pod, PODS } from '../kube/core.ts';
import { Informer } from '../kube/informer.ts';
import { type LedParts, LedProgram, type LedTools } from '../kube/ledprogram.ts';
import { type KubeObject, keepFields, keyOf, type ObjectMeta, type OwnerReference } from '../kube/objects.ts';
import type { Running } from '../kube/program.ts';
import type { RunnersConfig } from './config.ts';
import { type NamespaceWatches, RunnerSetReconciler, VMS_BY_SET } from './controller.ts';
import type { GitHubNetwork } from './github/http.ts';
import { RunnerMetrics } from './metrics.ts';

const ADVICE = 'to allow this server, name it in privateServers (chart value runners.privateServers)';
/** Sets that are reconciled at the same time. A set waits for GitHub, and a silent server must not delay the sets of others. */
const WORKERS = 64;

export interface RunnersStart {
  readonly config: RunnersConfig;
  readonly kubeconfigPath: string | undefined;
  readonly logger: Logger;
  /** Called when this process is no longer the leader. The process must then end at once. */
  readonly onLost: () => void;
}

/** Resolves when the servers of the program listen. At that time, its caches can still be empty. */
export async function startRunners(start: RunnersStart): Promise<Running> {
  const { config } = start;
  return await LedProgram.start<Reason>({
    ...start,
    name: 'berth-runners',
    reportingController: 'berth.dev/runners',
    createParts: (tools) => createParts(config, tools),
  });
}

function createParts(config: RunnersConfig, tools: LedTools<Reason>): LedParts {
  const { client, registry, logger, isLeader } = tools;
  const watches = new Map(
    config.namespaces.served.map((name) => [name, watchNamespace(client, name, logger)]),
  );
  const cluster = watchCluster(client, logger);
  const consistency = new Consistency();
  const reconciler = new RunnerSetReconciler({
    ...tools,
    ...cluster,
    watches,
    defaultNamespace: config.namespaces.default,
    config,
    consistency,
    metrics: new RunnerMetrics(registry, {
      isLeader,
      sets: () => [...watches.values()].flatMap(({ sets }) => sets.cache.list()),
    }),
    network: readNetwork(config),
    owner: hostname(),
    clock: Date.now,
    enqueue: (key) => controller.enqueue(key),
  });
  const controller = new Controller({
    name: 'runnerset',
    workers: WORKERS,
    reconcile: reconciler.reconcile.bind(reconciler),
    ready: consistency.ready.bind(consistency),
    logger,
    metrics: registry,
  });
  enqueueSets(
    [...watches.values()],
    controller.enqueue.bind(controller),
    reconciler.observe.bind(reconciler),
  );
  const groups = [cluster, ...watches.values()];
  return {
    informers: groups.flatMap((group) => Object.values(group) as Informer<KubeObject>[]),
    controllers: [controller],
    end: reconciler.stop.bind(reconciler),
  };
}

function readNetwork({ clusterCIDRs, privateServers }: RunnersConfig): GitHubNetwork {
  return {
    proxies: new Proxies(process.env),
    addresses: new Addresses({
      refusesPrivate: true,
      clusterCIDRs,
      namedHosts: privateServers,
      advice: ADVICE,
    }),
  };
}

function watchNamespace(client: KubeClient, namespace: string, logger: Logger): NamespaceWatches {
  return {
    sets: new Informer(client, RUNNER_SETS, { namespace, logger }),
    vms: new Informer(client, VMS, {
      namespace,
      labelSelector: SCALE_SET_LABEL,
      logger,
      indexes: {
        [VMS_BY_SET]: ({ metadata }) => ownersOf(metadata).map(({ uid }) => uid),
      },
    }),
    configs: new Informer(client, VM_CONFIGS, { namespace, logger }),
    images: new Informer<Image>(client, IMAGES, { namespace, transform: trimImage, logger }),
    isos: new Informer<ISO>(client, ISOS, { namespace, transform: trimImage, logger }),
  };
}

/** Keeps what tells of the guests of an Image or ISO. */
function trimImage<T extends Image | ISO>({ apiVersion, kind, metadata, spec, status }: T): T {
  return {
    apiVersion,
    kind,
    metadata: keepFields(metadata, ['name', 'namespace', 'uid', 'resourceVersion']),
    spec,
    status: keepFields(status ?? {}, ['content', 'size']),
  } as unknown as T;
}

/** Watches what decides about free places: hosts, and the Pods that hold or want their slots. */
function watchCluster(client: KubeClient, logger: Logger) {
  return {
    nodes: new Informer(client, NODES, {
      labelSelector: `${HOST_KEY}=${HOST_VALUE}`,
      transform: trimNode,
      logger,
    }),
    pods: new Informer(client, PODS, {
      labelSelector: `${WORKLOAD_LABEL} in (vm,emulator,cache)`,
      transform: trimPod,
      logger,
    }),
    namespaces: new Informer(client, NAMESPACES, { logger }),
  };
}

function trimNode({ apiVersion, kind, metadata, spec, status = {} }: Node): Node {
  return {
    apiVersion,
    kind,
    metadata: keepFields(metadata, ['name', 'labels', 'uid', 'resourceVersion']),
    ...(spec && { spec }),
    status: keepFields(status, ['allocatable', 'conditions']),
  };
}

/** Fields of a Pod without a host that tell where it can run. */
const PLACING = ['nodeSelector', 'affinity', 'tolerations'] as const;

function trimPod({ apiVersion, kind, metadata, spec, status }: Pod): Pod {
  const containers = spec.containers.map((container) =>
    keepFields(container, ['name', 'image', 'resources', 'ports']),
  );
  return {
    apiVersion,
    kind,
    metadata: keepFields(metadata, ['name', 'namespace', 'uid', 'resourceVersion', 'deletionTimestamp']),
    spec: { ...keepFields(spec, spec.nodeName === undefined ? PLACING : ['nodeName']), containers },
    status: keepFields(status ?? {}, ['phase']),
  };
}

/** Returns the RunnerSets that the VM was made for. */
function ownersOf({ ownerReferences = [] }: ObjectMeta): OwnerReference[] {
  return ownerReferences.filter(
    ({ apiVersion, kind, controller }) =>
      apiVersion === RUNNER_SETS.apiVersion && kind === RUNNER_SETS.kind && controller === true,
  );
}

/** Adds the keys of sets that changed, or whose VMs changed, and takes note of these VMs. */
function enqueueSets(
  watches: readonly NamespaceWatches[],
  enqueue: (key: string) => void,
  observe: (key: string, vm: Readonly<VM>) => void,
): void {
  for (const { sets, vms } of watches) {
    sets.cache.onChange(({ object }) => enqueue(keyOf(object)));
    vms.cache.onChange(({ object }) => {
      const { namespace = '' } = object.metadata;
      for (const { name } of ownersOf(object.metadata)) {
        const key = keyOf({ metadata: { namespace, name } });
        observe(key, object);
        enqueue(key);
      }
    });
  }
}
