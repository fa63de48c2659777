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
import type { KubeClient, List } from '../kube/client.ts';
import { isConflict, isNotFound } from '../kube/errors.ts';
import { follow, followAll } from '../kube/follow.ts';
import type { Ref } from '../kube/objects.ts';
import type { Transport } from '../kube/transport.ts';
import { keep, untilDeployed, withDeployLife } from './deploy.ts';
import { ActionError } from './error.ts';
import { createBy } from './objects.ts';

/**
 * Time in milliseconds after which a caller who waits for a ready VM reads the pool again. Until then, each VM that becomes ready ends the
 * wait. The caller learns after this time that the pool is deleted.
 */
const LOOK_MILLISECONDS = 5_000;

/** The part of a pool that the claim of a ready VM needs. */
type PoolIdentity = Pick<Readonly<VMPool>, 'metadata' | 'status'>;

/** The VMs with the label of a pool, as the caller knows them. They can lag: the write of a claim fails for a VM that has changed. */
export interface PoolMembers {
  /**
   * Returns the pool, if this process watches pools. It is undefined for a pool that is not known, that is being deleted, or whose VMs cannot
   * be claimed. It can lag, so only ready VMs are claimed by it.
   */
  readonly pool?: (ref: Required<Ref>) => PoolIdentity | undefined;
  readonly list: (pool: PoolIdentity, signal: AbortSignal) => Promise<List<Readonly<VM>>>;
  /** Yields each VM that changes after the list with this `resourceVersion`. @throws the signal's reason when the signal aborts. */
  readonly follow: (
    pool: PoolIdentity,
    resourceVersion: string,
    signal: AbortSignal,
  ) => AsyncIterable<Readonly<VM>>;
}

/**
 * Versions of VMs that this process claims or has claimed. Callers in one process share it, so that no two of them claim the same VM.
 * Otherwise, fifty callers who wait would all try to claim each VM that becomes ready.
 */
export interface ClaimAttempts {
  readonly has: (version: string) => boolean;
  readonly add: (version: string) => unknown;
  readonly delete: (version: string) => boolean;
}

export interface ClaimAccess {
  /** Client with the rights of the caller. */
  readonly client: KubeClient;
  /** Connections for watches, with the rights of the caller. */
  readonly watches: Transport;
  /** Name of the caller. */
  readonly username: string;
  readonly members: PoolMembers;
  readonly attempts: ClaimAttempts;
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

/** Returns access to the VMs of pools by the API server itself, for a process that makes few claims. */
export function membersBy({ client, watches }: Pick<ClaimAccess, 'client' | 'watches'>): PoolMembers {
  const of = ({ metadata: { namespace = '', name } }: PoolIdentity) => ({
    namespace,
    labelSelector: `${POOL_LABEL}=${name}`,
  });
  return {
    list: async (pool, signal) => await client.list(VMS, { ...of(pool), signal }),
    follow: (pool, resourceVersion, signal) => {
      const { namespace, labelSelector } = of(pool);
      const following = { client, watches, type: VMS, labelSelector, signal };
      return followAll<VM>(following, { namespace, resourceVersion });
    },
  };
}

/** A VM that belongs to the caller alone. It can still have to resume or to boot: see {@link untilUsable}. */
export interface Claim {
  readonly vm: VM;
  /** Whether the pool was empty, and the VM is new. */
  readonly isCold: boolean;
  /** Whether the VM ran and was Ready in the version that was claimed. It has nothing to do before its use. */
  readonly isReady: boolean;
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
    signal.throwIfAborted();
    const known = access.members.pool?.({ namespace: request.namespace, name: request.pool });
    const ready = known && (await claimReady(access, known, request)).claim;
    if (ready !== undefined) {
      return ready;
    }
    const pool = await readPool(access.client, request);
    const found = await claimReady(access, pool, request);
    if (found.claim !== undefined) {
      return found.claim;
    }
    if (whenEmpty === 'deploy') {
      return { vm: await createCold(access, pool, request), isCold: true, isReady: false };
    }
    if (whenEmpty === 'fail') {
      throw new ActionError('room', `No VM of pool ${request.pool} is ready${reasonOf(pool)}`);
    }
    const later = await claimNext(access, pool, found.resourceVersion, request);
    if (later !== undefined) {
      return later;
    }
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
 * Claims one of the ready VMs. If there is none, the result has the version of the list that shows it. The VMs are read again if other
 * callers have taken all of them.
 */
async function claimReady(
  access: ClaimAccess,
  pool: PoolIdentity,
  request: ClaimRequest,
): Promise<{ readonly claim: Claim | undefined; readonly resourceVersion: string }> {
  for (;;) {
    const { items, resourceVersion } = await access.members.list(pool, request.signal);
    const ready = items.filter((vm) => isFree(access, pool, vm));
    if (ready.length === 0) {
      return { claim: undefined, resourceVersion };
    }
    const claim = await claimOne(access, pool, ready, request);
    if (claim !== undefined) {
      return { claim, resourceVersion };
    }
  }
}

/** Claims one of these VMs. The result is undefined if other callers have taken all of them. */
async function claimOne(
  access: ClaimAccess,
  pool: PoolIdentity,
  ready: readonly Readonly<VM>[],
  request: ClaimRequest,
): Promise<Claim | undefined> {
  let left = ready;
  while (left.length > 0) {
    const claim = await takeOut(access, pool, choose(left, pool.status?.revision), request);
    if (claim !== undefined) {
      return claim;
    }
    left = left.filter((vm) => isFree(access, pool, vm));
  }
  return undefined;
}

/** Claims the first VM of the pool that becomes ready. The result is undefined if none does before the pool must be read again. */
async function claimNext(
  access: ClaimAccess,
  pool: VMPool,
  resourceVersion: string,
  request: ClaimRequest,
): Promise<Claim | undefined> {
  const look = AbortSignal.timeout(LOOK_MILLISECONDS);
  const signal = AbortSignal.any([request.signal, look]);
  try {
    for await (const vm of access.members.follow(pool, resourceVersion, signal)) {
      const claim = isFree(access, pool, vm) ? await takeOut(access, pool, vm, request) : undefined;
      if (claim !== undefined) {
        return claim;
      }
    }
  } catch (error) {
    if (error !== look.reason) {
      throw error;
    }
  }
  return undefined;
}

/** Returns true if the VM is ready, and nobody in this process claims this version of it. */
function isFree({ attempts }: ClaimAccess, { metadata: { uid } }: PoolIdentity, vm: Readonly<VM>): boolean {
  return isClaimable(vm, uid) && !attempts.has(versionOf(vm));
}

function versionOf({ metadata: { uid, resourceVersion } }: Readonly<VM>): string {
  return `${uid}/${resourceVersion}`;
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
  const [first = '', second = ''] = [a.creationTimestamp, b.creationTimestamp];
  return first < second || (first === second && a.name < b.name) ? -1 : 1;
}

/**
 * Takes the VM out of its pool. If the request has no time for the end of its life, the VM gets one soon after the claim, because the caller
 * can die before it learns which VM it has. {@link untilUsable} removes this time. The result is undefined if somebody has changed or
 * deleted the VM.
 *
 * @throws ApiError for other refusals.
 */
async function takeOut(
  { client, username, attempts }: ClaimAccess,
  pool: PoolIdentity,
  vm: Readonly<VM>,
  { aliveUntil: asked, minutes, signal }: ClaimRequest,
): Promise<Claim | undefined> {
  const version = versionOf(vm);
  const { namespace = '', name } = vm.metadata;
  const unspecified: VMSpec = {};
  const aliveUntil = asked ?? withDeployLife({ spec: unspecified }, minutes).spec.aliveUntil;
  attempts.add(version);
  try {
    const patch = patchToClaim(pool, vm, { username, aliveUntil });
    const write = client.mergePatch<VM>(VMS, { namespace, name }, patch, { signal });
    const taken = await undefinedIf((error) => isConflict(error) || isNotFound(error), write);
    // The status is that of the version that was claimed, because the write fails for any other version.
    const isReady = isToRun(vm) && statusOfPhase(taken?.status?.phase) === 'Running';
    return taken && { vm: taken, isCold: false, isReady };
  } catch (error) {
    // Perhaps only this caller is refused.
    attempts.delete(version);
    throw error;
  }
}

function patchToClaim(
  pool: PoolIdentity,
  vm: Readonly<VM>,
  { username, aliveUntil }: { readonly username: string; readonly aliveUntil: string | undefined },
): object {
  const { uid, resourceVersion, ownerReferences = [] } = vm.metadata;
  return {
    metadata: {
      uid,
      resourceVersion,
      ownerReferences: ownerReferences.filter((owner) => owner.uid !== pool.metadata.uid),
      labels: { [POOL_LABEL]: null, [CLAIMED_FROM_LABEL]: pool.metadata.name },
      annotations: { [CLAIMED_BY_ANNOTATION]: username },
    },
    spec: { aliveUntil, ...(!isToRun(vm) && { powerState: 'Running' }) },
  };
}

function isToRun({ spec: { powerState = 'Running' } }: Readonly<VM>): boolean {
  return powerState === 'Running';
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
  if (claim.isReady || isUsable(claim.vm)) {
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
