/**
 * Renews the Node's Lease, which shows the cluster that this host is alive. The time since the last renewal tells the host how long it has
 * been cut off.
 */
import { uptime } from 'node:os';
import type { Logger } from 'pino';
import { AGENT_NAME } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { LEASES, type Node } from '../../kube/core.ts';
import { microTime, pause } from '../../base/time.ts';

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

export interface LeaseOptions {
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
