/** The Node's Lease: the sign of life, and the host's own measure of how long it has been cut off. */
import type { Logger } from 'pino';
import { AGENT_NAME } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { LEASES, type Node } from '../../kube/core.ts';
import { microTime, pause } from '../../base/time.ts';

const LEASE_NAMESPACE = 'kube-node-lease';
/** A kubelet's numbers: 40 s, renewed every 10 s. */
const LEASE_SECONDS = 40;
const RENEW_MILLISECONDS = 10_000;
const RETRY_MILLISECONDS = 2_000;
/** A kubelet's proportion: with a shorter fence the Lease is renewed more often, or the host would be fenced in between. */
const RENEWALS_PER_FENCE = 4;
/** Shorter than the time between renewals, so that a hanging request does not cost one. */
const REQUEST_MILLISECONDS = 8_000;
/** How finely the time since the last renewal is looked at. */
const FENCE_LOOK_MILLISECONDS = 500;

export interface LeaseOptions {
  client: KubeClient;
  nodeName: string;
  /** The Node, once it is there: the Lease belongs to it and is removed with it. */
  node: () => Readonly<Node> | undefined;
  fenceAfterMilliseconds: number;
  /**
   * Whether this host has seen the fate of its Pods since it was cut off. Asked after a renewal: until then the fence stays, or a
   * machine would be started whose VM another host has by now.
   */
  isUpToDate: (signal: AbortSignal) => Promise<boolean>;
  /** Called on every change: true when the Lease has not been renewed for so long that this host may be thought dead. */
  onFenced: (fenced: boolean) => void;
  logger: Logger;
  /** Milliseconds that never run backwards. */
  monotonic?: () => number;
}

export class NodeLease {
  readonly #options: LeaseOptions;
  readonly #monotonic: () => number;
  readonly #renewMilliseconds: number;
  readonly #retryMilliseconds: number;
  #renewedAt: number;
  #fenced = false;

  constructor(options: LeaseOptions) {
    this.#options = options;
    this.#monotonic = options.monotonic ?? (() => performance.now());
    this.#renewedAt = this.#monotonic();
    this.#renewMilliseconds = Math.min(
      RENEW_MILLISECONDS,
      options.fenceAfterMilliseconds / RENEWALS_PER_FENCE,
    );
    this.#retryMilliseconds = Math.min(RETRY_MILLISECONDS, this.#renewMilliseconds);
  }

  get fenced(): boolean {
    return this.#fenced;
  }

  /** Renews until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const look = setInterval(() => this.#look(), FENCE_LOOK_MILLISECONDS);
    try {
      while (!signal.aborted) {
        const hadOwner = this.#options.node() !== undefined;
        const renewed = await this.#renew(signal);
        // A Lease written before the Node was there has no owner yet, and would outlive it.
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
    if (!this.#fenced && this.#monotonic() - this.#renewedAt >= fenceAfterMilliseconds) {
      this.#setFenced(true);
    }
  }

  #setFenced(fenced: boolean): void {
    this.#fenced = fenced;
    this.#options.onFenced(fenced);
  }

  async #renew(signal: AbortSignal): Promise<boolean> {
    const { client, logger } = this.#options;
    // The server may have taken the renewal before its answer was lost: counted from when it was sent.
    const sentAt = this.#monotonic();
    try {
      await client.apply(LEASES, this.#lease(), {
        fieldManager: AGENT_NAME,
        force: true,
        signal,
        deadlineMilliseconds: Math.min(REQUEST_MILLISECONDS, this.#renewMilliseconds),
      });
    } catch (error) {
      if (!signal.aborted) {
        logger.warn({ err: error }, 'lease not renewed');
      }
      return false;
    }
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
        logger.warn({ err: error }, 'what became of the Pods meanwhile is not known yet');
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
