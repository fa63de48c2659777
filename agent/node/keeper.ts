/**
 * Keeps this host's Node in the cluster up to date. A missing Node is created. If another program overwrites the Node, the agent writes it
 * again.
 */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { pause, timestamp } from '../../base/time.ts';
import { AGENT_NAME } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { Consistency } from '../../kube/consistency.ts';
import { Controller, type Result } from '../../kube/controller.ts';
import { type Node, NODES } from '../../kube/core.ts';
import { isAlreadyExists, isConflict, isNotFound } from '../../kube/errors.ts';
import { Informer } from '../../kube/informer.ts';
import { freeDisk } from '../disks/freedisk.ts';
import { DiskPressureLook } from './diskpressure.ts';
import type { HostFacts } from './facts.ts';
import { ServerVersionLook } from './serverversion.ts';
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
