/** Keeps the records of hosts without a Node, and gives up the hosts that administrators declare gone for good. */
import { LRUCache } from 'lru-cache';
import type { Logger } from 'pino';
import { timestamp } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Node, NODES, type Pod } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { type Recorder, warning } from '../objects/events.ts';
import type { HostApprovals } from './approvals.ts';
import { silentSince } from './observe.ts';
import { type HostRecord, type HostRecords, NO_RECORD, recordOf } from './records.ts';
import { PODS_BY_NODE } from '../objects/boundpods.ts';

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

export interface MissingHostsOptions {
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

export class MissingHosts {
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
