/** Starts the operator's parts in this order: servers → caches → election → controllers. Stops them in the reverse order. */
import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { LEADER_LABEL } from '../api/v1alpha1/names.ts';
import type { SaidReason } from '../api/v1alpha1/reasons.ts';
import { Authorizer } from '../kube/serving/authorization.ts';
import { KubeClient } from '../kube/client.ts';
import { type Connection, loadConnection } from '../kube/credentials.ts';
import { EventRecorder } from '../kube/events.ts';
import { Controller } from '../kube/controller.ts';
import { PODS } from '../kube/core.ts';
import type { RunningServer } from '../kube/serving/httpserver.ts';
import { type LeaderElection, runLeaderElection } from '../kube/lease.ts';
import { createMetrics } from '../kube/metrics.ts';
import { serveHealth, serveMetrics } from '../kube/serving/endpoints.ts';
import {
  type CertificateProvider,
  configuredCertificate,
  selfMadeCertificate,
} from '../kube/certificates/serving.ts';
import { Transport } from '../kube/transport.ts';
import type { OperatorConfig } from './config/config.ts';
import { type Controllers, createControllers } from './index.ts';

const LEASE_NAME = 'berth-operator';
/**
 * Time in milliseconds that running reconciles get to finish at a clean stop. It is well below the 30 s that Kubernetes gives a Pod to
 * stop.
 */
const DRAIN_MILLISECONDS = 15_000;
/**
 * Time in milliseconds that the operator spends on sending the last Events at a stop. A large number of Events can need more time, but the
 * next leader must not wait for them.
 */
const LAST_EVENTS_MILLISECONDS = 500;
const DAY_SECONDS = 24 * 3600;

export interface OperatorStart {
  readonly config: OperatorConfig;
  readonly kubeconfigPath: string | undefined;
  /** Name of the Pod of this process; undefined outside of a cluster. */
  readonly podName: string | undefined;
  readonly logger: Logger;
  /** Function that is called when this process is no longer the leader. The process must then end at once. */
  readonly onLost: () => void;
}

export class Operator {
  readonly #start: OperatorStart;
  readonly #registry: Registry;
  readonly #client: KubeClient;
  readonly #leaseClient: KubeClient;
  readonly #recorder: EventRecorder<SaidReason>;
  readonly #controllers: Controllers;
  readonly #leaderLabel: Controller | undefined;
  readonly #identity = `${hostname()}-${randomUUID()}`;
  readonly #candidacy = new AbortController();
  readonly #working = new AbortController();
  readonly #watching = new AbortController();
  readonly #servers: RunningServer[] = [];
  #election: LeaderElection | undefined;
  #isSynced = false;
  #isWorking = false;

  private constructor(start: OperatorStart, connection: Connection) {
    const { config, logger } = start;
    this.#start = start;
    this.#registry = createMetrics();
    const transportOptions = { metrics: this.#registry, userAgent: 'berth-operator' };
    this.#client = new KubeClient(new Transport(connection, transportOptions));
    this.#leaseClient = new KubeClient(new Transport(connection, transportOptions));
    this.#client.guard = () => this.#election?.isHeld() === true;
    this.#recorder = new EventRecorder<SaidReason>(this.#client, {
      reportingController: 'berth.dev/operator',
      reportingInstance: this.#identity,
      logger,
    });
    this.#controllers = createControllers({
      client: this.#client,
      config,
      recorder: this.#recorder,
      registry: this.#registry,
      logger,
      clock: Date.now,
      isLeader: () => this.#isWorking,
    });
    this.#leaderLabel = this.#labelController();
  }

  /**
   * Creates the controller that labels the Pod of the leader. The Service of the metrics selects only this Pod, because only the leader
   * exports the numbers of VMs. Every process also corrects the label of its Pod at its start. This is necessary after a crash: the former
   * leader restarts as a standby in its old Pod, which must then lose the label.
   */
  #labelController(): Controller | undefined {
    const { config, logger, podName: name } = this.#start;
    if (name === undefined) {
      return undefined;
    }
    return new Controller({
      name: 'leader-label',
      workers: 1,
      reconcile: async () => {
        const labels = { [LEADER_LABEL]: this.#isWorking ? 'true' : null };
        const pod = { namespace: config.namespaces.system, name };
        // This client is allowed to write even if the process is not the leader.
        await this.#leaseClient.mergePatch(PODS, pod, { metadata: { labels } });
        return undefined;
      },
      logger,
      metrics: this.#registry,
    });
  }

  /**
   * Starts an operator. Resolves when the servers listen. At that time, the caches can still be empty. When the caches are filled, the
   * operator takes part in the leader election.
   */
  static async start(start: OperatorStart): Promise<Operator> {
    const connection = await loadConnection({ kubeconfigPath: start.kubeconfigPath });
    const operator = new Operator(start, connection);
    await operator.#listen();
    operator.#watch();
    return operator;
  }

  async #listen(): Promise<void> {
    const { config, logger } = this.#start;
    const authorizer = new Authorizer(this.#leaseClient);
    const certificates = certificateProvider(config);
    this.#servers.push(
      await serveMetrics({
        listen: config.metrics.address,
        metrics: this.#registry,
        authorizer,
        certificates,
        logger,
      }),
      await serveHealth({
        listen: config.health.address,
        live: { process: () => undefined },
        ready: { caches: () => (this.#isSynced ? undefined : 'the caches are not filled yet') },
        logger,
      }),
    );
    logger.info({ metrics: config.metrics.address, health: config.health.address }, 'listening');
  }

  /** Starts the watches. Leader and standby both fill their caches, but only the controllers of the leader run. */
  #watch(): void {
    const { informers } = this.#controllers;
    this.#leaderLabel?.start(this.#watching.signal);
    this.#enqueueLabel();
    for (const informer of informers) {
      informer.start(this.#watching.signal);
    }
    Promise.all(informers.map((informer) => informer.synced)).then(
      () => this.#standForElection(),
      (error: unknown) =>
        this.#start.logger.debug({ err: error }, 'the operator stopped before its caches were filled'),
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
      onStartedLeading: () => this.#work(),
      onLost,
    });
  }

  #work(): void {
    this.#isWorking = true;
    this.#start.logger.info({ identity: this.#identity }, 'leading');
    for (const controller of this.#controllers.controllers) {
      controller.start(this.#working.signal);
    }
    this.#enqueueLabel();
  }

  #enqueueLabel(): void {
    const { podName } = this.#start;
    if (podName !== undefined) {
      this.#leaderLabel?.enqueue(podName);
    }
  }

  /** Finishes running reconciles, releases the lease, then ends the watches and the servers. */
  async stop(): Promise<void> {
    this.#start.logger.info('stopping');
    this.#candidacy.abort();
    if (this.#isWorking) {
      this.#working.abort();
      const drained = Promise.all(this.#controllers.controllers.map((controller) => controller.drained()));
      await Promise.race([drained, delay(DRAIN_MILLISECONDS, undefined, { ref: false })]);
      // The Events are sent before the lease is released, because only the leader is allowed to write.
      await this.#recorder.flush(LAST_EVENTS_MILLISECONDS);
      await this.#election?.release();
    }
    // A standby can be acquiring the lease. It then releases the lease, so that the next leader need not wait until the lease expires.
    await this.#election?.done;
    this.#watching.abort();
    await Promise.all(this.#servers.map((server) => server.close()));
  }
}

function certificateProvider({ metrics }: OperatorConfig): CertificateProvider {
  const { dnsNames, certificateLifetimeSeconds } = metrics;
  return configuredCertificate(metrics, () =>
    selfMadeCertificate({
      commonName: dnsNames[0] ?? 'berth-operator',
      dnsNames,
      ipAddresses: ['127.0.0.1'],
      days: certificateLifetimeSeconds / DAY_SECONDS,
    }),
  );
}
