/** Writes Pod status and the last delete; remembers what it wrote, so that a watch that is behind is not taken for the truth. */
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, PODS, type PodStatus } from '../../kube/core.ts';
import { ApiError, isConflict, isInvalid, isNotFound, TerminalError } from '../../kube/errors.ts';
import { compareResourceVersions, refOf } from '../../kube/objects.ts';
import { FIELD_MANAGER } from '../node/constants.ts';
import { showsAlready } from './shows.ts';

export class PodWriter {
  readonly #client: KubeClient;
  /** By uid: the Pod as the server answered the last write. */
  readonly #written = new Map<string, Pod>();

  constructor(client: KubeClient) {
    this.#client = client;
  }

  /** The Pod with what this agent wrote last, where the watch has not brought it yet. */
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

  /**
   * Applies a status unless the Pod shows it already; `pod` as from {@link newest}. True when the server has it.
   * Throws TerminalError for what trying again cannot mend.
   */
  async write(pod: Readonly<Pod>, status: PodStatus): Promise<boolean> {
    if (showsAlready(pod, status)) {
      return true;
    }
    const { name, namespace, uid } = pod.metadata;
    try {
      const written = await this.#client.apply(
        PODS,
        { metadata: { name, namespace, uid }, status },
        { fieldManager: FIELD_MANAGER, force: true, subresource: 'status' },
      );
      this.#written.set(uid ?? '', written);
      return true;
    } catch (error) {
      if (isNotFound(error)) {
        return false;
      }
      throw isOurMistake(error) ? new TerminalError(error.message, { cause: error }) : error;
    }
  }

  /** The last delete of a Pod whose machine is gone. A Pod with finalizers stays until their owners let go. */
  async finish(pod: Readonly<Pod>): Promise<void> {
    const { uid } = pod.metadata;
    const ref = refOf(`${pod.metadata.namespace}/${pod.metadata.name}`);
    try {
      await this.#client.delete(PODS, ref, { gracePeriodSeconds: 0, uid });
    } catch (error) {
      // Another Pod has the name by now: this one is gone.
      if (!isConflict(error)) {
        throw error;
      }
    }
  }

  forget(uid: string): void {
    this.#written.delete(uid);
  }
}

/** A body that does not fit the schema is answered with 500, not 4xx; a Pod of another uid with 422. */
function isOurMistake(error: unknown): error is Error {
  const untyped = error instanceof ApiError && error.message.includes('failed to create typed patch object');
  return isInvalid(error) || untyped;
}
