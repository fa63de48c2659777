/** Sends the requests with which a reconcile changes a VM or Emulator and its Pod. The key of an object is `namespace/name`. */
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { isObjectRefused, unlessMissing } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf, refOf, type Unsaved } from '../../kube/objects.ts';
import { conditionIn } from '../objects/conditions.ts';
import { refusalMessage } from '../objects/refusals.ts';
import { Writer } from '../objects/writer.ts';
import type { Blocked, Naming, PodBacked, Run } from './kind.ts';
import { type HostSources, type PodObserved, reachOf } from './observe.ts';

/** Observed state after a request. `blocked` is set if the API server refused a new object, or if another Pod has the name. */
export type Executed<Observed> = Pick<Run<Observed>, 'observed' | 'blocked' | 'refused'>;

export interface PodBackedSources<T extends PodBacked> extends HostSources {
  readonly consistency: Consistency;
  readonly objects: Informer<T>;
  /** Pods of the objects. */
  readonly objectPods: Informer<Pod>;
}

export abstract class PodBackedWriter<T extends PodBacked, Observed extends PodObserved, Write> {
  readonly #sources: PodBackedSources<T>;
  readonly #naming: Naming<T, Observed>;
  protected readonly client: KubeClient;
  protected readonly objects: Writer<T>;
  protected readonly pods: Writer<Pod>;

  constructor(sources: PodBackedSources<T>, naming: Naming<T, Observed>) {
    const { client, consistency, objects, objectPods } = sources;
    this.#sources = sources;
    this.#naming = naming;
    this.client = client;
    this.objects = new Writer({ client, consistency, type: naming.resource, informer: objects });
    this.pods = new Writer({ client, consistency, type: PODS, informer: objectPods });
  }

  /**
   * Executes one request. Returns the observed state after the request.
   * @throws ApiError for an error that the status of the object does not report, for example a conflict, a missing permission of the
   * operator, or a failure of the API server itself. A later attempt can succeed.
   */
  abstract execute(observed: Observed, write: Write): Promise<Executed<Observed>>;

  /**
   * Writes the status.
   * @returns false when the object no longer exists
   */
  async writeStatus(object: T, patch: object): Promise<boolean> {
    return (await this.objects.patch(keyOf(object), object, { status: patch }, 'status')) !== undefined;
  }

  /** Returns true if the object with this uid no longer exists. The function asks the API server, because a cache can lag behind. */
  async isGone(key: string, uid: string): Promise<boolean> {
    const object = await unlessMissing(this.client.get(this.#naming.resource, refOf(key)));
    return object?.metadata.uid !== uid;
  }

  /**
   * Returns the observed state with the Pod from the API server if this Pod has the object's uid. Such a Pod can be orphaned: it has then
   * lost only its owner reference. A Pod with another uid is never adopted. It blocks the object.
   * @throws ApiError when there is no Pod
   */
  async readPod(observed: Observed): Promise<Executed<Observed>> {
    const { uidLabel, podKeyOf, objectOf, nameTaken } = this.#naming;
    const object = objectOf(observed);
    const key = keyOf(object);
    const pod = await this.client.get(PODS, refOf(podKeyOf(key)));
    if (pod.metadata.labels?.[uidLabel] === object.metadata.uid) {
      // The Node is read here, because the Pod might have been bound after the object was observed. Without the Node, the operator would
      // conclude that the host was deleted.
      const reach = await reachOf(this.#sources, pod.spec.nodeName);
      return { observed: { ...observed, ...reach, pod: this.pods.follow(key, pod) } };
    }
    const message = nameTaken(object, pod);
    return { observed, blocked: { condition: 'Scheduled', reason: 'PodNameTaken', message } };
  }

  /**
   * Returns the condition of an object without a Pod, because the API server did not accept a request. For example, a quota refused the Pod,
   * or a webhook cannot be called. The condition has the message of the API server.
   */
  blockedByRefusal(observed: Observed, error: Error): Blocked {
    const condition = 'Scheduled';
    const { status } = this.#naming.objectOf(observed);
    const message = refusalMessage(error, conditionIn(status, condition)?.message);
    return { condition, reason: 'PodRefused', message };
  }

  /** Waits for the creation of an object. If a quota or another admission rule refuses it, the observed object is blocked. */
  protected async unlessBlocked(
    observed: Observed,
    creation: Promise<Executed<Observed>>,
  ): Promise<Executed<Observed>> {
    try {
      return await creation;
    } catch (error) {
      if (isObjectRefused(error)) {
        return { observed, blocked: this.blockedByRefusal(observed, error) };
      }
      throw error;
    }
  }

  protected async createPod(observed: Observed, pod: Unsaved<Pod>): Promise<Executed<Observed>> {
    const created = await this.pods.create(keyOf(this.#naming.objectOf(observed)), pod);
    return created === undefined ? await this.readPod(observed) : { observed: { ...observed, pod: created } };
  }

  /** Deletes the Pod with this grace period, or with its own. A period of 0 means that no agent can end the machine cleanly any more. */
  protected async deletePod({ pod }: Observed, gracePeriodSeconds: number | undefined): Promise<void> {
    if (pod !== undefined) {
      await this.pods.delete(pod, gracePeriodSeconds === undefined ? {} : { gracePeriodSeconds });
    }
  }
}
