/**
 * Makes a Node a host whose name the operator has approved a certificate for, and keeps slots and taints on every host, also
 * on those that join later and when the configured quota changes.
 */
import type { Logger } from 'pino';
import { GIVEN_UP_ANNOTATION, HOST_MARK, HOST_VALUE } from '../../api/v1alpha1/names.ts';
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import { type ConfigMap, type Node, NODES } from '../../kube/core.ts';
import { isConflict, isNotFound } from '../../kube/errors.ts';
import type { EventRecorder } from '../../kube/events.ts';
import type { Informer } from '../../kube/informer.ts';
import type { OperatorConfig } from '../config/config.ts';
import { FIELD_MANAGER } from '../objects/resources.ts';
import type { HostApprovals } from './approvals.ts';
import { resourcesToApply, taintsToWrite } from './plan.ts';
import { isHost, isReady } from './observe.ts';

export interface HostControllerOptions {
  readonly client: KubeClient;
  /** Nodes that say that they are hosts. */
  readonly nodes: Informer<Node>;
  readonly approvals: HostApprovals;
  readonly recorder: EventRecorder<SaidReason>;
  readonly config: OperatorConfig;
}

export class HostReconciler {
  readonly #options: HostControllerOptions;

  constructor(options: HostControllerOptions) {
    this.#options = options;
  }

  async reconcile(name: string, { logger }: { logger: Logger }): Promise<Result> {
    const node = this.#options.nodes.cache.get(name);
    if (node === undefined) {
      return undefined;
    }
    try {
      if (isHost(node)) {
        await this.#writeResources(node, logger);
        await this.#writeTaints(node, logger);
        await this.#forgetGivenUp(node);
      } else if (node.metadata.labels?.[HOST_MARK] === undefined) {
        await this.#mark(node, logger);
      }
    } catch (error) {
      if (!isNotFound(error)) {
        throw error;
      }
    }
    return undefined;
  }

  /**
   * Slots that such a Node has from before are left: its machines hold them, and nothing new goes where the mark is missing.
   * A mark with another value is an administrator's word that this is no host.
   */
  async #mark(node: Node, logger: Logger): Promise<void> {
    const { name, uid } = node.metadata;
    if (!this.#options.approvals.has(name)) {
      const message = `${name} says that it is a host, but Berth has approved no certificate for this name. To make it one: kubectl label node ${name} ${HOST_MARK}=${HOST_VALUE}`;
      this.#options.recorder.event(node, {
        type: 'Warning',
        reason: 'NotMarkedAsHost',
        action: 'Marking',
        message,
      });
      return;
    }
    logger.info({ host: name }, 'marking a Node as a host');
    const patch = { metadata: { uid, labels: { [HOST_MARK]: HOST_VALUE } } };
    try {
      await this.#options.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
    } catch (error) {
      // It was made anew meanwhile: the watch brings that Node.
      if (!isConflict(error)) {
        throw error;
      }
    }
  }

  /** Through `/status` and with the uid, so that a Node that is gone is never made again. */
  async #writeResources(node: Node, logger: Logger): Promise<void> {
    const resources = resourcesToApply(node, this.#options.config);
    if (resources === undefined) {
      return;
    }
    const { name, uid } = node.metadata;
    logger.info({ host: name, resources }, 'setting the resources of a host');
    const object = { metadata: { name, uid }, status: { capacity: resources, allocatable: resources } };
    await this.#options.client.apply(NODES, object, {
      fieldManager: FIELD_MANAGER,
      force: true,
      subresource: 'status',
    });
  }

  /** A host that is back ends the machines without a VM. */
  async #forgetGivenUp(node: Node): Promise<void> {
    if (node.metadata.annotations?.[GIVEN_UP_ANNOTATION] === undefined || !isReady(node)) {
      return;
    }
    const { name, uid, resourceVersion } = node.metadata;
    const patch = { metadata: { uid, resourceVersion, annotations: { [GIVEN_UP_ANNOTATION]: null } } };
    await this.#options.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
  }

  /**
   * `spec.taints` is an atomic list, where a forced apply would erase an admin's taint: the list as read, with only our keys
   * changed, and the resourceVersion so that a list that changed meanwhile is a 409 and is read again.
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
  /** Nodes that say that they are hosts. */
  readonly nodes: Informer<Node>;
  readonly approvals: Informer<ConfigMap>;
}

/** Which changes of the world concern which Nodes. */
export function enqueueHosts(controller: Controller, { nodes, approvals }: HostWatches): void {
  nodes.cache.onChange(({ object }) => controller.enqueue(object.metadata.name));
  approvals.cache.onChange(() => {
    const unmarked = nodes.cache.list().filter((node) => !isHost(node));
    unmarked.forEach(({ metadata }) => controller.enqueue(metadata.name));
  });
}
