/** Sends the requests with which the reconcile of a VM changes objects. The VM and its Pod have the same key, `namespace/name`. */
import { awaitedOn } from '../../api/v1alpha1/machine.ts';
import {
  DESIRED_ANNOTATION,
  GIVEN_UP_ANNOTATION,
  POD_FINALIZER,
  VM_FINALIZER,
  VM_UID_LABEL,
} from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { NODES, PODS, type Secret, SECRETS } from '../../kube/core.ts';
import { undefinedIf } from '../../base/errors.ts';
import { timestamp } from '../../base/time.ts';
import {
  isAlreadyExists,
  isInvalid,
  isNotFound,
  isObjectRefused,
  isWebhookFailure,
  unlessMissing,
} from '../../kube/errors.ts';
import { keyOf, refOf, type Unsaved } from '../../kube/objects.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { awaitedPatch } from '../host/plan.ts';
import { FIELD_MANAGER } from '../objects/writer.ts';
import { unlessRefused } from '../objects/refusals.ts';
import { successorOf } from './adoption.ts';
import type { ObservedVM, Size, VMSources } from './observe.ts';
import { refusedAgain, resizedContainers } from './size.ts';
import type { VMWrite } from './steps.ts';
import type { Naming } from '../podbacked/kind.ts';
import { type Executed, type PodBackedSources, PodBackedWriter } from '../podbacked/writer.ts';
import type { Adoptions } from '../host/adoptions.ts';

/** How VMs and their Pods are named. A VM and its Pod have the same name. */
export const VM_NAMING: Naming<VM, ObservedVM> = {
  resource: VMS,
  uidLabel: VM_UID_LABEL,
  podKeyOf: (key) => key,
  objectOf: ({ vm }) => vm,
  nameTaken: ({ metadata: { name } }, other) => {
    const owner = other.metadata.ownerReferences?.[0];
    const whose = owner === undefined ? 'a Pod without a controller' : `a Pod of ${owner.kind} ${owner.name}`;
    return `The name of the VM, ${name}, is used by ${whose}`;
  },
};

/** A request that creates an object. The API server can refuse the object, or another object can already have its name. */
type Creation = Extract<VMWrite, { kind: 'createPod' | 'createSecret' }>;

export class VMWriter extends PodBackedWriter<VM, ObservedVM, VMWrite> {
  readonly #adoptions: Adoptions;

  constructor(sources: PodBackedSources<VM> & Pick<VMSources, 'adoptions'>) {
    super(sources, VM_NAMING);
    this.#adoptions = sources.adoptions;
  }

  override async execute(observed: ObservedVM, write: VMWrite): Promise<Executed<ObservedVM>> {
    switch (write.kind) {
      case 'createPod':
        return await this.unlessBlocked(observed, this.createPod(observed, write.pod));
      case 'createSecret':
        return await this.unlessBlocked(observed, this.#createSecret(observed, write.secret));
      default:
        return await unlessRefused(observed, this.#change(observed, write));
    }
  }

  async #change(observed: ObservedVM, write: Exclude<VMWrite, Creation>): Promise<ObservedVM> {
    switch (write.kind) {
      case 'addFinalizer':
        return await this.#setFinalizer(observed, true);
      case 'removeFinalizer':
        return await this.#setFinalizer(observed, false);
      case 'resizePod':
        return await this.#resizePod(observed, write.size);
      case 'patchDesired':
        return await this.#patchPod(observed, { annotations: { [DESIRED_ANNOTATION]: write.text } });
      case 'releasePod':
        return await this.#releasePod(observed);
      default:
        await this.#send(observed, write);
        return observed;
    }
  }

  /** Sends a request that changes nothing in the observed state. */
  async #send(observed: ObservedVM, write: Exclude<VMWrite, Creation>): Promise<void> {
    switch (write.kind) {
      case 'deletePod':
        return await this.deletePod(observed, write.graceSeconds);
      case 'rememberGivenUp':
        return await this.#rememberGivenUp(observed, write.macAddresses);
      case 'saveSuccessor':
        return await this.#saveSuccessor(observed);
      case 'awaitPod':
        return await this.#awaitPod(observed);
      default:
        return await this.objects.deleteUnchanged(observed.vm);
    }
  }

  /**
   * Returns true if the VM has not changed since it was read. If it has changed, the next reconcile waits until the cache shows the change.
   * The cache of a new leader can lack changes by the earlier leader, for example the failure of a VM.
   * @throws ApiError when there is no VM
   */
  async isCurrent(vm: VM): Promise<boolean> {
    const key = keyOf(vm);
    const current = await this.client.get(VMS, refOf(key));
    const isSame = current.metadata.resourceVersion === vm.metadata.resourceVersion;
    if (!isSame) {
      this.objects.follow(key, current);
    }
    return isSame;
  }

  async #setFinalizer(observed: ObservedVM, isHeld: boolean): Promise<ObservedVM> {
    const { vm } = observed;
    return { ...observed, vm: (await this.objects.setFinalizer(keyOf(vm), vm, VM_FINALIZER, isHeld)) ?? vm };
  }

  async #createSecret(observed: ObservedVM, secret: Unsaved<Secret>): Promise<Executed<ObservedVM>> {
    const creation = this.client.create(SECRETS, secret, { fieldManager: FIELD_MANAGER });
    await undefinedIf(isAlreadyExists, creation);
    return { observed };
  }

  /**
   * Stores the MAC addresses on the Node. The request fails if the Node has changed since it was read. Without this check, the request
   * could overwrite the address of another machine that was abandoned on the same host.
   */
  async #rememberGivenUp({ node }: ObservedVM, macAddresses: readonly string[]): Promise<void> {
    if (node === undefined) {
      return;
    }
    const { name, uid, resourceVersion } = node.metadata;
    const annotations = { [GIVEN_UP_ANNOTATION]: JSON.stringify(macAddresses) };
    const patch = { metadata: { uid, resourceVersion, annotations } };
    const write = this.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
    // Two errors are ignored, so that the host's VMs can be deleted. First, the Node no longer exists, because somebody fenced the host.
    // Second, the host has filled the annotations of its Node, so the API server refuses another annotation. In both cases no address is
    // stored, so no later Event can warn about a VM with the same address.
    await undefinedIf((error) => isNotFound(error) || isInvalid(error), write);
  }

  /** Stores the next Pod of the machine. The present Pod is read from the API server, because the cache lacks parts of it. */
  async #saveSuccessor({ vm, pod }: ObservedVM): Promise<void> {
    const stored = await unlessMissing(this.client.get(PODS, refOf(keyOf(vm))));
    if (stored !== undefined && stored.metadata.uid === pod?.metadata.uid) {
      await this.#adoptions.save(vm, successorOf(stored));
    }
  }

  /**
   * Lists the VM on its Node as one whose machine gets another Pod, and adds the taint. Both come before the Pod goes, so that the host keeps
   * the machine and the scheduler keeps others away.
   */
  async #awaitPod({ vm, node, now }: ObservedVM): Promise<void> {
    if (node === undefined) {
      return;
    }
    const { name } = node.metadata;
    const added = { [vm.metadata.uid ?? '']: { vm: keyOf(vm), since: timestamp(now) } };
    const patch = awaitedPatch(node, { ...awaitedOn(node), ...added }, now);
    await this.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
  }

  async #releasePod(observed: ObservedVM): Promise<ObservedVM> {
    const { vm, pod } = observed;
    return pod === undefined
      ? observed
      : { ...observed, pod: (await this.pods.setFinalizer(keyOf(vm), pod, POD_FINALIZER, false)) ?? pod };
  }

  async #patchPod(observed: ObservedVM, metadata: object): Promise<ObservedVM> {
    const { vm, pod } = observed;
    return pod === undefined
      ? observed
      : { ...observed, pod: (await this.pods.patch(keyOf(vm), pod, { metadata })) ?? pod };
  }

  /**
   * Requests another size for the Pod. A refusal by a quota or the API server is not an error, but becomes part of the observed state.
   * @throws ApiError when a webhook cannot be called, because then nobody has refused the size
   */
  async #resizePod(observed: ObservedVM, size: Size): Promise<ObservedVM> {
    const { vm, pod } = observed;
    if (pod === undefined) {
      return observed;
    }
    try {
      const change = { spec: { containers: resizedContainers(pod, size) } };
      const saved = await this.pods.patch(keyOf(vm), pod, change, 'resize');
      return saved === undefined ? observed : { ...observed, pod: saved, resizeRefused: undefined };
    } catch (error) {
      if (isObjectRefused(error) && !isWebhookFailure(error)) {
        return { ...observed, resizeRefused: refusedAgain(observed, size, error.message) };
      }
      throw error;
    }
  }
}
