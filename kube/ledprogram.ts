/**
 * Skeleton of a program whose replicas elect a leader. It starts its parts in this order: servers → caches → election → controllers. It
 * stops them in the reverse order.
 */
import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { CertificateFiles } from '../base/config.ts';
import { configuredCertificate, selfMadeCertificate } from './certificates/serving.ts';
import { KubeClient } from './client.ts';
import { Controller } from './controller.ts';
import { PODS } from './core.ts';
import { type Connection, loadConnection } from './credentials.ts';
import { EventRecorder } from './events.ts';
import type { Informer } from './informer.ts';
import { type LeaderElection, runLeaderElection } from './lease.ts';
import { createMetrics } from './metrics.ts';
import type { KubeObject } from './objects.ts';
import type { Running } from './program.ts';
import { Authorizer } from './serving/authorization.ts';
import { serveHealth, serveMetrics } from './serving/endpoints.ts';
import type { RunningServer } from './serving/httpserver.ts';
import { Transport } from './transport.ts';

/** Time in milliseconds for the work of the leader to end at a clean stop. It is well below the 30 s that Kubernetes gives a Pod to stop. */
const DRAIN_MILLISECONDS = 15_000;
/**
 * Time in milliseconds for sending the last Events at a stop. A large number of Events can need more time, but the next leader must not wait
 * for them.
 */
const LAST_EVENTS_MILLISECONDS = 500;
const DAY_SECONDS = 24 * 3600;

/** The parts of the configuration that every such program has. */
export interface LedProgramConfig {
  /** `system` is the namespace of the Lease. */
  readonly namespaces: { readonly system: string };
  readonly metrics: CertificateFiles & {
    /** Address to listen on: `HOST:PORT`, or `:PORT` for all addresses. */
    readonly address: string;
    /** Names in the certificate that the program makes. */
    readonly dnsNames: readonly string[];
    /** Validity in seconds of the certificate that the program makes. */
    readonly certificateLifetimeSeconds?: number;
  };
  readonly health: { readonly address: string };
  readonly leaderElection: {
    readonly leaseDurationSeconds: number;
    readonly renewDeadlineSeconds: number;
    readonly retryPeriodSeconds: number;
  };
}

/** What the program gives to its parts. */
export interface LedTools<Reason extends string> {
  /** Client that writes only while this process is the leader. */
  readonly client: KubeClient;
  readonly registry: Registry;
  readonly recorder: EventRecorder<Reason>;
  readonly logger: Logger;
  /** Returns true while this process is the leader. */
  readonly isLeader: () => boolean;
  /** Aborts when the work of the leader must end. */
  readonly signal: AbortSignal;
}

export interface LedParts {
  /** All watches. The leader and the standby both start them, so that the caches of the standby are always filled. */
  readonly informers: readonly Informer<KubeObject>[];
  /** Controllers that only the leader starts. */
  readonly controllers: readonly Controller[];
  /** Ends what the controllers left open. It is called in the leader when they have finished their passes. */
  readonly end?: () => Promise<void>;
}

export interface LedProgramOptions<Reason extends string> {
  /** Name of the program: of its Lease, of its user agent and in its certificate, for example `berth-operator`. */
  readonly name: string;
  /** Name in Events, for example `berth.dev/operator`. */
  readonly reportingController: string;
  readonly config: LedProgramConfig;
  readonly kubeconfigPath: string | undefined;
  /** Pod of this process in the system namespace, and the label that it has while this process is the leader. */
  readonly labelled?: { readonly pod: string; readonly label: string } | undefined;
  readonly logger: Logger;
  /** Called when this process is no longer the leader. The process must then end at once. */
  readonly onLost: () => void;
  readonly createParts: (tools: LedTools<Reason>) => LedParts;
}

export class LedProgram<Reason extends string> implements Running {
  readonly #options: LedProgramOptions<Reason>;
  readonly #registry: Registry = createMetrics();
  readonly #client: KubeClient;
  readonly #leaseClient: KubeClient;
  readonly #recorder: EventRecorder<Reason>;
  readonly #parts: LedParts;
  readonly #leaderLabel: Controller | undefined;
  readonly #identity = `${hostname()}-${randomUUID()}`;
  readonly #candidacy = new AbortController();
  readonly #working = new AbortController();
  readonly #watching = new AbortController();
  readonly #servers: RunningServer[] = [];
  #election: LeaderElection | undefined;
  #isSynced = false;
  #isWorking = false;

  private constructor(options: LedProgramOptions<Reason>, connection: Connection) {
    const { name, reportingController, logger, createParts } = options;
    this.#options = options;
    const transportOptions = { metrics: this.#registry, userAgent: name };
    this.#client = new KubeClient(new Transport(connection, transportOptions));
    this.#leaseClient = new KubeClient(new Transport(connection, transportOptions));
    this.#client.guard = () => this.#election?.isHeld() === true;
    this.#recorder = new EventRecorder<Reason>(this.#client, {
      reportingController,
      reportingInstance: this.#identity,
      logger,
    });
    this.#parts = createParts({
      client: this.#client,
      registry: this.#registry,
      recorder: this.#recorder,
      logger,
      isLeader: () => this.#isWorking,
      signal: this.#working.signal,
    });
    this.#leaderLabel = this.#labelController();
  }

  /**
   * Creates the controller that labels the Pod of the leader, so that a Service can select only this Pod. Every process also corrects the
   * label of its Pod at its start. This is necessary after a crash: the former leader restarts as a standby in its old Pod, which must then
   * lose the label.
   */
  #labelController(): Controller | undefined {
    const { config, labelled, logger } = this.#options;
    if (labelled === undefined) {
      return undefined;
    }
    return new Controller({
      name: 'leader-label',
      workers: 1,
      reconcile: async () => {
        const labels = { [labelled.label]: this.#isWorking ? 'true' : null };
        const pod = { namespace: config.namespaces.system, name: labelled.pod };
        // This client is allowed to write even if the process is not the leader.
        await this.#leaseClient.mergePatch(PODS, pod, { metadata: { labels } });
        return undefined;
      },
      logger,
      metrics: this.#registry,
    });
  }

  /**
   * Starts a program. Resolves when the servers listen. At that time, the caches can still be empty. When the caches are filled, the process
   * takes part in the leader election.
   */
  static async start<Reason extends string>(options: LedProgramOptions<Reason>): Promise<LedProgram<Reason>> {
    const connection = await loadConnection({ kubeconfigPath: options.kubeconfigPath });
    const program = new LedProgram(options, connection);
    await program.#listen();
    program.#watch();
    return program;
  }

  async #listen(): Promise<void> {
    const { name, config, logger } = this.#options;
    const { metrics, health } = config;
    const { dnsNames, certificateLifetimeSeconds: lifetime } = metrics;
    const selfMade = () =>
      selfMadeCertificate({
        commonName: dnsNames[0] ?? name,
        dnsNames,
        ipAddresses: ['127.0.0.1'],
        ...(lifetime === undefined ? {} : { days: lifetime / DAY_SECONDS }),
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

  /** Starts the watches. Leader and standby both fill their caches, but only the controllers of the leader run. */
  #watch(): void {
    const { informers } = this.#parts;
    this.#leaderLabel?.start(this.#watching.signal);
    this.#enqueueLabel();
    for (const informer of informers) {
      informer.start(this.#watching.signal);
    }
    Promise.all(informers.map((informer) => informer.synced)).then(
      () => this.#standForElection(),
      (error: unknown) =>
        this.#options.logger.debug({ err: error }, 'the program stopped before its caches were filled'),
    );
  }

  #standForElection(): void {
    const { name, config, logger, onLost } = this.#options;
    const { leaseDurationSeconds, renewDeadlineSeconds, retryPeriodSeconds } = config.leaderElection;
    this.#isSynced = true;
    this.#election = runLeaderElection({
      client: this.#leaseClient,
      namespace: config.namespaces.system,
      name,
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
    for (const controller of this.#parts.controllers) {
      controller.start(this.#working.signal);
    }
    this.#enqueueLabel();
  }

  #enqueueLabel(): void {
    const { labelled } = this.#options;
    if (labelled !== undefined) {
      this.#leaderLabel?.enqueue(labelled.pod);
    }
  }

  /** Finishes running passes, releases the lease, then ends the watches and the servers. */
  async stop(): Promise<void> {
    this.#options.logger.info('stopping');
    this.#candidacy.abort();
    if (this.#isWorking) {
      this.#working.abort();
      await Promise.race([this.#drain(), delay(DRAIN_MILLISECONDS, undefined, { ref: false })]);
      // The Events are sent before the lease is released, because only the leader is allowed to write.
      await this.#recorder.flush(LAST_EVENTS_MILLISECONDS);
      await this.#election?.release();
    }
    // A standby can be acquiring the lease. It then releases the lease, so that the next leader need not wait until the lease expires.
    await this.#election?.done;
    this.#watching.abort();
    await Promise.all(this.#servers.map((server) => server.close()));
  }

  async #drain(): Promise<void> {
    const { controllers, end } = this.#parts;
    await Promise.all(controllers.map((controller) => controller.drained()));
    await end?.();
  }
}
