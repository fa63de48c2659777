/**
 * Takes a VM out of a VMPool. A claim is one write with the rights of the caller: it removes the owner of the VM, and it fails if anybody else
 * has changed the VM. So no VM is handed out twice, and an admission policy lets none come back. If the pool has no ready VM, the caller can
 * get a new VM of the same template, which must boot first.
 */
import { randomInt } from 'node:crypto';
import { conditionOf } from '../api/http/conditions.ts';
import { statusOfPhase } from '../api/http/vmitem.ts';
import type { VMClaimQuery } from '../api/http/vmpool.ts';
import { CLAIMED_BY_ANNOTATION, CLAIMED_FROM_LABEL, POOL_LABEL } from '../api/v1alpha1/names.ts';
import { VM_POOLS, VMS } from '../api/v1alpha1/resources.ts';
import type { VM, VMSpec } from '../api/v1alpha1/vm.ts';
import { isClaimable, isOfRevision } from '../api/v1alpha1/poolmembers.ts';
import type { VMPool } from '../api/v1alpha1/vmpool.ts';
import { undefinedIf } from '../base/errors.ts';
import { pause } from '../base/time.ts';
import type { KubeClient } from '../kube/client.ts';
import { isConflict, isNotFound } from '../kube/errors.ts';
import { follow } from '../kube/follow.ts';
import type { Transport } from '../kube/transport.ts';
import { keep, untilDeployed, withDeployLife } from './deploy.ts';
import { ActionError } from './error.ts';
import { createBy } from './objects.ts';

/** Time in milliseconds between two looks for a ready VM, for a caller that waits for one. */
const LOOK_MILLISECONDS = 500;

export interface ClaimAccess {
  /** Client with the rights of the caller. */
  readonly client: KubeClient;
  /** Connections for watches, with the rights of the caller. */
  readonly watches: Transport;
  /** Name of the caller. */
  readonly username: string;
  /** Returns the VMs with the label of the pool. They can lag: the write of a claim fails for a VM that has changed. */
  readonly membersOf: (pool: VMPool) => Promise<readonly Readonly<VM>[]>;
}

export interface ClaimRequest {
  readonly namespace: string;
  /** Name of the VMPool. */
  readonly pool: string;
  readonly whenEmpty: VMClaimQuery['whenEmpty'];
  /** Time in RFC 3339 after which the operator deletes the claimed VM. If it is undefined, nothing ends its life after the claim. */
  readonly aliveUntil: string | undefined;
  /** Minutes in which a new VM must run. */
  readonly minutes: number;
  readonly signal: AbortSignal;
}

/** Returns the VMs with the label of the pool, as the API server has them now. */
export async function listMembers(
  client: KubeClient,
  { metadata: { namespace = '', name } }: Readonly<VMPool>,
  signal: AbortSignal,
): Promise<readonly VM[]> {
  return (await client.list(VMS, { namespace, labelSelector: `${POOL_LABEL}=${name}`, signal })).items;
}

/** A VM that belongs to the caller alone. It can still have to resume or to boot: see {@link untilUsable}. */
export interface Claim {
  readonly vm: VM;
  /** Whether the pool was empty, and the VM is new. */
  readonly isCold: boolean;
}

/**
 * Claims a VM of the pool, as {@link ClaimRequest.whenEmpty} says if none is ready.
 *
 * @throws ActionError when the pool cannot hand out VMs, or has none and the caller does not wait; ApiError when there is no such pool, or the
 * caller lacks a right; the signal's reason when the signal aborts.
 */
export async function claimVM(access: ClaimAccess, request: ClaimRequest): Promise<Claim> {
  const { signal, whenEmpty } = request;
  for (;;) {
    const pool = await readPool(access.client, request);
    const vm = await claimReady(access, pool, request);
    if (vm !== undefined) {
      return { vm, isCold: false };
    }
    if (whenEmpty === 'deploy') {
      return { vm: await createCold(access, pool, request), isCold: true };
    }
    if (whenEmpty === 'fail') {
      throw new ActionError('room', `No VM of pool ${request.pool} is ready${reasonOf(pool)}`);
    }
    await pause(LOOK_MILLISECONDS, signal);
  }
}

async function readPool(
  client: KubeClient,
  { namespace, pool: name, signal }: ClaimRequest,
): Promise<VMPool> {
  const pool = await client.get(VM_POOLS, { namespace, name }, { signal });
  if (pool.spec.mode === 'OneShot') {
    throw new ActionError('refused', `Pool ${name} has the mode OneShot: its VMs take jobs by themselves`);
  }
  if (pool.metadata.deletionTimestamp !== undefined) {
    throw new ActionError('refused', `Pool ${name} is being deleted`);
  }
  return pool;
}

function reasonOf(pool: VMPool): string {
  const message = conditionOf(pool, 'Ready')?.message;
  return message === undefined ? '' : `: ${message}`;
}

/**
 * Claims one of the ready VMs. The result is undefined if there is none. The VMs are read again after each attempt that failed, because other
 * callers can have claimed many of them meanwhile.
 */
async function claimReady(access: ClaimAccess, pool: VMPool, request: ClaimRequest): Promise<VM | undefined> {
  const tried = new Set<string | undefined>();
  for (;;) {
    const members = await access.membersOf(pool);
    const ready = members.filter((vm) => isClaimable(vm, pool.metadata.uid) && !tried.has(vm.metadata.uid));
    if (ready.length === 0) {
      return undefined;
    }
    const chosen = choose(ready, pool.status?.revision);
    tried.add(chosen.metadata.uid);
    const claimed = await takeOut(access, pool, chosen, request);
    if (claimed !== undefined) {
      return claimed;
    }
  }
}

/**
 * Chooses a VM at random from the older half of the VMs, so that callers at the same time seldom choose the same one. VMs of the present
 * template and image come first.
 */
export function choose(ready: readonly Readonly<VM>[], revision: string | undefined): Readonly<VM> {
  const current = ready.filter((vm) => isOfRevision(vm, revision));
  const sorted = (current.length > 0 ? current : ready).toSorted(byAge);
  const older = sorted.slice(0, Math.ceil(sorted.length / 2));
  // The caller has at least one VM.
  return older[randomInt(older.length)] as Readonly<VM>;
}

function byAge({ metadata: a }: Readonly<VM>, { metadata: b }: Readonly<VM>): number {
  const [first, second] = [a, b].map(({ creationTimestamp = '', name }) => `${creationTimestamp}/${name}`);
  return (first ?? '') < (second ?? '') ? -1 : 1;
}

/**
 * Takes the VM out of its pool. If the request has no time for the end of its life, the VM gets one soon after the claim, because the caller
 * can die before it learns which VM it has. {@link untilUsable} removes this time. The result is undefined if somebody has changed or
 * deleted the VM.
 *
 * @throws ApiError for other refusals.
 */
async function takeOut(
  { client, username }: ClaimAccess,
  pool: VMPool,
  { metadata, spec }: Readonly<VM>,
  { aliveUntil: asked, minutes, signal }: ClaimRequest,
): Promise<VM | undefined> {
  const unspecified: VMSpec = {};
  const aliveUntil = asked ?? withDeployLife({ spec: unspecified }, minutes).spec.aliveUntil;
  const { namespace = '', name, uid, resourceVersion, ownerReferences = [] } = metadata;
  const patch = {
    metadata: {
      uid,
      resourceVersion,
      ownerReferences: ownerReferences.filter((owner) => owner.uid !== pool.metadata.uid),
      labels: { [POOL_LABEL]: null, [CLAIMED_FROM_LABEL]: pool.metadata.name },
      annotations: { [CLAIMED_BY_ANNOTATION]: username },
    },
    spec: { aliveUntil, ...((spec.powerState ?? 'Running') !== 'Running' && { powerState: 'Running' }) },
  };
  const write = client.mergePatch<VM>(VMS, { namespace, name }, patch, { signal });
  return await undefinedIf((error) => isConflict(error) || isNotFound(error), write);
}

/** Creates a VM from the template of the pool, for a caller who finds no ready one. */
async function createCold(
  { client, username }: ClaimAccess,
  { metadata: { name }, spec: { template } }: VMPool,
  { namespace, aliveUntil, minutes, signal }: ClaimRequest,
): Promise<VM> {
  const { powerState: _powerState, ...spec } = template.spec;
  const { labels, annotations } = template.metadata ?? {};
  const metadata = {
    namespace,
    generateName: `${name}-`,
    labels: { ...labels, [CLAIMED_FROM_LABEL]: name },
    ...(annotations && { annotations }),
  };
  const vm = withDeployLife({ metadata, spec: { ...spec, ...(aliveUntil && { aliveUntil }) } }, minutes);
  return await createBy(client, username, VMS, vm, { signal });
}

interface Usable {
  readonly client: KubeClient;
  readonly watches: Transport;
  readonly waitFor: 'running' | 'ready';
  /** As in the request of the claim. */
  readonly aliveUntil: string | undefined;
  readonly signal: AbortSignal;
  /** Function that keeps only the fields that the caller needs. */
  readonly trim?: (vm: VM) => VM;
  /** Called with each version of the VM that is not usable yet. */
  readonly onVersion?: (vm: VM) => void;
}

/**
 * Waits until the claimed VM runs: a ready one does already, a suspended one resumes, and a new one boots. Then gives its life the end that
 * the request asks for. `latest` receives the last known version of the VM.
 *
 * @throws ActionError when the VM will not run, or is deleted; ApiError when the API server refuses; the signal's reason when it aborts.
 */
export async function untilUsable(latest: { vm: VM }, claim: Claim, usable: Usable): Promise<VM> {
  if (claim.isCold) {
    const wanted = { waitFor: usable.waitFor, whenFull: 'wait' } as const;
    return await untilDeployed(latest, { ...usable, wanted });
  }
  const { aliveUntil } = usable;
  const withEnd = async (vm: VM): Promise<VM> =>
    aliveUntil === undefined ? await keep(usable.client, vm, usable) : vm;
  if (isUsable(claim.vm)) {
    return await withEnd(claim.vm);
  }
  const { client, watches, signal, trim = (vm) => vm, onVersion } = usable;
  const from = claim.vm.metadata;
  for await (const version of follow<VM>({ client, watches, type: VMS, from, signal })) {
    latest.vm = trim(version);
    if (isUsable(version)) {
      return await withEnd(version);
    }
    const { failure } = version.status ?? {};
    if (failure !== undefined) {
      throw new ActionError('failed', failure.message, { causes: [failure] });
    }
    onVersion?.(version);
  }
  throw new ActionError('gone', `VM ${from.name} was deleted before it ran`);
}

/** Returns true if the VM runs and is Ready, by a status of its present spec. */
function isUsable(vm: VM): boolean {
  const ready = conditionOf(vm, 'Ready');
  const isCurrent =
    ready?.observedGeneration === undefined || ready.observedGeneration === vm.metadata.generation;
  return statusOfPhase(vm.status?.phase) === 'Running' && ready?.status === 'True' && isCurrent;
}
