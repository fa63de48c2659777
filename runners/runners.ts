/** Starts the parts of the runners for GitHub in this order: servers → caches → election → controller. Stops them in the reverse order. */
import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { HOST_KEY, HOST_VALUE, SCALE_SET_LABEL, WORKLOAD_LABEL } from '../api/v1alpha1/names.ts';
import type { Reason } from '../api/v1alpha1/reasons.ts';
import { RUNNER_SETS, VM_CONFIGS, VMS } from '../api/v1alpha1/resources.ts';
import { Proxies } from '../base/proxy.ts';
import { configuredCertificate, selfMadeCertificate } from '../kube/certificates/serving.ts';
import { KubeClient } from '../kube/client.ts';
import { Consistency } from '../kube/consistency.ts';
import { Controller } from '../kube/controller.ts';
import { NAMESPACES, type Node, NODES, type Pod, PODS } from '../kube/core.ts';
import { type Connection, loadConnection } from '../kube/credentials.ts';
import { EventRecorder } from '../kube/events.ts';
import { Informer } from '../kube/informer.ts';
import { type LeaderElection, runLeaderElection } from '../kube/lease.ts';
import { createMetrics } from '../kube/metrics.ts';
import { type KubeObject, keepFields, keyOf } from '../kube/objects.ts';
import { Authorizer } from '../kube/serving/authorization.ts';
import { serveHealth, serveMetrics } from '../kube/serving/endpoints.ts';
import type { RunningServer } from '../kube/serving/httpserver.ts';
import { Transport } from '../kube/transport.ts';
import type { RunnersConfig } from './config.ts';
import { type NamespaceWatches, RunnerSetReconciler, VMS_BY_SET } from './controller.ts';
import { RunnerMetrics } from './metrics.ts';

const LEASE_NAME = 'berth-runners';
/** Sets that are reconciled at the same time. A set waits for GitHub, and a silent server must not delay the sets of others. */
const WORKERS = 64;
/** Time in milliseconds for running passes, and for the ends of the message sessions. Kubernetes gives a Pod 30 s to stop. */
const DRAIN_MILLISECONDS = 15_000;
/** Time in milliseconds for the last Events. */
const LAST_EVENTS_MILLISECONDS = 500;

export interface RunnersStart {
  readonly config: RunnersConfig;
  readonly kubeconfigPath: string | undefined;
  readonly logger: Logger;
  /** Called when this process is no longer the leader. The process must then end at once. */
  readonly onLost: () => void;
}

export class Runners {
  readonly #start: RunnersStart;
  readonly #registry: Registry = createMetrics();
  readonly #client: KubeClient;
  readonly #leaseClient: KubeClient;
  readonly #recorder: EventRecorder<Reason>;
  readonly #identity = `${hostname()}-${randomUUID()}`;
  readonly #candidacy = new AbortController();
  readonly #working = new AbortController();
  readonly #watching = new AbortController();
  readonly #servers: RunningServer[] = [];
  readonly #informers: readonly Informer<KubeObject>[];
  readonly #controller: Controller;
  readonly #reconciler: RunnerSetReconciler;
  #election: LeaderElection | undefined;
  #isSynced = false;
  #isWorking = false;

  private constructor(start: RunnersStart, connection: Connection) {
    const { config, logger } = start;
    this.#start = start;
    const options = { metrics: this.#registry, userAgent: 'berth-runners' };
    this.#client = new KubeClient(new Transport(connection, options));
    this.#leaseClient = new KubeClient(new Transport(connection, options));
    this.#client.guard = () => this.#election?.isHeld() === true;
    this.#recorder = new EventRecorder<Reason>(this.#client, {
      reportingController: 'berth.dev/runners',
      reportingInstance: this.#identity,
      logger,
    });
    const watches = new Map(
      config.namespaces.served.map((name) => [name, watchNamespace(this.#client, name, logger)]),
    );
    const cluster = watchCluster(this.#client, logger);
    this.#informers = [cluster, ...watches.values()].flatMap(
      (group) => Object.values(group) as Informer<KubeObject>[],
    );
    const consistency = new Consistency();
    this.#reconciler = new RunnerSetReconciler({
      client: this.#client,
      watches,
      defaultNamespace: config.namespaces.default,
      ...cluster,
      consistency,
      recorder: this.#recorder,
      metrics: new RunnerMetrics(this.#registry, {
        isLeader: () => this.#isWorking,
        sets: () => [...watches.values()].flatMap(({ sets }) => sets.cache.list()),
      }),
      proxies: new Proxies(process.env),
      owner: hostname(),
      logger,
      clock: Date.now,
      enqueue: (key) => this.#controller.enqueue(key),
      signal: this.#working.signal,
    });
    this.#controller = new Controller({
      name: 'runnerset',
      workers: WORKERS,
      reconcile: this.#reconciler.reconcile.bind(this.#reconciler),
      ready: consistency.ready.bind(consistency),
      logger,
      metrics: this.#registry,
    });
    enqueueSets(this.#controller, [...watches.values()]);
  }

  /** Resolves when the servers listen. The caches can still be empty then. When they are filled, this process takes part in the election. */
  static async start(start: RunnersStart): Promise<Runners> {
    const connection = await loadConnection({ kubeconfigPath: start.kubeconfigPath });
    const runners = new Runners(start, connection);
    await runners.#listen();
    runners.#watch();
    return runners;
  }

  /** Port of the metrics. */
  get metricsPort(): number {
    return this.#servers[0]?.port ?? 0;
  }

  async #listen(): Promise<void> {
    const { config, logger } = this.#start;
    const { metrics, health } = config;
    const selfMade = () =>
      selfMadeCertificate({
        commonName: metrics.dnsNames[0] ?? LEASE_NAME,
        dnsNames: metrics.dnsNames,
        ipAddresses: ['127.0.0.1'],
      });
    this.#servers.push(
      await serveMetrics({
        listen: metrics.address,
        metrics: this.#registry,
        authorizer: new Authorizer(this.#leaseClient),
        certificates: configuredCertificate(metrics, selfMade),
        logger,
      }),
      await serveHealth({
        listen: health.address,
        live: { process: () => undefined },
        ready: { caches: () => (this.#isSynced ? undefined : 'the caches are not filled yet') },
        logger,
      }),
    );
    logger.info({ metrics: metrics.address, health: health.address }, 'listening');
  }

  #watch(): void {
    const { logger } = this.#start;
    for (const informer of this.#informers) {
      informer.start(this.#watching.signal);
    }
    Promise.all(this.#informers.map((informer) => informer.synced)).then(
      () => this.#standForElection(),
      (error: unknown) => logger.debug({ err: error }, 'stopped before the caches were filled'),
    );
  }

  #standForElection(): void {
    const { config, logger, onLost } = this.#start;
    const { leaseDurationSeconds, renewDeadlineSeconds, retryPeriodSeconds } = config.leaderElection;
    this.#isSynced = true;
    this.#election = runLeaderElection({
      client: this.#leaseClient,
      namespace: config.namespaces.system,
      name: LEASE_NAME,
      identity: this.#identity,
      lease: {
        duration: leaseDurationSeconds * 1000,
        renewDeadline: renewDeadlineSeconds * 1000,
        retry: retryPeriodSeconds * 1000,
      },
      logger,
      signal: this.#candidacy.signal,
      metrics: this.#registry,
      onStartedLeading: () => {
        this.#isWorking = true;
        this.#controller.start(this.#working.signal);
      },
      onLost,
    });
  }

  /** Finishes running passes, ends the message sessions and releases the lease. Then ends the watches and the servers. */
  async stop(): Promise<void> {
    this.#candidacy.abort();
    if (this.#isWorking) {
      this.#working.abort();
      const ended = this.#controller.drained().then(async () => await this.#reconciler.stop());
      await Promise.race([ended, delay(DRAIN_MILLISECONDS, undefined, { ref: false })]);
      await this.#recorder.flush(LAST_EVENTS_MILLISECONDS);
      await this.#election?.release();
    }
    await this.#election?.done;
    this.#watching.abort();
    await Promise.all(this.#servers.map((server) => server.close()));
  }
}

function watchNamespace(client: KubeClient, namespace: string, logger: Logger): NamespaceWatches {
  return {
    sets: new Informer(client, RUNNER_SETS, { namespace, logger }),
    vms: new Informer(client, VMS, {
      namespace,
      labelSelector: SCALE_SET_LABEL,
      logger,
      indexes: {
        [VMS_BY_SET]: ({ metadata }) =>
          (metadata.ownerReferences ?? [])
            .filter(({ kind }) => kind === RUNNER_SETS.kind)
            .map(({ uid }) => uid),
      },
    }),
    configs: new Informer(client, VM_CONFIGS, { namespace, logger }),
  };
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

function trimPod({ apiVersion, kind, metadata, spec, status }: Pod): Pod {
  const containers = spec.containers.map((container) =>
    keepFields(container, ['name', 'image', 'resources']),
  );
  return {
    apiVersion,
    kind,
    metadata: keepFields(metadata, ['name', 'namespace', 'uid', 'resourceVersion']),
    spec: { ...keepFields(spec, ['nodeName']), containers },
    status: keepFields(status ?? {}, ['phase']),
  };
}

/** Adds the keys of sets that changed, or whose VMs changed. */
function enqueueSets(controller: Controller, watches: readonly NamespaceWatches[]): void {
  for (const { sets, vms } of watches) {
    sets.cache.onChange(({ object }) => controller.enqueue(keyOf(object)));
    vms.cache.onChange(({ object: { metadata } }) => {
      for (const { kind, name } of metadata.ownerReferences ?? []) {
        if (kind === RUNNER_SETS.kind) {
          controller.enqueue(keyOf({ metadata: { namespace: metadata.namespace ?? '', name } }));
        }
      }
    });
  }
}
