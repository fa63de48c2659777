/**
 * Writes Pod status and the last delete, in a queue of its own: an API server that does not answer holds up no machine,
 * and of several states in the meantime only the last is told.
 */
import { isDeepStrictEqual } from 'node:util';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { AGENT_NAME } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { Controller, type Result } from '../../kube/controller.ts';
import { type Pod, type PodCondition, PODS, type PodStatus } from '../../kube/core.ts';
import { ApiError, isConflict, isInvalid, isNotFound, TerminalError } from '../../kube/errors.ts';
import { compareResourceVersions, keyOf, refOf } from '../../kube/objects.ts';
import { isEnded } from './pod.ts';

/** One hanging write must not hold up the others of a host's few dozen Pods. */
const WORKERS = 8;

interface AfterStatus {
  /** The Pod is being deleted and nothing of its machine is left, so it can go. */
  finish?: boolean;
  /** Called once the API server has the status. */
  onTaken?: () => void;
}

/** The status that a Pod is to show. */
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
  /** The server's answers to the last writes, by uid. */
  readonly #written = new Map<string, Pod>();
  /** Uids of Pods whose last delete was sent. */
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

  /** The Pod with the status that this agent wrote last, if the watch has not brought it yet. */
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
    // Deadlines and wishes come from the watch alone; only the status is known better here.
    return { ...pod, ...(written.status === undefined ? {} : { status: written.status }) };
  }

  /** Has the Pod show a status, in place of an earlier one that is not written yet. */
  show(pod: Readonly<Pod>, status: PodStatus, after: AfterStatus = {}): void {
    const key = keyOf(pod);
    this.#wishes.set(key, { uid: pod.metadata.uid ?? '', status, ...after });
    this.#controller.enqueue(key);
  }

  /** The Pod is gone. */
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
    // A container that was terminated stays so.
    if (!isEnded(current) && !showsAlready(current, wish.status)) {
      await this.#write(current, wish.status);
    }
    wish.onTaken?.();
    if (wish.finish === true) {
      await this.#finish(pod);
    }
    return undefined;
  }

  async #write(pod: Readonly<Pod>, status: PodStatus): Promise<void> {
    const { name, namespace, uid = '' } = pod.metadata;
    try {
      const written = await this.#options.client.apply(
        PODS,
        { metadata: { name, namespace, uid }, status },
        { fieldManager: AGENT_NAME, force: true, subresource: 'status' },
      );
      this.#written.set(uid, written);
    } catch (error) {
      if (!isNotFound(error)) {
        throw isOurMistake(error) ? new TerminalError(error.message, { cause: error }) : error;
      }
    }
  }

  /** A Pod with finalizers stays until their owners let go; grace 0 says that the last delete was sent before. */
  async #finish(pod: Readonly<Pod>): Promise<void> {
    const { uid = '', deletionGracePeriodSeconds } = pod.metadata;
    if (deletionGracePeriodSeconds === 0 || this.#finished.has(uid)) {
      return;
    }
    try {
      await this.#options.client.delete(PODS, refOf(keyOf(pod)), { gracePeriodSeconds: 0, uid });
    } catch (error) {
      // Another Pod has the name by now: this one is gone.
      if (!isConflict(error)) {
        throw error;
      }
    }
    this.#finished.add(uid);
  }
}

/** A body that does not fit the schema is answered with 500, not 4xx; a Pod of another uid with 422. */
function isOurMistake(error: unknown): error is Error {
  const untyped = error instanceof ApiError && error.message.includes('failed to create typed patch object');
  return isInvalid(error) || untyped;
}

/** Whether the Pod shows all of `wanted` already. Fields that others wrote do not count. */
export function showsAlready(pod: Pod, wanted: PodStatus): boolean {
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

/** The API server adds `lastProbeTime: null` to what it returns. */
function withoutProbe(condition: PodCondition): PodCondition {
  const { lastProbeTime, ...rest } = condition;
  return lastProbeTime === undefined || lastProbeTime === null ? rest : condition;
}
