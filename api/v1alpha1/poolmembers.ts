/**
 * Facts about VMPools and the VMs in them, for the operator and for the actions of users. This file imports no schema, because a schema would
 * slow the start of the `berth` command.
 */
import type { KindMetadata } from './kind.ts';
import { GROUP, POOL_REVISION_LABEL } from './names.ts';
import type { VM } from './vm.ts';

/** Largest number of VMs that one pool keeps. */
export const POOL_REPLICAS_MAXIMUM = 1_000;

/** Values of fields that a pool leaves out. */
export const POOL_DEFAULTS = {
  mode: 'Claim',
  maxAgeSeconds: 86_400,
  updateType: 'OnRefill',
  maxUnavailable: 1,
  keepFreeSlots: 0,
  yieldToWaiting: true,
  readyDeadlineSeconds: 600,
} as const;

/**
 * Returns the uid of the VMPool that owns the VM. The result is undefined for other VMs, and for VMs that were claimed. An owner of another API
 * is no pool, because the admission policy that protects pools lets everybody name it.
 */
export function poolUidOf({
  metadata: { ownerReferences = [] },
}: {
  readonly metadata: KindMetadata;
}): string | undefined {
  const owner = ownerReferences.find(({ controller }) => controller === true);
  const isPool = owner?.kind === 'VMPool' && owner.apiVersion.startsWith(`${GROUP}/`);
  return isPool ? owner.uid : undefined;
}

/** Returns true if the VM was made from the template and the image content that the pool has now. */
export function isOfRevision({ metadata }: Readonly<VM>, revision: string | undefined): boolean {
  return revision !== undefined && metadata.labels?.[POOL_REVISION_LABEL] === revision;
}

/** Returns true if the VM can be handed out: the pool with this uid owns it, it is as declared, and nobody deletes it. */
export function isClaimable(vm: Readonly<VM>, poolUid: string | undefined): boolean {
  const { metadata, status } = vm;
  const ready = status?.conditions?.find(({ type }) => type === 'Ready');
  const isCurrent =
    ready?.observedGeneration === undefined || ready.observedGeneration === metadata.generation;
  return (
    poolUid !== undefined &&
    poolUidOf(vm) === poolUid &&
    metadata.deletionTimestamp === undefined &&
    ready?.status === 'True' &&
    isCurrent
  );
}
