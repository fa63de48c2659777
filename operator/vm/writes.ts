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
import type { Consistency } from '../../kube/consistency.ts';
import { NODES, type Pod, PODS, type Secret, SECRETS } from '../../kube/core.ts';
import { undefinedIf } from '../../base/errors.ts';
import { timestamp } from '../../base/time.ts';
import {
  type ApiError,
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
import { conditionIn } from '../objects/conditions.ts';
import { FIELD_MANAGER, Writer } from '../objects/writer.ts';
import { refusalMessage, unlessRefused } from '../objects/refusals.ts';
import { successorOf } from './adoption.ts';
import { type Observed, reachOf, type Size, type Sources } from './observe.ts';
import { refusedAgain, resizedContainers } from './size.ts';
import type { Findings } from './status.ts';
import type { Write } from './steps.ts';

export interface VMWriterOptions
  extends Pick<
    Sources,
    'client' | 'vms' | 'pods' | 'nodes' | 'servers' | 'hostRecords' | 'adoptions' | 'clock'
  > {
  readonly consistency: Consistency;
}

/** Observed state after a request. */
export interface Executed {
  readonly observed: Observed;
  /** Set if the API server refused the new Pod or Secret, or if another Pod already has the name. */
  readonly blocked?: Findings['blocked'];
  /** Set if the API server refused the change of an existing object. */
  readonly refused?: ApiError | undefined;
}

/** A request that creates an object. The API server can refuse the object, or another object can already have its name. */
type Creation = Extract<Write, { kind: 'createPod' | 'createSecret' }>;

export class VMWriter {
  readonly #options: VMWriterOptions;
  readonly #vms: Writer<VM>;
  readonly #pods: Writer<Pod>;

  constructor(options: VMWriterOptions) {
    const { client, consistency, vms, pods } = options;
    this.#options = options;
    this.#vms = new Writer({ client, consistency, type: VMS, informer: vms });
    this.#pods = new Writer({ client, consistency, type: PODS, informer: pods });
  }

  /**
   * Executes one request. Returns the observed state after the request.
   * @throws ApiError for an error that the status of the VM does not report, for example a conflict, a missing permission of the
   * operator, or a failure of the API server itself. A later attempt can succeed.
   */
  async execute(observed: Observed, write: Write): Promise<Executed> {
    switch (write.kind) {
      case 'createPod':
      case 'createSecret':
        return await this.#create(observed, write);
      default:
        return await unlessRefused(observed, this.#change(observed, write));
    }
  }

  async #change(observed: Observed, write: Exclude<Write, Creation>): Promise<Observed> {
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
  async #send(observed: Observed, write: Exclude<Write, Creation>): Promise<void> {
    switch (write.kind) {
      case 'deletePod':
        return await this.#deletePod(observed, write.force);
      case 'rememberGivenUp':
        return await this.#rememberGivenUp(observed, write.macAddresses);
      case 'saveSuccessor':
        return await this.#saveSuccessor(observed);
      case 'awaitPod':
        return await this.#awaitPod(observed);
      default:
        return await this.#vms.deleteUnchanged(observed.vm);
    }
  }

  /**
   * Writes the VM's status.
   * @returns false when the VM no longer exists
   */
  async writeStatus(vm: VM, patch: object): Promise<boolean> {
    return (await this.#vms.patch(keyOf(vm), vm, { status: patch }, 'status')) !== undefined;
  }

  /** Deletes the Pod. If `force` is true, the grace period is 0, because no agent can end the machine cleanly any more. */
  async #deletePod({ pod }: Observed, force: boolean): Promise<void> {
    if (pod !== undefined) {
      await this.#pods.delete(pod, force ? { gracePeriodSeconds: 0 } : {});
    }
  }

  /** Returns true if the VM with this uid no longer exists. The function asks the API server, because a cache can lag behind. */
  async vmIsGone(key: string, uid: string): Promise<boolean> {
    const vm = await unlessMissing(this.#options.client.get(VMS, refOf(key)));
    return vm?.metadata.uid !== uid;
  }

  /**
   * Returns true if the VM has not changed since it was read. If it has changed, the next reconcile waits until the cache shows the change.
   * The cache of a new leader can lack changes by the earlier leader, for example the failure of a VM.
   * @throws ApiError when there is no VM
   */
  async isCurrent(vm: VM): Promise<boolean> {
    const key = keyOf(vm);
    const current = await this.#options.client.get(VMS, refOf(key));
    const isSame = current.metadata.resourceVersion === vm.metadata.resourceVersion;
    if (!isSame) {
      this.#vms.follow(key, current);
    }
    return isSame;
  }

  async #setFinalizer(observed: Observed, isHeld: boolean): Promise<Observed> {
    const { vm } = observed;
    return { ...observed, vm: (await this.#vms.setFinalizer(keyOf(vm), vm, VM_FINALIZER, isHeld)) ?? vm };
  }

  /** Creates the Pod or Secret. If a quota or another admission rule refuses the object, the VM is blocked with the API server's message. */
  async #create(observed: Observed, write: Creation): Promise<Executed> {
    try {
      return write.kind === 'createPod'
        ? await this.#createPod(observed, write.pod)
        : await this.#createSecret(observed, write.secret);
    } catch (error) {
      if (isObjectRefused(error)) {
        return { observed, blocked: blockedByRefusal(observed, error) };
      }
      throw error;
    }
  }

  async #createPod(observed: Observed, pod: Unsaved<Pod>): Promise<Executed> {
    const created = await this.#pods.create(keyOf(observed.vm), pod);
    return created === undefined ? await this.readPod(observed) : { observed: { ...observed, pod: created } };
  }

  async #createSecret(observed: Observed, secret: Unsaved<Secret>): Promise<Executed> {
    const creation = this.#options.client.create(SECRETS, secret, { fieldManager: FIELD_MANAGER });
    await undefinedIf(isAlreadyExists, creation);
    return { observed };
  }

  /**
   * Returns the observed state with the Pod from the API server if this Pod has the VM's uid. Such a Pod can be orphaned: it has then lost
   * only its owner reference. A Pod with the uid of another VM is never adopted.
   * @throws ApiError when there is no Pod
   */
  async readPod(observed: Observed): Promise<Executed> {
    const { client } = this.#options;
    const key = keyOf(observed.vm);
    const pod = await client.get(PODS, refOf(key));
    if (pod.metadata.labels?.[VM_UID_LABEL] === observed.vm.metadata.uid) {
      // The Node is read here, because the Pod might have been bound after the VM was observed. Without the Node, the operator would
      // conclude that the host was deleted.
      const reach = await reachOf(this.#options, pod.spec.nodeName);
      return { observed: { ...observed, ...reach, pod: this.#pods.follow(key, pod) } };
    }
    const owner = pod.metadata.ownerReferences?.[0];
    const whose = owner === undefined ? 'a Pod without a controller' : `a Pod of ${owner.kind} ${owner.name}`;
    const message = `The name of the VM, ${observed.vm.metadata.name}, is used by ${whose}`;
    return { observed, blocked: { condition: 'Scheduled', reason: 'PodNameTaken', message } };
  }

  /**
   * Stores the MAC addresses on the Node. The request fails if the Node has changed since it was read. Without this check, the request
   * could overwrite the address of another machine that was abandoned on the same host.
   */
  async #rememberGivenUp({ node }: Observed, macAddresses: readonly string[]): Promise<void> {
    if (node === undefined) {
      return;
    }
    const { name, uid, resourceVersion } = node.metadata;
    const annotations = { [GIVEN_UP_ANNOTATION]: JSON.stringify(macAddresses) };
    const patch = { metadata: { uid, resourceVersion, annotations } };
    const write = this.#options.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
    // Two errors are ignored, so that the host's VMs can be deleted. First, the Node no longer exists, because somebody fenced the host.
    // Second, the host has filled the annotations of its Node, so the API server refuses another annotation. In both cases no address is
    // stored, so no later Event can warn about a VM with the same address.
    await undefinedIf((error) => isNotFound(error) || isInvalid(error), write);
  }

  /** Stores the next Pod of the machine. The present Pod is read from the API server, because the cache lacks parts of it. */
  async #saveSuccessor({ vm, pod }: Observed): Promise<void> {
    const { client, adoptions } = this.#options;
    const stored = await unlessMissing(client.get(PODS, refOf(keyOf(vm))));
    if (stored !== undefined && stored.metadata.uid === pod?.metadata.uid) {
      await adoptions.save(vm, successorOf(stored));
    }
  }

  /**
   * Lists the VM on its Node as one whose machine gets another Pod, and adds the taint. Both come before the Pod goes, so that the host keeps
   * the machine and the scheduler keeps others away.
   */
  async #awaitPod({ vm, node, now }: Observed): Promise<void> {
    if (node === undefined) {
      return;
    }
    const { name } = node.metadata;
    const added = { [vm.metadata.uid ?? '']: { vm: keyOf(vm), since: timestamp(now) } };
    const patch = awaitedPatch(node, { ...awaitedOn(node), ...added }, now);
    await this.#options.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
  }

  async #releasePod(observed: Observed): Promise<Observed> {
    const { vm, pod } = observed;
    return pod === undefined
      ? observed
      : { ...observed, pod: (await this.#pods.setFinalizer(keyOf(vm), pod, POD_FINALIZER, false)) ?? pod };
  }

  async #patchPod(observed: Observed, metadata: object): Promise<Observed> {
    const { vm, pod } = observed;
    return pod === undefined
      ? observed
      : { ...observed, pod: (await this.#pods.patch(keyOf(vm), pod, { metadata })) ?? pod };
  }

  /**
   * Requests another size for the Pod. A refusal by a quota or the API server is not an error, but becomes part of the observed state.
   * @throws ApiError when a webhook cannot be called, because then nobody has refused the size
   */
  async #resizePod(observed: Observed, size: Size): Promise<Observed> {
    const { vm, pod } = observed;
    if (pod === undefined) {
      return observed;
    }
    try {
      const change = { spec: { containers: resizedContainers(pod, size) } };
      const saved = await this.#pods.patch(keyOf(vm), pod, change, 'resize');
      return saved === undefined ? observed : { ...observed, pod: saved, resizeRefused: undefined };
    } catch (error) {
      if (isObjectRefused(error) && !isWebhookFailure(error)) {
        return { ...observed, resizeRefused: refusedAgain(observed, size, error.message) };
      }
      throw error;
    }
  }
}

/**
 * Returns the condition of a VM without a Pod, because the API server did not accept a request. For example, a quota refused the Pod, or a
 * webhook cannot be called. The condition has the message of the API server.
 */
export function blockedByRefusal({ vm }: Observed, error: Error): NonNullable<Findings['blocked']> {
  const condition = 'Scheduled';
  const message = refusalMessage(error, conditionIn(vm.status, condition)?.message);
  return { condition, reason: 'PodRefused', message };
}
