/** Creates the watches and every controller. */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { KubeClient } from '../kube/client.ts';
import { Consistency } from '../kube/consistency.ts';
import { Controller, type ControllerOptions } from '../kube/controller.ts';
import type { Recorder } from './objects/events.ts';
import type { Informer } from '../kube/informer.ts';
import { type KubeObject, refOf } from '../kube/objects.ts';
import type { OperatorConfig } from './config/config.ts';
import { isServedNamespace } from '../api/v1alpha1/names.ts';
import { exportRunnerMetrics, VMMetrics } from './vm/metrics.ts';
import { IMAGES, ISOS } from '../api/v1alpha1/resources.ts';
import { EmulatorReconciler, enqueueEmulators } from './emulator/controller.ts';
import { exportEmulatorMetrics } from './emulator/phase.ts';
import { podKeyOf } from './emulator/observe.ts';
import { enqueueForeignPods, foreignPodExists, ForeignPodReconciler } from './foreignpods/controller.ts';
import { CertificateReconciler, enqueueRequests } from './certificates/controller.ts';
import { Adoptions } from './host/adoptions.ts';
import { HostApprovals } from './host/approvals.ts';
import { enqueueHosts, exportHostMetrics, HostReconciler } from './host/controller.ts';
import { type ImageControllerOptions, ImageReconciler } from './image/controller.ts';
import { enqueueImages } from './image/observe.ts';
import { HostRecords } from './host/records.ts';
import { enqueueEntries, ImageCacheReconciler } from './imagecache/controller.ts';
import { CacheMetrics } from './imagecache/metrics.ts';
import {
  enqueueRemovals,
  enqueueStorageWriters,
  RemovalReconciler,
  StorageWritersReconciler,
} from './imagestorage/controller.ts';
import {
  ClusterInfoReconciler,
  enqueueBindings,
  enqueueClusterInfo,
  RoleReconciler,
} from './roles/controller.ts';
import { enqueuePools, PoolReconciler } from './pool/controller.ts';
import { PoolJobs } from './pool/jobs.ts';
import { PoolMetrics } from './pool/metrics.ts';
import { enqueueYield, YieldReconciler } from './pool/yielding.ts';
import { SERVER_WORKERS, ServerReconciler } from './server/controller.ts';
import { createDriver } from './server/drivers/create.ts';
import { ServerMetrics } from './server/metrics.ts';
import { enqueueServers } from './server/observe.ts';
import { enqueueJobTimes, JobTimesReconciler } from './vm/times/controller.ts';
import { JobTimeMetrics } from './vm/times/metrics.ts';
import { AbandonedJobReconciler, enqueueAbandonedJobs } from './tasks/owner.ts';
import { DemandReconciler, enqueueDemand } from './server/demand/controller.ts';
import { VMReconciler } from './vm/controller.ts';
import { enqueueVMs } from './vm/triggers.ts';
import { declareWatches, type OperatorWatches } from './watches.ts';
import { enqueueSnapshots, SnapshotReconciler } from './snapshot/controller.ts';
import { exportSnapshotMetrics } from './snapshot/metrics.ts';

export interface OperatorOptions {
  readonly client: KubeClient;
  readonly config: OperatorConfig;
  readonly recorder: Recorder;
  readonly registry: Registry;
  readonly logger: Logger;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
  /** Returns true while this process is the leader. Only the leader exports metrics of VMs. */
  readonly isLeader: () => boolean;
}

export interface Controllers {
  /** All watches. The leader and the standby both start them, so that the caches of the standby are always filled. */
  readonly informers: readonly Informer<KubeObject>[];
  /** Controllers that only the leader starts. */
  readonly controllers: readonly Controller[];
}

/** What the operator keeps about hosts in ConfigMaps of its own namespace. */
interface HostState {
  readonly approvals: HostApprovals;
  readonly hostRecords: HostRecords;
  readonly adoptions: Adoptions;
}

export function createControllers(options: OperatorOptions): Controllers {
  const watches = declareWatches(options);
  const hostState = {
    approvals: new HostApprovals({ ...options, ...watches }),
    hostRecords: new HostRecords({ ...options, ...watches }),
    adoptions: new Adoptions(options),
  };
  const ofImages = imageController(options, watches, {
    kind: 'Image',
    resource: IMAGES,
    objects: watches.images,
  });
  const ofISOs = imageController(options, watches, { kind: 'ISO', resource: ISOS, objects: watches.isos });
  const { namespaces, storageWriters } = watches;
  // The key of a RoleBinding is queued even if the RoleBinding does not exist yet, but only while its namespace exists.
  const hasNamespace = (key: string) => namespaces.cache.get(refOf(key).namespace ?? '') !== undefined;
  const plain = plainControllers(options, watches);
  const times = new JobTimesReconciler({
    ...options,
    namespaces,
    metrics: new JobTimeMetrics(options.registry),
  });
  return {
    informers: Object.values(watches) as unknown as Informer<KubeObject>[],
    controllers: [
      vmController(options, watches, hostState),
      // One worker counts the snapshots of each VM.
      snapshotController(options, watches),
      ofImages,
      ofISOs,
      // Removes content from the image storage when no Image or ISO uses it any more.
      plain('removal', { workers: 1 }, RemovalReconciler, enqueueRemovals),
      imageCacheController(options, watches),
      // Deletes ended Jobs whose object no longer exists.
      plain('abandonedjob', { workers: 1 }, AbandonedJobReconciler, enqueueAbandonedJobs),
      hostController(options, watches, hostState),
      certificateController(options, watches, hostState),
      emulatorController(options, watches, hostState),
      poolController(options, watches, times),
      jobTimesController(options, watches, times),
      // Makes room for VMs that wait for a host. Its one worker keeps the pause between two deletions.
      plain('poolyield', { workers: 1 }, YieldReconciler, enqueueYield),
      // Creates and corrects the RoleBindings of served namespaces.
      plain('roles', { exists: hasNamespace }, RoleReconciler, enqueueBindings),
      // Lets hosts read the credentials of the image storage during their tasks.
      plain(
        'storagewriters',
        { workers: 1, exists: existsIn(storageWriters) },
        StorageWritersReconciler,
        enqueueStorageWriters,
      ),
      // Tells users whether there is an image storage.
      plain(
        'clusterinfo',
        { workers: 1, exists: existsIn(namespaces) },
        ClusterInfoReconciler,
        enqueueClusterInfo,
      ),
      // Removes Pods of other programs from hosts. Its one worker keeps the order of removals.
      plain(
        'foreignpods',
        { workers: 1, exists: foreignPodExists(watches) },
        ForeignPodReconciler,
        enqueueForeignPods,
      ),
      serverController(options, watches),
      ...(options.config.powerByDemand.enabled
        ? [plain('demand', { workers: 1 }, DemandReconciler, enqueueDemand)]
        : []),
    ],
  };
}

type Settings = Pick<ControllerOptions, 'exists'> & { readonly workers?: number };
type Reconciles = Pick<ControllerOptions, 'reconcile'>;
/** What a controller gets that needs nothing of its own. */
type PlainParts = OperatorOptions & OperatorWatches & { readonly consistency: Consistency };

/** Returns a function that creates controllers that need nothing of their own. */
function plainControllers(options: OperatorOptions, watches: OperatorWatches) {
  return (
    name: string,
    settings: Settings,
    Reconciler: new (parts: PlainParts) => Reconciles,
    enqueue: (controller: Controller, parts: PlainParts) => void,
  ): Controller => {
    const parts = { ...options, ...watches, consistency: new Consistency() };
    const controller = controllerFor(options, name, settings, new Reconciler(parts), parts.consistency);
    enqueue(controller, parts);
    return controller;
  };
}

function vmController(options: OperatorOptions, watches: OperatorWatches, hostState: HostState): Controller {
  const { client, config, recorder, registry, clock, isLeader } = options;
  const consistency = new Consistency();
  const metrics = new VMMetrics(registry, {
    isLeader,
    clock,
    vms: () => watches.vms.cache.list(),
    namespaces: () => servedNamespaces(watches, config),
  });
  watches.namespaces.cache.onChange(({ type, object }) => {
    if (type === 'deleted') {
      metrics.forget(object.metadata.name);
    }
  });
  const list = () => watches.vms.cache.list();
  exportRunnerMetrics(registry, { isLeader, clock, vms: list, config: config.runnerMetrics });
  const sources = { ...watches, ...hostState, client, config, clock };
  const reconciler = new VMReconciler({ ...sources, recorder, metrics, consistency });
  const exists = existsIn(watches.vms, watches.pods);
  const controller = controllerFor(
    options,
    'vm',
    { workers: config.workers, exists },
    reconciler,
    consistency,
  );
  enqueueVMs(controller, sources);
  return controller;
}

function snapshotController(options: OperatorOptions, watches: OperatorWatches): Controller {
  const { registry, config, isLeader } = options;
  const consistency = new Consistency();
  exportSnapshotMetrics(registry, {
    isLeader,
    snapshots: () => watches.snapshots.cache.list(),
    namespaces: () => servedNamespaces(watches, config),
  });
  const parts = { ...options, ...watches, consistency };
  const exists = existsIn(watches.snapshots);
  const reconciler = new SnapshotReconciler(parts);
  const controller = controllerFor(options, 'vmsnapshot', { workers: 1, exists }, reconciler, consistency);
  enqueueSnapshots(controller, parts);
  return controller;
}

function imageController(
  options: OperatorOptions,
  watches: OperatorWatches,
  about: Pick<ImageControllerOptions, 'kind' | 'resource' | 'objects'>,
): Controller {
  const consistency = new Consistency();
  const reconciler = new ImageReconciler({ ...options, ...watches, ...about, consistency });
  const exists = existsIn(about.objects);
  const controller = controllerFor(options, about.kind.toLowerCase(), { exists }, reconciler, consistency);
  enqueueImages(controller, { ...options, ...watches, ...about });
  return controller;
}

function hostController(
  options: OperatorOptions,
  watches: OperatorWatches,
  { approvals, hostRecords, adoptions }: HostState,
): Controller {
  const { registry, isLeader } = options;
  exportHostMetrics(registry, { isLeader, nodes: () => watches.nodes.cache.list() });
  const reconciler = new HostReconciler({ ...options, ...watches, approvals, hostRecords, adoptions });
  const exists = reconciler.exists.bind(reconciler);
  const controller = controllerFor(options, 'host', { exists }, reconciler, hostRecords);
  enqueueHosts(controller, reconciler, watches);
  return controller;
}

/**
 * Creates the controller for certificates. Two certificate requests can be for the same host name, and the decision about the second one
 * depends on the decision about the first one. Therefore the controller has only one worker. This worker begins a decision only when the
 * cache contains its previous decision.
 */
function certificateController(
  o: OperatorOptions,
  watches: OperatorWatches,
  hostState: HostState,
): Controller {
  const reconciler = new CertificateReconciler({ ...o, ...watches, ...hostState });
  const exists = existsIn(watches.requests);
  const controller = controllerFor(o, 'certificate', { workers: 1, exists }, reconciler, reconciler);
  enqueueRequests(controller, watches);
  return controller;
}

function serverController(options: OperatorOptions, watches: OperatorWatches): Controller {
  const { client, config, recorder, registry, clock, isLeader } = options;
  const consistency = new Consistency();
  const metrics = new ServerMetrics(registry, { isLeader, servers: () => watches.servers.cache.list() });
  const systemNamespace = config.namespaces.system;
  const own = { client, recorder, consistency, metrics, clock, systemNamespace, createDriver };
  const reconciler = new ServerReconciler({ ...watches, ...own });
  const exists = reconciler.exists.bind(reconciler);
  const controller = controllerFor(
    options,
    'server',
    { workers: SERVER_WORKERS, exists },
    reconciler,
    consistency,
  );
  enqueueServers(controller, watches);
  return controller;
}

/** Creates the controller that stores how long jobs waited and ran. */
function jobTimesController(
  options: OperatorOptions,
  watches: OperatorWatches,
  times: JobTimesReconciler,
): Controller {
  watches.namespaces.cache.onChange(({ type, object }) => {
    if (type === 'deleted') {
      times.forget(object.metadata.name);
    }
  });
  watches.vms.cache.onChange((change) => times.observe(change));
  const controller = controllerFor(options, 'jobtimes', { workers: 1 }, times, new Consistency());
  enqueueJobTimes(controller, times);
  return controller;
}

function poolController(
  options: OperatorOptions,
  watches: OperatorWatches,
  times: JobTimesReconciler,
): Controller {
  const { registry, isLeader } = options;
  const consistency = new Consistency();
  const metrics = new PoolMetrics(registry, {
    isLeader,
    pools: () => watches.pools.cache.list(),
    onTime: ({ metadata: { namespace = '' } }, measure, seconds) => times.add(namespace, measure, seconds),
  });
  watches.namespaces.cache.onChange(({ type, object }) => {
    if (type === 'deleted') {
      metrics.forget(object.metadata.name);
    }
  });
  watches.pools.cache.onChange(({ type, object }) => {
    if (type === 'deleted') {
      metrics.forgetPool(object);
    }
  });
  const jobs = new PoolJobs({ ...options, ...watches, metrics });
  watches.vms.cache.onChange((change) => jobs.observe(change));
  const reconciler = new PoolReconciler({ ...options, ...watches, consistency, metrics });
  const controller = controllerFor(
    options,
    'pool',
    { exists: existsIn(watches.pools) },
    reconciler,
    consistency,
  );
  enqueuePools(controller, reconciler, { ...options, ...watches });
  return controller;
}

function imageCacheController(options: OperatorOptions, watches: OperatorWatches): Controller {
  const { client, config, recorder, registry, clock, isLeader } = options;
  const consistency = new Consistency();
  const metrics = new CacheMetrics(registry, { isLeader, entries: () => watches.entries.cache.list() });
  const sources = { ...watches, config, clock };
  const reconciler = new ImageCacheReconciler({ ...sources, client, recorder, metrics, consistency });
  const exists = existsIn(watches.entries);
  const controller = controllerFor(options, 'imagecache', { exists }, reconciler, consistency);
  enqueueEntries(controller, sources);
  return controller;
}

function emulatorController(
  options: OperatorOptions,
  watches: OperatorWatches,
  hostState: HostState,
): Controller {
  const { registry, config, isLeader } = options;
  const consistency = new Consistency();
  exportEmulatorMetrics(registry, {
    isLeader,
    emulators: () => watches.emulators.cache.list(),
    namespaces: () => servedNamespaces(watches, config),
  });
  const sources = { ...options, ...watches, ...hostState };
  const reconciler = new EmulatorReconciler({ ...sources, consistency });
  const { emulators, emulatorPods } = watches;
  const exists = existsIn(emulators, { cache: { get: (key) => emulatorPods.cache.get(podKeyOf(key)) } });
  const controller = controllerFor(options, 'emulator', { exists }, reconciler, consistency);
  enqueueEmulators(controller, sources);
  return controller;
}

function servedNamespaces({ namespaces }: OperatorWatches, config: OperatorConfig): string[] {
  const names = namespaces.cache.list().map(({ metadata }) => metadata.name);
  return names.filter((name) => isServedNamespace(name, config.namespaces));
}

/**
 * Number of workers for objects that change rarely. There are several workers, so that a slow response for one object does not delay the
 * others.
 */
const FEW_WORKERS = 4;

/** Creates a controller that runs the reconciler. `own.ready` returns true if the cache contains this process's latest change for a key. */
function controllerFor(
  { logger, registry }: { readonly logger: Logger; readonly registry: Registry },
  name: string,
  { workers = FEW_WORKERS, exists = () => true }: Settings,
  reconciler: Reconciles,
  own: { ready: (key: string) => boolean } = { ready: () => true },
): Controller {
  const reconcile = reconciler.reconcile.bind(reconciler);
  const ready = own.ready.bind(own);
  return new Controller({ name, workers, reconcile, ready, exists, logger, metrics: registry });
}

/** Returns a function that tells whether one of the caches has an object for a key. */
function existsIn(...informers: { readonly cache: { get(key: string): unknown } }[]) {
  return (key: string): boolean => informers.some(({ cache }) => cache.get(key) !== undefined);
}
