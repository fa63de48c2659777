/**
 * Writes the status of Pods, and finally deletes Pods whose machine or task is gone. The writer has its own queue, so that a slow API
 * server delays no machine. If the state changes several times before the status is written, only the last state is written.
 */
import { isDeepStrictEqual } from 'node:util';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { AGENT_NAME } from '../../api/v1alpha1/names.ts';
import { undefinedIf } from '../../base/errors.ts';
import type { KubeClient } from '../../kube/client.ts';
import { Controller, type Result } from '../../kube/controller.ts';
import { type Pod, type PodCondition, PODS, type PodStatus } from '../../kube/core.ts';
import { ApiError, isConflict, isInvalid, isNotFound, TerminalError } from '../../kube/errors.ts';
import { compareResourceVersions, keyOf, refOf } from '../../kube/objects.ts';
import { isEnded } from './pod.ts';

/**
 * Number of Pod statuses that are written in parallel, so that a single slow request does not delay the other Pods. Eight suffice, because
 * a host has a few dozen Pods.
 */
const WORKERS = 8;

interface AfterStatus {
  /**
   * Whether the writer deletes the Pod with grace period 0 after it has written the status. The value is true if the Pod is being deleted
   * and has nothing left on the host.
   */
  finish?: boolean;
  /** Called when the API server has accepted the status or already has the same status. */
  onTaken?: () => void;
}

/** Status to write to a Pod. */
interface StatusWish extends AfterStatus {
  uid: string;
  status: PodStatus;
}

export interface StatusWriterOptions {
  client: KubeClient;
  podOf: (key: string) => Readonly<Pod> | undefined;
  logger: Logger;
  metrics: Registry;
}

export class StatusWriter {
  readonly #options: StatusWriterOptions;
  readonly #controller: Controller;
  readonly #wishes = new Map<string, StatusWish>();
  /** For each Pod, the API server's answer to the last request that wrote the Pod's status. The key is the Pod's uid. */
  readonly #written = new Map<string, Pod>();
  /** Uids of the Pods that this agent has deleted with grace period 0. */
  readonly #finished = new Set<string>();

  constructor(options: StatusWriterOptions) {
    const { logger, metrics } = options;
    this.#options = options;
    this.#controller = new Controller({
      name: 'podstatus',
      workers: WORKERS,
      reconcile: (key) => this.#reconcile(key),
      logger,
      metrics,
    });
  }

  start(signal: AbortSignal): void {
    this.#controller.start(signal);
  }

  async drained(): Promise<void> {
    await this.#controller.drained();
  }

  /** Returns the Pod with its newest known status. This is the status that the agent wrote last, if the watch has not delivered it yet. */
  newest(pod: Readonly<Pod>): Readonly<Pod> {
    const uid = pod.metadata.uid ?? '';
    const written = this.#written.get(uid);
    if (written === undefined) {
      return pod;
    }
    const { resourceVersion: seen = '' } = pod.metadata;
    const { resourceVersion: wrote = '' } = written.metadata;
    if (compareResourceVersions(seen, wrote) >= 0) {
      this.#written.delete(uid);
      return pod;
    }
    // Only the status comes from the answer to the last request. The Pod's deadlines and annotations come from the watch, which might be
    // newer.
    return { ...pod, ...(written.status === undefined ? {} : { status: written.status }) };
  }

  /** Queues a status for a Pod. The new status replaces an earlier status that is not written yet. */
  show(pod: Readonly<Pod>, status: PodStatus, after: AfterStatus = {}): void {
    const key = keyOf(pod);
    if (this.#exists(pod)) {
      this.#wishes.set(key, { uid: pod.metadata.uid ?? '', status, ...after });
      this.#controller.enqueue(key);
    }
  }

  /** Forgets a Pod that no longer exists. */
  forget(pod: Readonly<Pod>): void {
    const { uid = '' } = pod.metadata;
    this.#written.delete(uid);
    this.#finished.delete(uid);
    if (this.#wishes.get(keyOf(pod))?.uid === uid) {
      this.#wishes.delete(keyOf(pod));
    }
  }

  async #reconcile(key: string): Promise<Result> {
    const wish = this.#wishes.get(key);
    const pod = this.#options.podOf(key);
    if (wish === undefined || pod?.metadata.uid !== wish.uid) {
      return undefined;
    }
    const current = this.newest(pod);
    // A terminated container stays terminated, so the status of its Pod is not written again.
    const isOutdated = !isEnded(current) && !showsAlready(current, wish.status);
    if (isOutdated && !(await this.#write(current, wish.status))) {
      return undefined;
    }
    wish.onTaken?.();
    if (wish.finish === true) {
      await this.#finish(pod);
    }
    return undefined;
  }

  /** Writes the status of a Pod. Returns false if the Pod no longer exists. The watch has then not reported the deletion yet. */
  async #write(pod: Readonly<Pod>, status: PodStatus): Promise<boolean> {
    const { name, namespace, uid = '' } = pod.metadata;
    try {
      const written = await this.#options.client.apply(
        PODS,
        { metadata: { name, namespace, uid }, status },
        { fieldManager: AGENT_NAME, force: true, subresource: 'status' },
      );
      if (this.#exists(pod)) {
        this.#written.set(uid, written);
      }
      return true;
    } catch (error) {
      if (isNotFound(error)) {
        return false;
      }
      throw isOurMistake(error) ? new TerminalError(error.message, { cause: error }) : error;
    }
  }

  /**
   * Deletes the Pod with grace period 0. If the Pod was already deleted with grace period 0, the function does nothing. A Pod with
   * finalizers still exists after such a deletion.
   */
  async #finish(pod: Readonly<Pod>): Promise<void> {
    const { uid = '', deletionGracePeriodSeconds } = pod.metadata;
    if (deletionGracePeriodSeconds === 0 || this.#finished.has(uid)) {
      return;
    }
    const deletion = this.#options.client.delete(PODS, refOf(keyOf(pod)), { gracePeriodSeconds: 0, uid });
    // A conflict means that another Pod has the name now, so the old Pod no longer exists.
    await undefinedIf(isConflict, deletion);
    if (this.#exists(pod)) {
      this.#finished.add(uid);
    }
  }

  /** Returns whether the Pod still exists. If it is gone, {@link forget} has already run, and nothing would remove a later entry. */
  #exists(pod: Readonly<Pod>): boolean {
    return this.#options.podOf(keyOf(pod))?.metadata.uid === pod.metadata.uid;
  }
}

/**
 * Returns whether the API server has rejected the content of a request, so that a retry would fail too. The API server answers 500 if the
 * status does not match the schema, and 422 if the uid is wrong.
 */
function isOurMistake(error: unknown): error is Error {
  const untyped = error instanceof ApiError && error.message.includes('failed to create typed patch object');
  return isInvalid(error) || untyped;
}

/**
 * Returns whether the Pod's status already has all fields and conditions of `wanted`. Other fields and conditions, which other programs
 * write, are ignored.
 */
function showsAlready(pod: Pod, wanted: PodStatus): boolean {
  const { conditions: wantedConditions = [], ...rest } = wanted;
  const current: Record<string, unknown> = { ...pod.status };
  const same = Object.entries(rest).every(([key, value]) => isDeepStrictEqual(current[key], value));
  const others = pod.status?.conditions ?? [];
  return (
    same &&
    wantedConditions.every((wanted) =>
      others.some((other) => other.type === wanted.type && isDeepStrictEqual(withoutProbe(other), wanted)),
    )
  );
}

/** Removes `lastProbeTime: null`, which the API server adds to conditions in its answers. */
function withoutProbe(condition: PodCondition): PodCondition {
  const { lastProbeTime, ...rest } = condition;
  return lastProbeTime === undefined || lastProbeTime === null ? rest : condition;
}
