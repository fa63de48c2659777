/** Reads from the caches all that one reconcile of a VMPool needs, and enqueues VMPools when it changes. */
import { createHash } from 'node:crypto';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { API_VERSION } from '../../api/v1alpha1/names.ts';
import { isImageReference } from '../../api/v1alpha1/reference.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMConfig } from '../../api/v1alpha1/vmconfig.ts';
import { isOfRevision, POOL_DEFAULTS, poolUidOf } from '../../api/v1alpha1/poolmembers.ts';
import type { VMPool } from '../../api/v1alpha1/vmpool.ts';
import type { Namespace, Node, Pod, PodSpec } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';
import { suits } from '../../kube/scheduling.ts';
import type { OperatorConfig } from '../config/config.ts';
import { isReady, PODS_BY_NODE } from '../host/observe.ts';
import { contentOf } from '../image/content.ts';
import { conditionIn } from '../objects/conditions.ts';
import { asksForSlot, holdsSlot, isHost, onlyOwnHosts, slotsOf } from '../tasks/placement.ts';
import { lookups } from '../vm/observe.ts';
import { buildPod } from '../vm/pod.ts';
import { findConfig, isUnresolved, type Resolvable, type Resolved, resolve } from '../vm/resolve.ts';

/** Index of VMs by the uid of the VMPool that owns them. */
export const VMS_BY_POOL = 'pool';

/** Returns the keys of a VM for the index {@link VMS_BY_POOL}. */
export function poolOfVM(vm: Readonly<VM>): string[] {
  const uid = poolUidOf(vm);
  return uid === undefined ? [] : [uid];
}

export interface PoolSources {
  readonly pools: Informer<VMPool>;
  readonly vms: Informer<VM>;
  readonly vmConfigs: Informer<VMConfig>;
  readonly images: Informer<Image>;
  readonly isos: Informer<ISO>;
  readonly nodes: Informer<Node>;
  readonly namespaces: Informer<Namespace>;
  /** Pods of VMs. */
  readonly pods: Informer<Pod>;
  readonly emulatorPods: Informer<Pod>;
  readonly taskPods: Informer<Pod>;
  readonly config: OperatorConfig;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

/**
 * State of a VM of a pool. `leaving`: it is being deleted. `failed`: it will not become Ready, or not in time. `ended`: its guest has powered
 * off after its job. `ready`: it can be claimed. `booted`: it is Ready, and must be suspended. `starting`: it has a host. `unplaced`: it has
 * none.
 */
export type MemberState = 'leaving' | 'failed' | 'ended' | 'ready' | 'booted' | 'starting' | 'unplaced';

export interface PoolMember {
  readonly vm: Readonly<VM>;
  readonly state: MemberState;
  /** Whether it was made from an earlier template, or from an earlier content of its image. */
  readonly isStale: boolean;
  /** Whether the scheduler has found no host for it. */
  readonly isUnschedulable: boolean;
  /** Whether it is older than the pool allows. */
  readonly isOld: boolean;
  /** Time of its creation, in milliseconds since the epoch. */
  readonly createdAt: number;
  /** Time since which it is Ready, in milliseconds since the epoch. It is undefined if it is not. */
  readonly readySince: number | undefined;
  /** Time when it must be looked at again, even if nothing changes, in milliseconds since the epoch. */
  readonly dueAt: number | undefined;
  /** Why it failed, or what it waits for, as text for people. */
  readonly message: string;
}

/** Hosts that suit the VMs of a pool. */
export interface PoolHosts {
  readonly nodes: readonly Readonly<Node>[];
  /** Number of them that have the image. It is undefined if the image is not known. */
  readonly withImage: number | undefined;
}

export interface ObservedPool {
  readonly pool: Readonly<VMPool>;
  readonly members: readonly PoolMember[];
  /** Revision of the template and of the content of its image. */
  readonly revision: string;
  /** Why no VM can be made from the template now. It is undefined if one can. */
  readonly missing: string | undefined;
  readonly hosts: PoolHosts;
  /** Number of free slots on the hosts that suit. */
  readonly freeSlots: number;
  /** Whether a VM that is not in a pool waits for a slot on one of the hosts that suit. */
  readonly isAwaited: boolean;
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
}

/** What {@link observePool} cannot read from the caches of objects. */
export interface PoolKnowledge {
  /** Uids of the VMs of the pool that this process has deleted. The cache can lack the deletion. */
  readonly deleted: ReadonlySet<string>;
  /** Returns true if a VM that is not in a pool waits for a slot on one of these hosts. */
  readonly isAwaitedOn: (nodes: readonly Readonly<Node>[]) => boolean;
}

export function observePool(
  sources: PoolSources,
  pool: Readonly<VMPool>,
  known: PoolKnowledge,
): ObservedPool {
  const now = sources.clock();
  const template = templateOf(sources, pool);
  const { revision, missing } = revisionOf(pool, template);
  const hosts = hostsFor(sources, pool, template);
  const vms = sources.vms.cache.byIndex(VMS_BY_POOL, pool.metadata.uid ?? '');
  return {
    pool,
    members: vms.map((vm) =>
      memberOf(vm, { pool, revision, isDeleted: known.deleted.has(vm.metadata.uid ?? ''), now }),
    ),
    revision,
    missing,
    hosts,
    freeSlots: freeSlotsOn(sources, hosts.nodes),
    isAwaited: (pool.spec.yieldToWaiting ?? POOL_DEFAULTS.yieldToWaiting) && known.isAwaitedOn(hosts.nodes),
    now,
  };
}

/** Returns the template as a VM that does not exist, so that the rules of VMs apply to it. */
function templateOf(sources: PoolSources, { metadata, spec }: Readonly<VMPool>): Resolvable {
  const { namespace = '', name } = metadata;
  const vm: VM = {
    apiVersion: API_VERSION,
    kind: 'VM',
    metadata: { namespace, name },
    spec: spec.template.spec,
  };
  return { vm, lookups: lookups(sources, namespace), config: sources.config };
}

/** Identity of the content of one image, or why it is not known. */
interface Content {
  readonly identity: string;
  readonly missing: string | undefined;
}

/**
 * Returns the revision: a hash of the template with its VMConfig, and a hash of the content of its images. While an image is missing or not
 * ready, the pool keeps the revision that it has.
 */
function revisionOf(
  { spec, status }: Readonly<VMPool>,
  template: Resolvable,
): { revision: string; missing: string | undefined } {
  const { configRef } = spec.template.spec;
  const config = findConfig(template);
  const own = hash([spec.template, config?.metadata.uid, config?.metadata.generation]);
  const contents =
    configRef !== undefined && config === undefined
      ? [{ identity: '', missing: `VMConfig ${configRef.name} was not found` }]
      : contentsOf(template, config);
  const missing = contents.find((content) => content.missing !== undefined)?.missing;
  const revision = `${own}-${hash(contents.map(({ identity }) => identity))}`;
  return { revision: missing === undefined ? revision : (status?.revision ?? `${own}-0`), missing };
}

/** Returns the content of the image and of the ISO, from the template or else from its VMConfig. */
function contentsOf({ vm, lookups: known }: Resolvable, config: VMConfig | undefined): Content[] {
  const from = [vm.spec, config?.spec].find((one) => (one?.image ?? one?.iso) !== undefined);
  return [
    contentIn('Image', from?.image, (name) => known.image(name)),
    contentIn('ISO', from?.iso, (name) => known.iso(name)),
  ];
}

function contentIn(
  kind: string,
  name: string | undefined,
  lookup: (name: string) => Image | ISO | undefined,
): Content {
  if (name === undefined || isImageReference(name)) {
    return { identity: name ?? '', missing: undefined };
  }
  const object = lookup(name);
  return object === undefined
    ? { identity: '', missing: `${kind} ${name} was not found` }
    : contentOfObject(`${kind} ${name}`, object);
}

function contentOfObject(subject: string, object: Image | ISO): Content {
  const content = contentOf(object);
  if (content === undefined) {
    return { identity: '', missing: `${subject} has no content yet` };
  }
  const { digest: reported, phase } = object.status ?? {};
  const { digest = reported } = content;
  const isUsable = digest !== undefined || phase === 'Ready';
  const missing = isUsable ? undefined : `${subject} is not Ready`;
  return { identity: digest ?? JSON.stringify(content.source), missing };
}

function hash(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value)).digest('hex').slice(0, 10);
}

function hostsFor(sources: PoolSources, pool: Readonly<VMPool>, template: Resolvable): PoolHosts {
  const resolved = resolve(template);
  if (isUnresolved(resolved)) {
    return { nodes: [], withImage: undefined };
  }
  const spec = podSpecOf(sources, pool, template.vm, resolved);
  const nodes = sources.nodes.cache.list().filter((node) => isHost(node) && suits(spec, node));
  const { containerImage = '' } = resolved.image ?? resolved.iso ?? {};
  const holders = nodes.filter(({ status }) =>
    status?.images?.some(({ names }) => names?.includes(containerImage) === true),
  );
  return { nodes, withImage: holders.length };
}

function podSpecOf(
  sources: PoolSources,
  { metadata }: Readonly<VMPool>,
  vm: VM,
  resolved: Resolved,
): PodSpec {
  const { spec } = buildPod({
    vm,
    resolved,
    attempt: 1,
    avoidedNodes: [],
    isDedicated: onlyOwnHosts(sources, metadata.namespace ?? ''),
    config: sources.config,
    clusterUid: '',
    random: () => '',
  });
  return spec;
}

function freeSlotsOn(
  { pods, emulatorPods, taskPods }: PoolSources,
  nodes: readonly Readonly<Node>[],
): number {
  const open = nodes.filter((node) => isReady(node) && node.spec?.unschedulable !== true);
  const counts = open.map((node) => {
    const bound = [pods, emulatorPods, taskPods].flatMap(({ cache }) =>
      cache.byIndex(PODS_BY_NODE, node.metadata.name),
    );
    return slotsOf(node) - bound.filter((pod) => holdsSlot(pod) && asksForSlot(pod.spec)).length;
  });
  return counts.reduce((sum, free) => sum + Math.max(0, free), 0);
}

interface MemberContext {
  readonly pool: Readonly<VMPool>;
  readonly revision: string;
  readonly isDeleted: boolean;
  readonly now: number;
}

function memberOf(vm: Readonly<VM>, context: MemberContext): PoolMember {
  const { pool, revision, now } = context;
  const createdAt = Date.parse(vm.metadata.creationTimestamp ?? '');
  const ready = conditionIn(vm.status, 'Ready');
  const oldAt = createdAt + lifetimeOf(vm, pool);
  const dueAt = deadlineOf(vm, pool);
  const { state, message } = stateOf(vm, context, dueAt);
  const isWaiting = state === 'starting' || state === 'booted';
  return {
    vm,
    state,
    isStale: !isOfRevision(vm, revision),
    isUnschedulable: state === 'unplaced' && conditionIn(vm.status, 'Scheduled')?.status === 'False',
    isOld: now >= oldAt,
    createdAt,
    readySince: ready?.status === 'True' ? Date.parse(ready.lastTransitionTime) : undefined,
    dueAt: isWaiting ? dueAt : oldAt,
    message,
  };
}

/** Number of hexadecimal digits of a uid that spread the ages of VMs. */
const SHARE_DIGITS = 8;

/**
 * Returns the longest age of a VM in milliseconds. A tenth of it is added or removed by the uid, so that VMs of one age are not replaced at the
 * same time. With mode OneShot there is none, because a VM can have a job.
 */
function lifetimeOf({ metadata }: Readonly<VM>, { spec }: Readonly<VMPool>): number {
  if (spec.mode === 'OneShot') {
    return Number.POSITIVE_INFINITY;
  }
  // The API server makes uids of random digits. A hash of each uid would be most of the work for a large pool.
  const share = (Number.parseInt((metadata.uid ?? '').slice(0, SHARE_DIGITS), 16) || 0) / 16 ** SHARE_DIGITS;
  return (spec.maxAgeSeconds ?? POOL_DEFAULTS.maxAgeSeconds) * 1_000 * (0.9 + share / 5);
}

/** Returns the time when the VM must be Ready, in milliseconds since the epoch. It is undefined for a VM without a host. */
function deadlineOf({ status }: Readonly<VM>, { spec }: Readonly<VMPool>): number | undefined {
  const scheduled = conditionIn(status, 'Scheduled');
  const ready = conditionIn(status, 'Ready');
  if (scheduled?.status !== 'True' || ready?.status === 'Unknown') {
    return undefined;
  }
  const since = Math.max(
    Date.parse(scheduled.lastTransitionTime),
    Date.parse(ready?.lastTransitionTime ?? '') || 0,
  );
  return since + (spec.readyDeadlineSeconds ?? POOL_DEFAULTS.readyDeadlineSeconds) * 1_000;
}

interface Judged {
  readonly state: MemberState;
  readonly message: string;
}

function stateOf(vm: Readonly<VM>, context: MemberContext, dueAt: number | undefined): Judged {
  if (vm.metadata.deletionTimestamp !== undefined || context.isDeleted) {
    return { state: 'leaving', message: 'The VM is being deleted' };
  }
  return endOf(vm, context.pool) ?? readyState(vm, context.pool) ?? waitingState(vm, context, dueAt);
}

/** Returns the state of a VM that is Ready. The result is undefined for others. */
function readyState({ metadata, status, spec }: Readonly<VM>, pool: Readonly<VMPool>): Judged | undefined {
  const ready = conditionIn(status, 'Ready');
  if (ready?.status !== 'True' || ready.observedGeneration !== metadata.generation) {
    return undefined;
  }
  const { powerState: goal = 'Running' } = pool.spec.template.spec;
  const { powerState = 'Running' } = spec;
  return { state: powerState === goal ? 'ready' : 'booted', message: ready.message };
}

/** Returns the state of a VM that is not Ready yet. */
function waitingState({ status }: Readonly<VM>, context: MemberContext, dueAt: number | undefined): Judged {
  const message = conditionIn(status, 'Ready')?.message ?? 'The operator has not seen the VM yet';
  if (status?.nodeName === undefined) {
    return { state: 'unplaced', message };
  }
  if (dueAt === undefined || context.now < dueAt) {
    return { state: 'starting', message };
  }
  const { readyDeadlineSeconds = POOL_DEFAULTS.readyDeadlineSeconds } = context.pool.spec;
  const late = `The VM was not Ready within ${readyDeadlineSeconds} s on host ${status.nodeName}`;
  return { state: 'failed', message: `${late}: ${message}` };
}

/**
 * Shortest time in milliseconds from the first run of a VM with mode OneShot to its end, if it had a job. A guest that powers off sooner did
 * not boot into its work, and would be replaced again and again.
 */
const JOB_MILLISECONDS = 5_000;

/** Returns the milliseconds from the first run of a VM to its end. The result is NaN if it has not ended, or has never run. */
export function livedMilliseconds(status: VM['status']): number {
  const ended = conditionIn(status, 'Stalled')?.lastTransitionTime;
  return Date.parse(ended ?? '') - Date.parse(status?.firstRunningTime ?? '');
}

/** Returns the state of a VM that has failed or ended by itself. The result is undefined for others. */
function endOf({ status }: Readonly<VM>, { spec }: Readonly<VMPool>): Judged | undefined {
  const stalled = conditionIn(status, 'Stalled');
  if (status?.failure !== undefined) {
    return { state: 'failed', message: status.failure.message };
  }
  if (stalled?.status !== 'True') {
    return undefined;
  }
  const hadJob =
    spec.mode === 'OneShot' &&
    stalled.reason === 'GuestShutdown' &&
    livedMilliseconds(status) >= JOB_MILLISECONDS;
  return { state: hadJob ? 'ended' : 'failed', message: stalled.message };
}

/** Returns the key of the VMPool that owns the VM. The result is undefined for other VMs. */
export function poolKeyOf(vm: Readonly<VM>): string | undefined {
  const owner = vm.metadata.ownerReferences?.find(({ controller }) => controller === true);
  return poolUidOf(vm) === undefined || owner === undefined
    ? undefined
    : keyOf({ metadata: { ...vm.metadata, name: owner.name } });
}
