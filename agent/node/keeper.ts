/**
 * Keeps this host's Node in the cluster up to date. A missing Node is created. If another program overwrites the Node, the agent writes it
 * again. The status also tells whether the disk of this host has room, and the version of the API server, which limits the version that the
 * Node reports. Also renews the Node's Lease, which shows the cluster that this host is alive. The time since the last renewal tells the host
 * how long it has been cut off.
 */
import { uptime } from 'node:os';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import * as z from 'zod';
import { microTime, pause, rest, timestamp } from '../../base/time.ts';
import { AGENT_NAME } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { Consistency } from '../../kube/consistency.ts';
import { Controller, type Result } from '../../kube/controller.ts';
import { LEASES, type Node, NODES } from '../../kube/core.ts';
import { ApiError, isAlreadyExists, isConflict, isNotFound } from '../../kube/errors.ts';
import { Informer } from '../../kube/informer.ts';
import { freeDisk, type FreeDisk, isDiskPressed } from '../disks/freedisk.ts';
import type { HostFacts } from './facts.ts';
import {
  type HostState,
  labelsDiffer,
  newNode,
  nodeLabels,
  type NodeSettings,
  nodeStatus,
  staleLabels,
  statusDiffers,
} from './node.ts';
import { messageOf } from '../../base/errors.ts';

/** Time between two checks of the disk and of the heartbeat's age, in milliseconds. */
const LOOK_MILLISECONDS = 30_000;
/**
 * Time between two checks of the existence of the Node, in milliseconds. The time is short, because the host waits for its Node at start.
 */
const REGISTERED_LOOK_MILLISECONDS = 20;

export interface KeeperOptions {
  client: KubeClient;
  config: NodeSettings & { dataDirectory: string };
  facts: HostFacts;
  state: HostState;
  /** Returns the present size in bytes of the images that cannot be removed, for {@link HostState}. */
  heldImageBytes: () => number;
  metrics: Registry;
  logger: Logger;
}

export class NodeKeeper {
  readonly informer: Informer<Node>;
  readonly #options: KeeperOptions;
  readonly #consistency = new Consistency();
  readonly #controller: Controller;
  readonly #disk: DiskPressureLook;
  readonly #server: ServerVersionLook;
  #state: HostState;

  constructor(options: KeeperOptions) {
    const { client, config, logger, metrics } = options;
    this.#options = options;
    this.#state = options.state;
    this.#disk = new DiskPressureLook({
      minimumFree: config.images.minimumFree,
      free: () => freeDisk(config.dataDirectory),
    });
    this.#server = new ServerVersionLook({ client, clock: Date.now, logger });
    this.informer = new Informer(client, NODES, {
      fieldSelector: `metadata.name=${config.nodeName}`,
      logger,
    });
    this.#controller = new Controller({
      name: 'node',
      workers: 1,
      reconcile: () => this.#reconcile(),
      ready: (key) => this.#consistency.ready(key),
      logger,
      metrics,
    });
    this.informer.cache.onChange(() => this.#controller.enqueue(config.nodeName));
  }

  /** The Node in its last observed state. */
  get node(): Readonly<Node> | undefined {
    return this.informer.cache.get(this.#options.config.nodeName);
  }

  /** Starts to watch and write. Resolves when the Node is in the cluster and the watch has delivered the Node. */
  async start(signal: AbortSignal): Promise<void> {
    this.informer.start(signal);
    await this.informer.synced;
    this.#controller.start(signal);
    this.#controller.enqueue(this.#options.config.nodeName);
    while (this.node === undefined) {
      await pause(REGISTERED_LOOK_MILLISECONDS, signal);
    }
    signal.throwIfAborted();
  }

  /** Changes the state of the host in memory. If the Node in the cluster shows another state, the agent then writes the Node. */
  update(change: Partial<HostState>): void {
    this.#state = { ...this.#state, ...change };
    this.#controller.enqueue(this.#options.config.nodeName);
  }

  async drained(): Promise<void> {
    await this.#controller.drained();
  }

  async #reconcile(): Promise<Result> {
    const { config, facts, heldImageBytes } = this.#options;
    const disk = await this.#disk.look();
    const serverVersion = await this.#server.look();
    const node = this.node;
    this.#state = { ...this.#state, ...disk, serverVersion, heldImageBytes: heldImageBytes() };
    const now = Date.now();
    if (node === undefined) {
      await this.#register();
      return { requeueAfterMilliseconds: LOOK_MILLISECONDS };
    }
    try {
      await this.#writeLabels(node);
      const status = nodeStatus({ config, facts, state: this.#state, current: node, now: timestamp(now) });
      if (statusDiffers(node, status, now)) {
        this.#wrote(await this.#applyStatus(node, status));
      }
    } catch (error) {
      // The statuses 404 and 409 mean that the Node was deleted or created again meanwhile. A retry is not necessary, because the watch
      // reports this change, and the report starts the next reconciliation.
      if (!isNotFound(error) && !isConflict(error)) {
        throw error;
      }
      this.#options.logger.info(
        { nodeName: config.nodeName },
        'The Node was deleted or replaced; its status is not written now',
      );
    }
    return { requeueAfterMilliseconds: LOOK_MILLISECONDS };
  }

  async #register(): Promise<void> {
    const { client, config, facts, logger } = this.#options;
    try {
      const node = newNode(config, facts, this.#state, timestamp(Date.now()));
      this.#wrote(await client.create(NODES, node, { fieldManager: AGENT_NAME }));
      logger.info({ nodeName: config.nodeName }, 'The Node of this host was created');
    } catch (error) {
      if (!isAlreadyExists(error)) {
        throw error;
      }
    }
  }

  async #writeLabels(node: Readonly<Node>): Promise<void> {
    const { client, config, facts } = this.#options;
    const labels = nodeLabels(config, facts, this.#state);
    const { name, uid } = node.metadata;
    const stale = staleLabels(node, labels);
    if (stale.length > 0) {
      // A merge patch removes the labels. A server-side apply would not remove labels that another program has set, or labels that were set
      // when the Node was created.
      const removed = Object.fromEntries(stale.map((key) => [key, null]));
      this.#wrote(await client.mergePatch(NODES, { name }, { metadata: { uid, labels: removed } }));
    }
    if (labelsDiffer(node, labels)) {
      const options = { fieldManager: AGENT_NAME, force: true };
      this.#wrote(await client.apply(NODES, { metadata: { name, uid, labels } }, options));
    }
  }

  async #applyStatus(node: Readonly<Node>, status: object): Promise<Node> {
    const { name, uid } = node.metadata;
    return await this.#options.client.apply<Node>(
      NODES,
      { metadata: { name, uid }, status },
      { fieldManager: AGENT_NAME, force: true, subresource: 'status' },
    );
  }

  #wrote(node: Node): void {
    const { name, resourceVersion = '' } = node.metadata;
    this.#consistency.wrote(name, this.informer, resourceVersion);
  }
}

/**
 * Time limit for the answer of the disk. A disk answers within milliseconds. The limit is necessary, because a broken disk, or one on a dead
 * file server, can fail to answer for ever. The agent still renews its Lease then, so the cluster would place VMs on this host.
 */
const DISK_ANSWER_MILLISECONDS = 10_000;

interface DiskPressure {
  diskPressure: boolean;
  /** Why the free space is unknown, in words for the Node. A host whose free space is unknown has disk pressure. Undefined if it is known. */
  diskFault: string | undefined;
}

interface DiskPressureOptions {
  minimumFree: number;
  free: () => Promise<FreeDisk>;
  answerMilliseconds?: number;
}

/** Finds out whether the disk of this host is so full, or so broken, that the host must get no new VMs. */
export class DiskPressureLook {
  readonly #options: DiskPressureOptions;
  /** The read that is under way. No second read begins before this read has ended, even if the disk does not answer. */
  #asked: Promise<FreeDisk> | undefined;
  /** Whether the disk was too full when it last answered. A fault must not count here, because after it the host would need more free space. */
  #wasFull = false;

  constructor(options: DiskPressureOptions) {
    this.#options = options;
  }

  /** Reads the free space of the disk. Never rejects. */
  async look(): Promise<DiskPressure> {
    const { minimumFree, free } = this.#options;
    this.#asked ??= free().finally(() => {
      this.#asked = undefined;
    });
    try {
      this.#wasFull = isDiskPressed(await this.#inTime(this.#asked), minimumFree, this.#wasFull);
      return { diskPressure: this.#wasFull, diskFault: undefined };
    } catch (error) {
      const diskFault = `The host takes no new VMs, because the free space of its disk is unknown: ${messageOf(error)}`;
      return { diskPressure: true, diskFault };
    }
  }

  /** Resolves like `asked`. @throws Error when the disk does not answer in time. */
  async #inTime(asked: Promise<FreeDisk>): Promise<FreeDisk> {
    const { answerMilliseconds = DISK_ANSWER_MILLISECONDS } = this.#options;
    const answered = new AbortController();
    const limit = rest(answerMilliseconds, answered.signal).then(() => {
      throw new Error(`the disk does not answer within ${answerMilliseconds / 1000} s`);
    });
    // The race ignores a limit that comes after the answer, and this line handles its error.
    limit.catch(() => undefined);
    try {
      return await Promise.race([asked, limit]);
    } finally {
      answered.abort();
    }
  }
}

/** Time in milliseconds between two questions. An upgrade of the control plane takes longer. */
const VERSION_LOOK_MILLISECONDS = 5 * 60_000;

const answerSchema = z.object({ gitVersion: z.string().max(128) });

interface ServerVersionOptions {
  readonly client: KubeClient;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
  readonly logger: Logger;
}

/** Finds out the version of the API server. */
export class ServerVersionLook {
  readonly #options: ServerVersionOptions;
  #version: string | undefined;
  #askAt = 0;

  constructor(options: ServerVersionOptions) {
    this.#options = options;
  }

  /**
   * Returns the version of the API server, or undefined if the API server does not tell it.
   * @throws Error when the API server cannot be reached
   */
  async look(): Promise<string | undefined> {
    const { client, clock, logger } = this.#options;
    if (clock() < this.#askAt) {
      return this.#version;
    }
    try {
      this.#version = answerSchema.parse((await client.call('GET', '/version')).body).gitVersion;
    } catch (error) {
      // An administrator can forbid this question. The Node then reports the version of this release.
      if (!(error instanceof ApiError || error instanceof z.ZodError)) {
        throw error;
      }
      logger.warn({ err: error }, 'The API server does not tell its version');
    }
    this.#askAt = clock() + VERSION_LOOK_MILLISECONDS;
    return this.#version;
  }
}

const LEASE_NAMESPACE = 'kube-node-lease';
/** Lifetime of the Node's Lease, and time between two renewals. A kubelet has the same values: 40 s, renewed every 10 s. */
const LEASE_SECONDS = 40;
const RENEW_MILLISECONDS = 10_000;
const RETRY_MILLISECONDS = 2_000;
/**
 * Smallest number of attempts to renew the Lease before a host counts as cut off (fenced). If there were only one attempt, a single failure
 * would fence the host. A kubelet has the same number.
 */
const RENEWALS_PER_FENCE = 4;
/**
 * Time limit of one renewal of the Lease, in milliseconds. This limit is shorter than the time between two renewals, so no renewal delays
 * the next renewal.
 */
const REQUEST_MILLISECONDS = 8_000;
/** Time between two checks of the age of the last renewal, in milliseconds. */
const FENCE_LOOK_MILLISECONDS = 500;

interface LeaseOptions {
  client: KubeClient;
  nodeName: string;
  /** Returns the Node; undefined if the Node does not exist yet. The Node owns the Lease, so the Lease is deleted with the Node. */
  node: () => Readonly<Node> | undefined;
  fenceAfterMilliseconds: number;
  /**
   * Returns whether this host has read its Pods again since it was cut off. The function is called after a renewal. Until the result is
   * true, the host counts as cut off (fenced), because VMs of this host might already run on other hosts.
   */
  isUpToDate: (signal: AbortSignal) => Promise<boolean>;
  /**
   * Called when the host becomes cut off (fenced) and when it is connected again. `fenced` is true if the Lease was not renewed
   * for so long that the cluster may treat this host as lost.
   */
  onFenced: (fenced: boolean) => void;
  logger: Logger;
}

export class NodeLease {
  readonly #options: LeaseOptions;
  readonly #renewMilliseconds: number;
  readonly #retryMilliseconds: number;
  #renewedAt: number;
  #fenced = false;
  #isFailing = false;

  constructor(options: LeaseOptions) {
    this.#options = options;
    this.#renewedAt = clock();
    this.#renewMilliseconds = Math.min(
      RENEW_MILLISECONDS,
      options.fenceAfterMilliseconds / RENEWALS_PER_FENCE,
    );
    this.#retryMilliseconds = Math.min(RETRY_MILLISECONDS, this.#renewMilliseconds);
  }

  get fenced(): boolean {
    return this.#fenced;
  }

  /** Renews the Lease until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const look = setInterval(() => this.#look(), FENCE_LOOK_MILLISECONDS);
    try {
      while (!signal.aborted) {
        const hadOwner = this.#options.node() !== undefined;
        const renewed = await this.#renew(signal);
        // A Lease that was written before the Node existed has no owner and would outlive the Node. Therefore the next renewal
        // follows soon, and sets the owner.
        await pause(renewed && hadOwner ? this.#renewMilliseconds : this.#retryMilliseconds, signal);
      }
    } catch (error) {
      if (!signal.aborted) {
        throw error;
      }
    } finally {
      clearInterval(look);
    }
  }

  #look(): void {
    const { fenceAfterMilliseconds } = this.#options;
    if (!this.#fenced && clock() - this.#renewedAt >= fenceAfterMilliseconds) {
      this.#setFenced(true);
    }
  }

  #setFenced(fenced: boolean): void {
    this.#fenced = fenced;
    this.#options.onFenced(fenced);
  }

  async #renew(signal: AbortSignal): Promise<boolean> {
    const { client, logger } = this.#options;
    // The age of a renewal is counted from the moment before its request. So this host never overestimates how long its Lease is still
    // valid.
    const sentAt = clock();
    // After a suspension of the host, the renewal can come before the next regular check. The renewal must not hide the suspension.
    this.#look();
    try {
      await client.apply(LEASES, this.#lease(), {
        fieldManager: AGENT_NAME,
        force: true,
        signal,
        deadlineMilliseconds: Math.min(REQUEST_MILLISECONDS, this.#renewMilliseconds),
      });
    } catch (error) {
      // Only the first of several failures in a row is logged, because an outage of the API server can last for days.
      if (!signal.aborted && !this.#isFailing) {
        logger.warn({ err: error }, 'The Lease of this host could not be renewed');
      }
      this.#isFailing = true;
      return false;
    }
    this.#isFailing = false;
    this.#renewedAt = sentAt;
    return await this.#lift(signal);
  }

  async #lift(signal: AbortSignal): Promise<boolean> {
    if (!this.#fenced) {
      return true;
    }
    const { isUpToDate, logger } = this.#options;
    try {
      if (!(await isUpToDate(signal))) {
        return false;
      }
    } catch (error) {
      if (!signal.aborted) {
        logger.warn(
          { err: error },
          'The agent could not read the Pods of this host, so the host still counts as cut off',
        );
      }
      return false;
    }
    this.#setFenced(false);
    return true;
  }

  #lease(): object {
    const { nodeName } = this.#options;
    const node = this.#options.node();
    const owner = { apiVersion: 'v1', kind: 'Node', name: nodeName, uid: node?.metadata.uid };
    return {
      metadata: {
        name: nodeName,
        namespace: LEASE_NAMESPACE,
        ...(node === undefined ? {} : { ownerReferences: [owner] }),
      },
      spec: {
        holderIdentity: nodeName,
        leaseDurationSeconds: LEASE_SECONDS,
        renewTime: microTime(Date.now()),
      },
    };
  }
}

/**
 * Returns the time in milliseconds since the boot of the host. This clock never goes backwards. Unlike `performance.now()`, it also counts
 * the time for which the host was suspended. Meanwhile the Lease can expire, and other hosts can get the VMs of this host.
 */
function clock(): number {
  return uptime() * 1000;
}
