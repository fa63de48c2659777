/**
 * Marks a Node as a host when the operator has approved a certificate for its name. Keeps the slots and taints of every host correct, also
 * when a host joins later or the configured number of slots changes. Keeps what a host loses with its Node: see records.ts. Gives up the
 * hosts that administrators declare gone for good.
 */
import { exportLeaderGauge } from '../../kube/leadergauge.ts';
import { isHost } from '../tasks/placement.ts';
import type { Logger } from 'pino';
import { LRUCache } from 'lru-cache';
import type { Registry } from 'prom-client';
import { timestamp } from '../../base/time.ts';
import { type AwaitedVMs, awaitedOn } from '../../api/v1alpha1/machine.ts';
import {
  ADOPTS_ANNOTATION,
  GIVEN_UP_ANNOTATION,
  HOST_MARK,
  HOST_VALUE,
  VM_UID_LABEL,
} from '../../api/v1alpha1/names.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import { type ConfigMap, type Node, NODES, type Pod } from '../../kube/core.ts';
import { undefinedIf } from '../../base/errors.ts';
import { isConflict, unlessMissing } from '../../kube/errors.ts';
import { type Recorder, warning } from '../objects/events.ts';
import type { Informer } from '../../kube/informer.ts';
import { isForced, keyOf, refOf } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { FIELD_MANAGER } from '../objects/writer.ts';
import type { Adoptions } from './adoptions.ts';
import { awaitedPatch, statusToApply, taintsToWrite } from './plan.ts';
import { isReady, isTooOldOrNew, PODS_BY_NODE, silentSince } from './observe.ts';
import {
  changedHosts,
  type HostRecord,
  type HostRecords,
  isWorthKeeping,
  NO_RECORD,
  recordOf,
  restoredNode,
} from './records.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { HostApprovals } from './approvals.ts';

/** Time in milliseconds between two checks of a host with machines that need a Pod. Nothing reports that a VM was deleted meanwhile. */
const AWAITED_LOOK_MILLISECONDS = 5_000;
/** Largest number of awaited VMs that one reconcile of a host looks up. A hostile host can write thousands into its list. */
const SETTLED_AT_ONCE = 16;

export interface HostControllerOptions extends MissingHostsOptions {
  /** Nodes that claim to be hosts. */
  readonly nodes: Informer<Node>;
  readonly adoptions: Adoptions;
  readonly config: OperatorConfig;
}

export class HostReconciler {
  readonly #options: HostControllerOptions;
  readonly #missing: MissingHosts;

  constructor(options: HostControllerOptions) {
    this.#options = options;
    this.#missing = new MissingHosts(options);
  }

  /** Returns true if there is something to reconcile for the host, also while it has no Node. */
  exists(name: string): boolean {
    const { nodes, hostRecords } = this.#options;
    return (
      nodes.cache.get(name) !== undefined ||
      hostRecords.requested().includes(name) ||
      this.#missing.isKnown(name)
    );
  }

  /** Notes the last state of a deleted Node for its next reconcile. */
  noteDeleted(node: Node): void {
    this.#missing.noteDeleted(node);
  }

  async reconcile(name: string, { logger }: { logger: Logger }): Promise<Result> {
    const node = this.#options.nodes.cache.get(name);
    if (node === undefined) {
      await this.#missing.reconcile(name, logger);
      return undefined;
    }
    const result = await unlessMissing(this.#reconcileNode(node, logger));
    return result && { requeueAfterMilliseconds: result.again };
  }

  /** Returns the milliseconds until the next check of the Node. There is no next check if `again` is undefined. */
  async #reconcileNode(node: Node, logger: Logger): Promise<{ again: number | undefined }> {
    await this.#missing.answerGiveUp(node, logger);
    if (await this.#restore(node, logger)) {
      return { again: undefined };
    }
    if (isHost(node)) {
      await this.#writeTaints(node, logger);
      await this.#writeStatus(node, logger);
      await this.#forgetGivenUp(node);
    }
    await this.#keep(node);
    await (isHost(node) ? this.#resolveAwaited(node) : undefined);
    const isAwaiting = Object.keys(awaitedOn(node)).length > 0;
    return { again: isAwaiting ? AWAITED_LOOK_MILLISECONDS : undefined };
  }

  /**
   * Marks the Node as a host if its name is approved, and gives a Node that was created again the labels, taints and cordon of the earlier
   * Node. One request does both, because Pods can be scheduled to the Node from then on. A Node that loses the mark keeps its slots, because
   * its machines use them. An administrator can set the mark to another value to keep a Node from becoming a host.
   * @returns true when the Node was changed, or cannot be marked. The watch reports the change.
   */
  async #restore(node: Node, logger: Logger): Promise<boolean> {
    const { name, uid, resourceVersion, labels } = node.metadata;
    const { approvals, recorder, client } = this.#options;
    const record = this.#missing.earlierOf(name);
    const earlier = record?.nodeUid === uid ? undefined : record;
    if (
      labels?.[HOST_MARK] === undefined &&
      !approvals.has(name) &&
      earlier?.labels[HOST_MARK] === undefined
    ) {
      const message = `Node ${name} claims to be a host, but Berth approved no certificate for its name. If it is a host, run: kubectl label node ${name} ${HOST_MARK}=${HOST_VALUE}`;
      recorder.event(node, warning('NotMarkedAsHost', 'Marking', message));
      return true;
    }
    const change = restoredNode(node, earlier, this.#forcedOn(name, earlier));
    if (change === undefined) {
      this.#missing.forgetDeleted(name);
      return false;
    }
    logger.info({ host: name, isNew: earlier !== undefined }, 'marking a Node as a host');
    const patch = { ...change, metadata: { ...change.metadata, uid, resourceVersion } };
    const write = client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
    // A conflict means that the Node was changed or replaced, perhaps by an administrator's own mark. The watch will report the Node.
    await undefinedIf(isConflict, write);
    return true;
  }

  /** Returns the VMs whose Pods were deleted by force while their Node was missing. Their machines need new Pods. */
  #forcedOn(name: string, earlier: HostRecord | undefined): AwaitedVMs {
    if (earlier === undefined) {
      return {};
    }
    const since = timestamp(this.#options.clock());
    const forced = this.#options.pods.cache.byIndex(PODS_BY_NODE, name).filter(isForced);
    const entries = forced.map((pod) => [pod.metadata.labels?.[VM_UID_LABEL], { vm: keyOf(pod), since }]);
    return Object.fromEntries(entries);
  }

  /** Stores what the host would lose with this Node. A host that reports is neither missing nor given up. */
  async #keep(node: Node): Promise<void> {
    const { hostRecords } = this.#options;
    const { name } = node.metadata;
    const givenUpAt = hostRecords.of(name)?.givenUpAt;
    const isSilent = silentSince(node) !== undefined;
    const record = { ...recordOf(node), ...(isSilent && givenUpAt && { givenUpAt }) };
    await hostRecords.keep(name, isWorthKeeping(record) ? record : undefined);
  }

  /**
   * Ends the wait for the Pods of machines that have their Pods, or whose VMs are deleted or have failed. This comes last, because the host can
   * write the list itself, and must not keep the operator from its taints.
   */
  async #resolveAwaited(node: Node): Promise<void> {
    const { client, adoptions, clock } = this.#options;
    const awaited = awaitedOn(node);
    const settled: string[] = [];
    for (const [uid, { vm }] of Object.entries(awaited).slice(0, SETTLED_AT_ONCE)) {
      if (await this.#isSettled(uid, vm)) {
        settled.push(uid);
      }
    }
    if (settled.length === 0) {
      return;
    }
    const left = Object.fromEntries(Object.entries(awaited).filter(([uid]) => !settled.includes(uid)));
    await adoptions.forget(settled);
    const { name } = node.metadata;
    const patch = awaitedPatch(node, left, clock());
    await client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
  }

  async #isSettled(uid: string, key: string): Promise<boolean> {
    const pod = this.#options.pods.cache.get(key);
    return pod !== undefined && continues(pod, uid)
      ? pod.status?.containerStatuses !== undefined
      : !isWanted(await unlessMissing(this.#options.client.get(VMS, refOf(key))), uid);
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
    const taints = taintsToWrite(node, this.#options.clock());
    if (taints === undefined) {
      return;
    }
    const { name, uid, resourceVersion } = node.metadata;
    logger.info({ host: name, taints: taints.map(({ key }) => key) }, 'setting the taints of a host');
    const patch = { metadata: { uid, resourceVersion }, spec: { taints } };
    await this.#options.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
  }
}

/** Returns true if the Pod continues the machine of the VM with this uid, and was not deleted by force again. */
function continues(pod: Readonly<Pod>, uid: string): boolean {
  const { labels, annotations } = pod.metadata;
  return labels?.[VM_UID_LABEL] === uid && annotations?.[ADOPTS_ANNOTATION] !== undefined && !isForced(pod);
}

/** Returns true if the VM has this uid, is not deleted and has not failed. */
function isWanted(vm: VM | undefined, uid: string): boolean {
  const { metadata, status } = vm ?? {};
  return metadata?.uid === uid && metadata.deletionTimestamp === undefined && status?.failure === undefined;
}

interface HostWatches {
  /** Nodes that claim to be hosts. */
  readonly nodes: Informer<Node>;
  readonly pods: Informer<Pod>;
  readonly emulatorPods: Informer<Pod>;
  readonly approvals: Informer<ConfigMap>;
  readonly recordsMap: Informer<ConfigMap>;
}

/**
 * Enqueues a Node when it changes. Enqueues all Nodes that are not marked as hosts when the approvals change. Enqueues a missing Node when a
 * Pod on it or its record changes.
 */
export function enqueueHosts(controller: Controller, reconciler: HostReconciler, watches: HostWatches): void {
  const { nodes, pods, emulatorPods, approvals, recordsMap } = watches;
  recordsMap.cache.onChange((change) => changedHosts(change).forEach((name) => controller.enqueue(name)));
  for (const { cache } of [pods, emulatorPods]) {
    cache.onChange(({ object: { spec, metadata } }) => {
      const { nodeName: name } = spec;
      const isAdopting = metadata.annotations?.[ADOPTS_ANNOTATION] !== undefined;
      if (name !== undefined && (isAdopting || nodes.cache.get(name) === undefined)) {
        controller.enqueue(name);
      }
    });
  }
  nodes.cache.onChange(({ type, object }) => {
    if (type === 'deleted') {
      reconciler.noteDeleted(object);
    }
    controller.enqueue(object.metadata.name);
  });
  approvals.cache.onChange(() => {
    const unmarked = nodes.cache.list().filter((node) => !isHost(node));
    unmarked.forEach(({ metadata }) => controller.enqueue(metadata.name));
  });
}

/**
 * Time in milliseconds for which a deleted Node is remembered if nothing waits for its host and no certificate of it is valid. It is longer
 * than a usual repair of a host takes.
 */
const KEPT_MILLISECONDS = 30 * 24 * 3600 * 1000;
/**
 * Largest number of deleted Nodes that wait for their reconcile. A replica that does not lead only collects them. More Nodes than this are not
 * deleted at once, and a forgotten one loses only its mark.
 */
const DELETED_REMEMBERED = 1_000;

interface MissingHostsOptions {
  readonly client: KubeClient;
  /** Pods of VMs. */
  readonly pods: Informer<Pod>;
  /** Pods of Emulators. */
  readonly emulatorPods: Informer<Pod>;
  readonly approvals: HostApprovals;
  readonly hostRecords: HostRecords;
  readonly recorder: Recorder;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

class MissingHosts {
  readonly #options: MissingHostsOptions;
  /** Last states of deleted Nodes that were not reconciled yet. The key is the name of the Node. */
  readonly #deleted = new LRUCache<string, Node>({ max: DELETED_REMEMBERED });

  constructor(options: MissingHostsOptions) {
    this.#options = options;
  }

  /**
   * Remembers since when a host has no Node. When nothing waits for the host any more, its record goes, unless its agent can still create the
   * Node again.
   */
  async reconcile(name: string, logger: Logger): Promise<void> {
    const { client, hostRecords } = this.#options;
    const record = this.earlierOf(name);
    const isAsked = hostRecords.requested().includes(name);
    const isUnknown = record === undefined && !this.#isUsed(name) && !isAsked;
    // A Node without the label of hosts is not in the cache. So the API server is asked.
    if (isUnknown || (await unlessMissing(client.get(NODES, { name }))) !== undefined) {
      return;
    }
    await (isAsked ? this.#giveUp({ metadata: { name } }, logger) : this.#keep(name, record));
    this.#deleted.delete(name);
  }

  async #keep(name: string, record: HostRecord | undefined): Promise<void> {
    const { hostRecords, approvals, clock } = this.#options;
    const missingSince = record?.missingSince ?? timestamp(clock());
    const isRecent = clock() - Date.parse(missingSince) < KEPT_MILLISECONDS;
    const mayReturn = record?.givenUpAt === undefined && (isRecent || approvals.has(name));
    const isKept = this.#isUsed(name) || mayReturn;
    await hostRecords.keep(name, isKept ? { ...NO_RECORD, ...record, missingSince } : undefined);
  }

  /** Returns true if the Pod of a machine is bound to the host. */
  #isUsed(name: string): boolean {
    const { pods, emulatorPods } = this.#options;
    return [pods, emulatorPods].some(({ cache }) => cache.byIndex(PODS_BY_NODE, name).length > 0);
  }

  /** Returns true if the host has no Node, and has a record or machines. */
  isKnown(name: string): boolean {
    return this.#options.hostRecords.of(name) !== undefined || this.#isUsed(name);
  }

  /** Notes the last state of a deleted Node for its next reconcile. */
  noteDeleted(node: Node): void {
    this.#deleted.set(node.metadata.name, node);
  }

  /**
   * Returns what an earlier Node of the host had. If nothing is stored, it is what the deleted Node had. An agent can create its Node again
   * before the next reconcile.
   */
  earlierOf(name: string): HostRecord | undefined {
    const last = this.#deleted.get(name);
    return this.#options.hostRecords.of(name) ?? (last && recordOf(last));
  }

  /** Forgets the deleted Node, because the present Node has all that it had. */
  forgetDeleted(name: string): void {
    this.#deleted.delete(name);
  }

  /** Gives a silent host up if an administrator asked for it. A host that reports is not given up, because its machines can run. */
  async answerGiveUp(node: Node, logger: Logger): Promise<void> {
    const { hostRecords, recorder } = this.#options;
    const { name } = node.metadata;
    if (!hostRecords.requested().includes(name)) {
      return;
    }
    if (silentSince(node) !== undefined) {
      await this.#giveUp(node, logger);
      return;
    }
    const message = `Host ${name} reports, so it is not given up. Delete its VMs, or stop its agent first`;
    recorder.event(node, warning('GiveUpRefused', 'GivingUp', message));
    await hostRecords.answer(name);
  }

  async #giveUp(node: Pick<Node, 'metadata'>, logger: Logger): Promise<void> {
    const { hostRecords, recorder, clock } = this.#options;
    const { name } = node.metadata;
    logger.warn({ host: name }, 'an administrator gave a host up');
    const givenUpAt = timestamp(clock());
    await hostRecords.answer(name, { ...NO_RECORD, ...hostRecords.of(name), givenUpAt });
    const message = `Host ${name} was given up. Its VMs that have run are lost, and the others are placed again`;
    recorder.event({ apiVersion: 'v1', kind: 'Node', ...node }, warning('HostGivenUp', 'GivingUp', message));
  }
}

interface HostView {
  readonly isLeader: () => boolean;
  readonly nodes: () => readonly Readonly<Node>[];
}

/** Exports the number of hosts with a wrong version. */
export function exportHostMetrics(registry: Registry, view: HostView): void {
  exportLeaderGauge(registry, {
    name: 'berth_hosts_version_skew',
    help: 'Hosts whose agent is more than one minor release older or newer than the operator',
    isLeader: view.isLeader,
    count: (gauge) => gauge.set(view.nodes().filter(isHost).filter(isTooOldOrNew).length),
  });
}
