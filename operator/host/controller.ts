/**
 * Marks a Node as a host when the operator has approved a certificate for its name. Keeps the slots and taints of every host correct, also
 * when a host joins later or the configured number of slots changes.
 */
import type { Logger } from 'pino';
import { timestamp } from '../../base/time.ts';
import { GIVEN_UP_ANNOTATION, HOST_MARK, HOST_VALUE } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import { type ConfigMap, type Node, NODES } from '../../kube/core.ts';
import { undefinedIf } from '../../base/errors.ts';
import { isConflict, unlessMissing } from '../../kube/errors.ts';
import { type Recorder, warning } from '../objects/events.ts';
import type { Informer } from '../../kube/informer.ts';
import type { OperatorConfig } from '../config/config.ts';
import { FIELD_MANAGER } from '../objects/fieldmanager.ts';
import type { HostApprovals } from './approvals.ts';
import { statusToApply, taintsToWrite } from './plan.ts';
import { isHost, isReady } from './observe.ts';

export interface HostControllerOptions {
  readonly client: KubeClient;
  /** Nodes that claim to be hosts. */
  readonly nodes: Informer<Node>;
  readonly approvals: HostApprovals;
  readonly recorder: Recorder;
  readonly config: OperatorConfig;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

export class HostReconciler {
  readonly #options: HostControllerOptions;

  constructor(options: HostControllerOptions) {
    this.#options = options;
  }

  async reconcile(name: string, { logger }: { logger: Logger }): Promise<Result> {
    const node = this.#options.nodes.cache.get(name);
    if (node !== undefined) {
      await unlessMissing(this.#reconcileNode(node, logger));
    }
    return undefined;
  }

  async #reconcileNode(node: Node, logger: Logger): Promise<void> {
    if (isHost(node)) {
      await this.#writeTaints(node, logger);
      await this.#writeStatus(node, logger);
      await this.#forgetGivenUp(node);
    } else if (node.metadata.labels?.[HOST_MARK] === undefined) {
      await this.#mark(node, logger);
    }
  }

  /**
   * Marks the Node if its name is approved, otherwise records an Event. A Node that loses the mark keeps its slots, because its machines
   * use them. No new Pod is scheduled to a Node without the mark. An administrator can set the mark to another value to keep a Node from
   * becoming a host.
   */
  async #mark(node: Node, logger: Logger): Promise<void> {
    const { name, uid, resourceVersion } = node.metadata;
    if (!this.#options.approvals.has(name)) {
      const message = `Node ${name} claims to be a host, but Berth approved no certificate for its name. If it is a host, run: kubectl label node ${name} ${HOST_MARK}=${HOST_VALUE}`;
      this.#options.recorder.event(node, warning('NotMarkedAsHost', 'Marking', message));
      return;
    }
    logger.info({ host: name }, 'marking a Node as a host');
    const patch = { metadata: { uid, resourceVersion, labels: { [HOST_MARK]: HOST_VALUE } } };
    const write = this.#options.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
    // A conflict means that the Node was changed or replaced, perhaps by an administrator's own mark. The watch will report the Node.
    await undefinedIf(isConflict, write);
  }

  /**
   * Writes the fields of a Node's status that belong to the operator. The request contains the uid and goes to `/status`, so it never
   * creates a deleted Node again.
   */
  async #writeStatus(node: Node, logger: Logger): Promise<void> {
    const { client, config, clock } = this.#options;
    const status = statusToApply(node, config, timestamp(clock()));
    if (status === undefined) {
      return;
    }
    const { name, uid } = node.metadata;
    logger.info({ host: name, status }, 'setting the resources of a host');
    const object = { metadata: { name, uid }, status };
    await client.apply(NODES, object, { fieldManager: FIELD_MANAGER, force: true, subresource: 'status' });
  }

  /**
   * Removes the list of abandoned machines from a Node when its host is Ready again. The list is then no longer needed, because a Ready
   * host ends every machine whose VM no longer exists.
   */
  async #forgetGivenUp(node: Node): Promise<void> {
    if (node.metadata.annotations?.[GIVEN_UP_ANNOTATION] === undefined || !isReady(node)) {
      return;
    }
    const { name, uid, resourceVersion } = node.metadata;
    const patch = { metadata: { uid, resourceVersion, annotations: { [GIVEN_UP_ANNOTATION]: null } } };
    await this.#options.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
  }

  /**
   * Writes the taints of a host. `spec.taints` is an atomic list, so a forced apply would erase an administrator's taint. Therefore the
   * patch contains the whole list as it was read, with only Berth's taints changed. The patch also contains the resourceVersion. If
   * somebody changed the Node in the meantime, the API server answers 409, and the operator reads the list again.
   */
  async #writeTaints(node: Node, logger: Logger): Promise<void> {
    const taints = taintsToWrite(node);
    if (taints === undefined) {
      return;
    }
    const { name, uid, resourceVersion } = node.metadata;
    logger.info({ host: name, taints: taints.map(({ key }) => key) }, 'setting the taints of a host');
    const patch = { metadata: { uid, resourceVersion }, spec: { taints } };
    await this.#options.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
  }
}

interface HostWatches {
  /** Nodes that claim to be hosts. */
  readonly nodes: Informer<Node>;
  readonly approvals: Informer<ConfigMap>;
}

/** Enqueues a Node when it changes. Enqueues all Nodes that are not marked as hosts when the approvals change. */
export function enqueueHosts(controller: Controller, { nodes, approvals }: HostWatches): void {
  nodes.cache.onChange(({ object }) => controller.enqueue(object.metadata.name));
  approvals.cache.onChange(() => {
    const unmarked = nodes.cache.list().filter((node) => !isHost(node));
    unmarked.forEach(({ metadata }) => controller.enqueue(metadata.name));
  });
}
