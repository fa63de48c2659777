/** Sends the requests with which the reconcile of an Emulator changes objects. The key of an Emulator is `namespace/name`. */
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import { API_VERSION, VM_FINALIZER } from '../../api/v1alpha1/names.ts';
import type { Consistency } from '../../kube/consistency.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { type ApiError, isObjectRefused, unlessMissing } from '../../kube/errors.ts';
import { keyOf, refOf } from '../../kube/objects.ts';
import { EMULATORS } from '../../api/v1alpha1/resources.ts';
import { conditionIn } from '../objects/conditions.ts';
import { refusalMessage, unlessRefused } from '../objects/refusals.ts';
import { Writer } from '../objects/writer.ts';
import { reachOf } from '../vm/observe.ts';
import { isPodOf, type Observed, podKeyOf, type Sources } from './observe.ts';
import { ownerOf } from './pairing.ts';
import type { Blocked, Write } from './plan.ts';
import { buildPod } from './pod.ts';

export interface EmulatorWriterOptions
  extends Pick<
    Sources,
    'client' | 'emulators' | 'emulatorPods' | 'nodes' | 'servers' | 'hostRecords' | 'clock'
  > {
  readonly consistency: Consistency;
}

/** Observed state after a request. */
export interface Executed {
  readonly observed: Observed;
  /** Set if the API server refused the new Pod, or if another Pod already has its name. */
  readonly blocked?: Blocked | undefined;
  /** Set if the API server refused the change of an existing object. */
  readonly refused?: ApiError | undefined;
}

/** A request that changes or deletes an existing object. */
type Change = Exclude<Write, { kind: 'createPod' }>;

export class EmulatorWriter {
  readonly #options: EmulatorWriterOptions;
  readonly #emulators: Writer<Emulator>;
  readonly #pods: Writer<Pod>;

  constructor(options: EmulatorWriterOptions) {
    const { client, consistency, emulators, emulatorPods } = options;
    this.#options = options;
    this.#emulators = new Writer({ client, consistency, type: EMULATORS, informer: emulators });
    this.#pods = new Writer({ client, consistency, type: PODS, informer: emulatorPods });
  }

  /**
   * Executes one request. Returns the observed state after the request.
   * @throws ApiError for an error that the status of the Emulator does not report, for example a conflict, a missing permission of the
   * operator, or a failure of the API server itself. A later attempt can succeed.
   */
  async execute(observed: Observed, write: Write): Promise<Executed> {
    return write.kind === 'createPod'
      ? await this.#createPod(observed, write.host)
      : await unlessRefused(observed, this.#change(observed, write));
  }

  async #change(observed: Observed, write: Change): Promise<Observed> {
    switch (write.kind) {
      case 'adopt':
        return await this.#adopt(observed);
      case 'deletePod':
        await this.deletePod(observed.pod, write.force);
        return observed;
      case 'deleteEmulator':
        await this.#emulators.delete(observed.emulator);
        return observed;
      case 'removeFinalizer':
      default:
        await this.#emulators.setFinalizer(keyOf(observed.emulator), observed.emulator, VM_FINALIZER, false);
        return observed;
    }
  }

  /**
   * Writes the Emulator's status.
   * @returns false when the Emulator no longer exists
   */
  async writeStatus(emulator: Emulator, patch: object): Promise<boolean> {
    return (
      (await this.#emulators.patch(keyOf(emulator), emulator, { status: patch }, 'status')) !== undefined
    );
  }

  /** Deletes the Pod. If `force` is true, the grace period is 0, because no agent can end the emulator any more. */
  async deletePod(pod: Pod | undefined, force: boolean): Promise<void> {
    if (pod !== undefined) {
      await this.#pods.delete(pod, force ? { gracePeriodSeconds: 0 } : {});
    }
  }

  /** Returns true if the Pod's Emulator no longer exists. The function asks the API server, because a cache can lag behind. */
  async emulatorIsGone(key: string, pod: Pod): Promise<boolean> {
    const emulator = await unlessMissing(this.#options.client.get(EMULATORS, refOf(key)));
    return emulator === undefined || !isPodOf(pod, emulator);
  }

  /**
   * Makes the VM the owner of the Emulator. The garbage collector then deletes the Emulator together with this VM. A later VM of the same
   * name has another uid, so it does not affect the Emulator.
   */
  async #adopt(observed: Observed): Promise<Observed> {
    const { emulator, vm } = observed;
    const { finalizers = [], ownerReferences = [] } = emulator.metadata;
    const owner = {
      apiVersion: API_VERSION,
      kind: 'VM',
      name: emulator.spec.vmName,
      uid: vm?.metadata.uid ?? '',
    };
    const owners =
      ownerOf(emulator) === undefined
        ? [...ownerReferences, { ...owner, blockOwnerDeletion: true }]
        : ownerReferences;
    const metadata = {
      finalizers: [...finalizers.filter((name) => name !== VM_FINALIZER), VM_FINALIZER],
      ownerReferences: owners,
    };
    const saved = await this.#emulators.patch(keyOf(emulator), emulator, { metadata });
    return { ...observed, emulator: saved ?? emulator };
  }

  async #createPod(observed: Observed, host: string): Promise<Executed> {
    const { emulator, vm, vmPod, config } = observed;
    if (vm === undefined) {
      return { observed };
    }
    try {
      const built = buildPod({ emulator, vm, vmPod, host, config });
      const pod = await this.#pods.create(keyOf(emulator), built);
      return pod === undefined ? await this.readPod(observed) : { observed: { ...observed, pod } };
    } catch (error) {
      if (isObjectRefused(error)) {
        return { observed, blocked: blockedByRefusal(emulator, error) };
      }
      throw error;
    }
  }

  /**
   * Returns the observed state with the Pod from the API server if this Pod belongs to the Emulator. Any other Pod of this name blocks the
   * Emulator.
   * @throws ApiError when there is no Pod
   */
  async readPod(observed: Observed): Promise<Executed> {
    const { client } = this.#options;
    const key = keyOf(observed.emulator);
    const pod = await client.get(PODS, refOf(podKeyOf(key)));
    if (isPodOf(pod, observed.emulator)) {
      const reach = await reachOf(this.#options, pod.spec.nodeName);
      return { observed: { ...observed, ...reach, pod: this.#pods.follow(key, pod) } };
    }
    const message = `Another Pod has the name ${pod.metadata.name}, which the Pod of the Emulator must have`;
    return { observed, blocked: { reason: 'PodNameTaken', message } };
  }
}

/** Returns the reason why the Emulator has no Pod, because the API server did not accept a request. The message is the API server's. */
export function blockedByRefusal({ status }: Emulator, error: Error): Blocked {
  return { reason: 'PodRefused', message: refusalMessage(error, conditionIn(status, 'Scheduled')?.message) };
}
