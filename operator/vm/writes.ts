/** The one place where a VM's reconcile writes, by the key of the VM and its Pod, `namespace/name`. */
import {
  DESIRED_ANNOTATION,
  GIVEN_UP_ANNOTATION,
  POD_FINALIZER,
  VM_FINALIZER,
  VM_UID_LABEL,
} from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import { type Node, NODES, type Pod, PODS } from '../../kube/core.ts';
import { type ApiError, isInvalid, isNotFound, isRefused, unlessMissing } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf, refOf, type Unsaved } from '../../kube/objects.ts';
import { FIELD_MANAGER, VMS } from '../objects/resources.ts';
import { Writer } from '../objects/writer.ts';
import { nodeOf, type Observed, type Size } from './observe.ts';
import { refusedAgain, resizedContainers } from './size.ts';
import type { Findings } from './status.ts';
import type { Write } from './steps/step.ts';

export interface VMWriterOptions {
  readonly client: KubeClient;
  readonly vms: Informer<VM>;
  readonly pods: Informer<Pod>;
  readonly nodes: Informer<Node>;
  readonly consistency: Consistency;
}

/** The look at the world after a write; `blocked` when the API server or somebody's Pod stood in its way. */
export interface Executed {
  readonly observed: Observed;
  readonly blocked?: Findings['blocked'];
}

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

  /** @throws ApiError for a fault that a later try may mend, without a word to people: 409, 5xx, a right that is missing */
  async execute(observed: Observed, write: Write): Promise<Executed> {
    switch (write.kind) {
      case 'addFinalizer':
        return { observed: await this.#setFinalizer(observed, true) };
      case 'removeFinalizer':
        return { observed: await this.#setFinalizer(observed, false) };
      case 'createPod':
        return await this.#createPod(observed, write.pod);
      case 'resizePod':
        return { observed: await this.#resizePod(observed, write.size) };
      case 'patchDesired':
        return {
          observed: await this.#patchPod(observed, { annotations: { [DESIRED_ANNOTATION]: write.text } }),
        };
      case 'deletePod':
        await this.deletePod(observed.pod, write.force);
        return { observed };
      case 'rememberGivenUp':
        await this.#rememberGivenUp(observed, write.macAddresses);
        return { observed };
      case 'releasePod':
        return { observed: await this.#releasePod(observed) };
      case 'deleteVM':
      default:
        await this.#vms.delete(observed.vm);
        return { observed };
    }
  }

  /** @returns false when the VM is gone */
  async writeStatus(vm: VM, patch: object): Promise<boolean> {
    return (await this.#vms.patch(keyOf(vm), vm, { status: patch }, 'status')) !== undefined;
  }

  /** Grace 0 where no agent is left to end the machine in order. */
  async deletePod(pod: Pod | undefined, force: boolean): Promise<void> {
    if (pod !== undefined) {
      await this.#pods.delete(pod, force ? { gracePeriodSeconds: 0 } : {});
    }
  }

  /** Takes our finalizer off a Pod that no VM of ours stands behind any more. */
  async releaseOrphan(pod: Pod): Promise<void> {
    await this.#pods.setFinalizer(keyOf(pod), pod, POD_FINALIZER, false);
  }

  /** Whether the VM of that uid is really gone: asked of the server, for a cache may lag behind. */
  async vmIsGone(key: string, uid: string): Promise<boolean> {
    const vm = await unlessMissing(this.#options.client.get(VMS, refOf(key)));
    return vm?.metadata.uid !== uid;
  }

  async #setFinalizer(observed: Observed, isHeld: boolean): Promise<Observed> {
    const { vm } = observed;
    return {
      ...observed,
      vm: (await this.#vms.setFinalizer(keyOf(vm), vm, VM_FINALIZER, isHeld)) ?? vm,
    };
  }

  async #createPod(observed: Observed, pod: Unsaved<Pod>): Promise<Executed> {
    try {
      const created = await this.#pods.create(keyOf(observed.vm), pod);
      return created === undefined
        ? await this.#existingPod(observed)
        : { observed: { ...observed, pod: created } };
    } catch (error) {
      if (isRefused(error) || isInvalid(error)) {
        return { observed, blocked: refused(error) };
      }
      throw error;
    }
  }

  /** Ours if it carries the VM's uid (an orphaned Pod has lost its owner reference); never adopted otherwise. */
  async #existingPod(observed: Observed): Promise<Executed> {
    const { client, nodes } = this.#options;
    const key = keyOf(observed.vm);
    const pod = await client.get(PODS, refOf(key));
    if (pod.metadata.labels?.[VM_UID_LABEL] === observed.vm.metadata.uid) {
      // It may have been bound since: without its host, the host would be taken for one that is gone.
      const node = await nodeOf({ client, nodes }, pod);
      return { observed: { ...observed, pod: this.#pods.follow(key, pod), node } };
    }
    const owner = pod.metadata.ownerReferences?.[0];
    const whose = owner === undefined ? "somebody else's Pod" : `a Pod of ${owner.kind} ${owner.name}`;
    const message = `The Pod name ${observed.vm.metadata.name} is taken by ${whose}`;
    return { observed, blocked: { condition: 'Scheduled', reason: 'PodNameTaken', message } };
  }

  /** The resourceVersion keeps this write from undoing that of another VM of the host. */
  async #rememberGivenUp({ node }: Observed, macAddresses: readonly string[]): Promise<void> {
    if (node === undefined) {
      return;
    }
    const { name, uid, resourceVersion } = node.metadata;
    const annotations = { [GIVEN_UP_ANNOTATION]: JSON.stringify(macAddresses) };
    const patch = { metadata: { uid, resourceVersion, annotations } };
    try {
      await this.#options.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
    } catch (error) {
      // Without its Node the host is fenced. A host can fill its own annotations: then nothing is remembered, and no warning
      // comes later, but its VMs can be deleted.
      if (!isNotFound(error) && !isInvalid(error)) {
        throw error;
      }
    }
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

  /** A refusal by quota or server is no error, but news. */
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
      if (isRefused(error) || isInvalid(error)) {
        return { ...observed, resizeRefused: refusedAgain(observed, size, error.message) };
      }
      throw error;
    }
  }
}

/** Quota, Pod Security or another admission said no: the server's own words. */
function refused(error: ApiError): NonNullable<Findings['blocked']> {
  return { condition: 'Scheduled', reason: 'PodRefused', message: error.message };
}
