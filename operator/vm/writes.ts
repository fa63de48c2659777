/** The one place where a VM's reconcile writes. Every write is safe to repeat and fails when stale. */
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
import { type ApiError, isAlreadyExists, isInvalid, isNotFound, isRefused } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf, type Ref, type Unsaved } from '../../kube/objects.ts';
import { FIELD_MANAGER, VMS } from '../objects/resources.ts';
import { nodeOf } from './observe.ts';
import type { Observed } from './observed.ts';
import { refusedAgain, resizedContainers, type Size } from './size.ts';
import type { Findings } from './status.ts';
import type { Write } from './steps/step.ts';

export interface ExecutorOptions {
  readonly client: KubeClient;
  readonly vms: Informer<VM>;
  readonly pods: Informer<Pod>;
  readonly nodes: Informer<Node>;
  readonly consistency: Consistency;
}

/** What is known after a write; `blocked` when the API server or somebody's Pod stood in its way. */
export interface Executed {
  readonly observed: Observed;
  readonly blocked?: Findings['blocked'];
}

export class Executor {
  readonly #client: KubeClient;
  readonly #vms: Informer<VM>;
  readonly #pods: Informer<Pod>;
  readonly #nodes: Informer<Node>;
  readonly #consistency: Consistency;

  constructor(options: ExecutorOptions) {
    this.#client = options.client;
    this.#vms = options.vms;
    this.#pods = options.pods;
    this.#nodes = options.nodes;
    this.#consistency = options.consistency;
  }

  /** @throws ApiError for what trying again may mend, soon and without a word to people: 409, 5xx, a right that is missing. */
  async execute(observed: Observed, write: Write): Promise<Executed> {
    switch (write.kind) {
      case 'addFinalizer':
        return { observed: await this.#setFinalizers(observed, (before) => [...before, VM_FINALIZER]) };
      case 'removeFinalizer':
        return {
          observed: await this.#setFinalizers(observed, (before) =>
            before.filter((name) => name !== VM_FINALIZER),
          ),
        };
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
        return { observed: await this.#rememberGivenUp(observed, write.macAddresses) };
      case 'releasePod':
        return { observed: await this.#releasePod(observed) };
      case 'deleteVM':
      default:
        await this.#client.delete(VMS, refTo(observed.vm), { uid: observed.vm.metadata.uid });
        return { observed };
    }
  }

  /** Writes only what differs; the resourceVersion makes a stale one fail with 409. */
  async writeStatus(vm: VM, patch: object): Promise<VM> {
    const { resourceVersion, uid } = vm.metadata;
    const body = { metadata: { resourceVersion, uid }, status: patch };
    return this.#saved(
      await this.#client.mergePatch(VMS, refTo(vm), body, {
        subresource: 'status',
        fieldManager: FIELD_MANAGER,
      }),
    );
  }

  /** Grace 0 where no agent is left to end the machine in order. */
  async deletePod(pod: Pod | undefined, force: boolean): Promise<void> {
    if (pod !== undefined) {
      await this.#client.delete(PODS, refTo(pod), {
        uid: pod.metadata.uid,
        ...(force && { gracePeriodSeconds: 0 }),
      });
    }
  }

  /** Takes our finalizer off a Pod that no VM of ours stands behind any more. A Pod that is gone is as good. */
  async releaseOrphan(pod: Pod): Promise<void> {
    const finalizers = pod.metadata.finalizers?.filter((name) => name !== POD_FINALIZER) ?? [];
    await this.#mergePod(pod, { finalizers });
  }

  /** Whether the VM of that uid is really gone: asked of the server, for a cache may lag behind. */
  async vmIsGone(ref: Ref, uid: string): Promise<boolean> {
    try {
      const vm = await this.#client.get(VMS, ref);
      return vm.metadata.uid !== uid;
    } catch (error) {
      if (isNotFound(error)) {
        return true;
      }
      throw error;
    }
  }

  async #setFinalizers(observed: Observed, change: (before: string[]) => string[]): Promise<Observed> {
    const { metadata } = observed.vm;
    const finalizers = change(metadata.finalizers ?? []);
    const patch = { metadata: { finalizers, uid: metadata.uid, resourceVersion: metadata.resourceVersion } };
    try {
      const vm = await this.#client.mergePatch(VMS, refTo(observed.vm), patch, {
        fieldManager: FIELD_MANAGER,
      });
      return { ...observed, vm: this.#saved(vm) };
    } catch (error) {
      if (isNotFound(error)) {
        return observed;
      }
      throw error;
    }
  }

  async #createPod(observed: Observed, pod: Unsaved<Pod>): Promise<Executed> {
    try {
      return {
        observed: this.#withPod(
          observed,
          await this.#client.create(PODS, pod, { fieldManager: FIELD_MANAGER }),
        ),
      };
    } catch (error) {
      if (isAlreadyExists(error)) {
        return await this.#existingPod(observed);
      }
      if (isRefused(error) || isInvalid(error)) {
        return { observed, blocked: refused(error) };
      }
      throw error;
    }
  }

  /** Ours if it carries the VM's uid (an orphaned Pod has lost its owner reference); never adopted otherwise. */
  async #existingPod(observed: Observed): Promise<Executed> {
    const pod = await this.#client.get(PODS, refTo(observed.vm));
    if (pod.metadata.labels?.[VM_UID_LABEL] === observed.vm.metadata.uid) {
      // It may have been bound since: without its host, the host would be taken for one that is gone.
      const known = this.#withPod(observed, pod);
      const node = await nodeOf({ client: this.#client, nodes: this.#nodes }, pod);
      return { observed: { ...known, node } };
    }
    const owner = pod.metadata.ownerReferences?.[0];
    const whose = owner === undefined ? "somebody else's Pod" : `a Pod of ${owner.kind} ${owner.name}`;
    const message = `the Pod name ${observed.vm.metadata.name} is taken by ${whose}`;
    return { observed, blocked: { condition: 'Scheduled', reason: 'PodNameTaken', message } };
  }

  /** The resourceVersion keeps it from undoing what another VM of that host has remembered. */
  async #rememberGivenUp(observed: Observed, macAddresses: readonly string[]): Promise<Observed> {
    const { node } = observed;
    if (node === undefined) {
      return observed;
    }
    const { name, uid, resourceVersion } = node.metadata;
    const annotations = { [GIVEN_UP_ANNOTATION]: JSON.stringify(macAddresses) };
    const patch = { metadata: { uid, resourceVersion, annotations } };
    try {
      await this.#client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
    } catch (error) {
      // With its Node the host is fenced. A host can fill its own annotations: then nothing is remembered, and no warning
      // comes later, but its VMs can be deleted.
      if (!isNotFound(error) && !isInvalid(error)) {
        throw error;
      }
    }
    return observed;
  }

  async #releasePod(observed: Observed): Promise<Observed> {
    const finalizers = observed.pod?.metadata.finalizers?.filter((name) => name !== POD_FINALIZER) ?? [];
    return await this.#patchPod(observed, { finalizers });
  }

  async #patchPod(observed: Observed, metadata: object): Promise<Observed> {
    if (observed.pod === undefined) {
      return observed;
    }
    const saved = await this.#mergePod(observed.pod, metadata);
    if (saved === undefined) {
      return observed;
    }
    this.#consistency.wrote(keyOf(observed.vm), this.#pods, saved.metadata.resourceVersion ?? '');
    return { ...observed, pod: saved };
  }

  /** The resourceVersion keeps it from undoing another change; a refusal by quota or server is no error, but news. */
  async #resizePod(observed: Observed, size: Size): Promise<Observed> {
    const { pod } = observed;
    if (pod === undefined) {
      return observed;
    }
    const { uid, resourceVersion } = pod.metadata;
    const patch = {
      metadata: { uid, resourceVersion },
      spec: { containers: resizedContainers(pod, size) },
    };
    try {
      const saved = await this.#client.mergePatch(PODS, refTo(pod), patch, {
        subresource: 'resize',
        fieldManager: FIELD_MANAGER,
      });
      return { ...this.#withPod(observed, saved), resizeRefused: undefined };
    } catch (error) {
      if (isRefused(error) || isInvalid(error)) {
        return { ...observed, resizeRefused: refusedAgain(observed, size, error.message) };
      }
      if (isNotFound(error)) {
        return observed;
      }
      throw error;
    }
  }

  async #mergePod(pod: Pod, metadata: object): Promise<Pod | undefined> {
    const { uid, resourceVersion } = pod.metadata;
    try {
      const patch = { metadata: { ...metadata, uid, resourceVersion } };
      return await this.#client.mergePatch(PODS, refTo(pod), patch, { fieldManager: FIELD_MANAGER });
    } catch (error) {
      if (isNotFound(error)) {
        return undefined;
      }
      throw error;
    }
  }

  #withPod(observed: Observed, pod: Pod): Observed {
    this.#consistency.wrote(keyOf(observed.vm), this.#pods, pod.metadata.resourceVersion ?? '');
    return { ...observed, pod };
  }

  #saved(vm: VM): VM {
    this.#consistency.wrote(keyOf(vm), this.#vms, vm.metadata.resourceVersion ?? '');
    return vm;
  }
}

/** Quota, Pod Security or another admission said no: the server's own words. */
function refused(error: ApiError): NonNullable<Findings['blocked']> {
  return { condition: 'Scheduled', reason: 'PodRefused', message: error.message };
}

function refTo(object: VM | Pod): Ref {
  const { namespace = '', name } = object.metadata;
  return { namespace, name };
}
