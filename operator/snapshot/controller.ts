/**
 * Reconciles VMSnapshots: gives each to its VM, and reports what the host of the VM says about it. The host learns from the annotation of the
 * VM's Pod which snapshots it must have (see operator/vm/snapshots.ts).
 */
import { API_VERSION } from '../../api/v1alpha1/names.ts';
import { saidReason } from '../../api/v1alpha1/reasons.ts';
import { VM_SNAPSHOTS } from '../../api/v1alpha1/resources.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import {
  type VMSnapshot,
  type VMSnapshotStatus,
  vmSnapshotStatusSchema,
} from '../../api/v1alpha1/vmsnapshot.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import type { Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { mergeDiff } from '../../kube/mergepatch.ts';
import { keyOf } from '../../kube/objects.ts';
import { conditionIn } from '../objects/conditions.ts';
import { normal, type Recorder, warning } from '../objects/events.ts';
import { Writer } from '../objects/writer.ts';
import { SNAPSHOTS_BY_VM, vmKeyOf } from '../vm/snapshots.ts';
import { type ObservedSnapshot, snapshotStatus } from './status.ts';

export interface SnapshotSources {
  readonly snapshots: Informer<VMSnapshot>;
  readonly vms: Informer<VM>;
  readonly pods: Informer<Pod>;
  readonly clock: () => number;
}

export interface SnapshotControllerOptions extends SnapshotSources {
  readonly client: KubeClient;
  readonly recorder: Recorder;
  readonly consistency: Consistency;
}

export class SnapshotReconciler {
  readonly #options: SnapshotControllerOptions;
  readonly #writer: Writer<VMSnapshot>;

  constructor(options: SnapshotControllerOptions) {
    const { client, consistency, snapshots } = options;
    this.#options = options;
    this.#writer = new Writer({ client, consistency, type: VM_SNAPSHOTS, informer: snapshots });
  }

  /** Reconciles one snapshot once. `key` is `namespace/name`. */
  async reconcile(key: string): Promise<Result> {
    const { snapshots, consistency } = this.#options;
    const found = snapshots.cache.get(key);
    if (found === undefined) {
      consistency.forget(key);
      return undefined;
    }
    if (found.metadata.deletionTimestamp !== undefined) {
      return undefined;
    }
    const observed = observeSnapshot(this.#options, found);
    const status = boundStatus(vmSnapshotStatusSchema, snapshotStatus(observed));
    const snapshot = await this.#withOwner(observed, status);
    if (snapshot !== undefined) {
      await this.#writeStatus(snapshot, status);
    }
    return undefined;
  }

  /**
   * Makes the VM the owner of the snapshot, so that both are deleted together. Returns the stored snapshot; undefined if it no longer exists.
   */
  async #withOwner(
    { snapshot, vm }: ObservedSnapshot,
    { vmUID }: VMSnapshotStatus,
  ): Promise<Readonly<VMSnapshot> | undefined> {
    const { ownerReferences = [] } = snapshot.metadata;
    if (vm === undefined || vmUID !== vm.metadata.uid || ownerReferences.some(({ uid }) => uid === vmUID)) {
      return snapshot;
    }
    const controller = ownerReferences.every((owner) => owner.controller !== true);
    const { name } = vm.metadata;
    const owner = { apiVersion: API_VERSION, kind: 'VM', name, uid: vmUID, controller };
    const metadata = { ownerReferences: [...ownerReferences, owner] };
    return await this.#writer.patch(keyOf(snapshot), snapshot, { metadata });
  }

  async #writeStatus(snapshot: Readonly<VMSnapshot>, status: VMSnapshotStatus): Promise<void> {
    const patch = mergeDiff(snapshot.status, status);
    if (patch === undefined) {
      return;
    }
    const saved = await this.#writer.patch(keyOf(snapshot), snapshot, { status: patch }, 'status');
    if (saved !== undefined && status.phase !== snapshot.status?.phase) {
      recordPhase(this.#options.recorder, snapshot, status);
    }
  }
}

function recordPhase(recorder: Recorder, snapshot: Readonly<VMSnapshot>, status: VMSnapshotStatus): void {
  const ready = conditionIn(status, 'Ready');
  if (ready === undefined || (status.phase !== 'Ready' && status.phase !== 'Failed')) {
    return;
  }
  const make = status.phase === 'Ready' ? normal : warning;
  recorder.event(snapshot, make(saidReason(ready.reason, 'SnapshotNotTaken'), 'Snapshot', ready.message));
}

function observeSnapshot(
  { snapshots, vms, pods, clock }: SnapshotSources,
  snapshot: Readonly<VMSnapshot>,
): ObservedSnapshot {
  const vmKey = vmKeyOf(snapshot);
  const siblings = snapshots.cache.byIndex(SNAPSHOTS_BY_VM, vmKey);
  return { snapshot, siblings, vm: vms.cache.get(vmKey), pod: pods.cache.get(vmKey), now: clock() };
}

/** Enqueues a snapshot when it, its VM or the VM's Pod has changed. A VM and its Pod have the same key. */
export function enqueueSnapshots(controller: Controller, { snapshots, vms, pods }: SnapshotSources): void {
  const ofVM = (vmKey: string): void =>
    snapshots.cache
      .byIndex(SNAPSHOTS_BY_VM, vmKey)
      .forEach((snapshot) => controller.enqueue(keyOf(snapshot)));
  snapshots.cache.onChange(({ object }) => controller.enqueue(keyOf(object)));
  vms.cache.onChange(({ object }) => ofVM(keyOf(object)));
  pods.cache.onChange(({ object }) => ofVM(keyOf(object)));
}
