/** Reads from the caches all that the plan of one ImageCacheEntry needs. */
import { timestamp } from '../../base/time.ts';
import { digestsIn, keepingEntry, referenceOf } from '../../api/v1alpha1/cachetargets.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { dedicatedTo, hostsOf, tagsOf } from '../../api/v1alpha1/hosts.ts';
import { ONLY_NAMESPACE_LABEL } from '../../api/v1alpha1/names.ts';
import type { Job, Namespace, Node, Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import type { OperatorConfig } from '../config/config.ts';
import { PODS_BY_NODE } from '../host/observe.ts';
import { conditionIn } from '../objects/conditions.ts';
import { asksForSlot, holdsSlot, hostOfJob, JOBS_BY_HOST, slotsOf, isHost } from '../tasks/placement.ts';
import { podCondition } from '../podbacked/pod.ts';
import { explainPlacement } from '../vm/scheduling.ts';
import { isSeenAlive, type TaskOutcome, taskOutcome, trueCondition } from '../tasks/outcome.ts';
import { controllerOf, podsOf, TASKS_BY_OWNER } from '../tasks/owner.ts';
import { resolveImage } from './image.ts';
import { ATTEMPT_ANNOTATION, PARKED_SECONDS } from './job.ts';
import type { CacheJob, ObservedHost, ObservedEntry, TaskType } from './observed.ts';

/** Names of the indexes with which this controller finds ImageCacheEntries in the cache. */
export const ENTRIES_BY_UID = 'uid';
export const ENTRIES_BY_NAMESPACE = 'namespace';
export const ENTRIES_BY_REFERENCE = 'reference';
export const ENTRIES_BY_IMAGE = 'image';
export const ENTRIES_BY_DIGEST = 'digest';
export const ENTRIES_BY_QUEUED_HOST = 'queuedHost';

export interface EntrySources {
  readonly entries: Informer<ImageCacheEntry>;
  readonly namespaces: Informer<Namespace>;
  readonly images: Informer<Image>;
  readonly nodes: Informer<Node>;
  /** Jobs that do tasks (work on images). Their Pods are in `taskPods`. */
  readonly jobs: Informer<Job>;
  readonly taskPods: Informer<Pod>;
  /** Pods of VMs. */
  readonly pods: Informer<Pod>;
  readonly emulatorPods: Informer<Pod>;
  readonly config: OperatorConfig;
  readonly clock: () => number;
}

/**
 * Returns the observed state of one entry.
 * @param existing Jobs of the entry that this process has not deleted
 * @param refusal returns the message with which the API server refuses a Pod for a Job, if it does
 */
export function observeEntry(
  sources: EntrySources,
  entry: ImageCacheEntry,
  existing: readonly Job[],
  refusal: (job: Job) => string | undefined = () => undefined,
): ObservedEntry {
  const { namespace = '', uid = '' } = entry.metadata;
  const pods = sources.taskPods.cache.byIndex(TASKS_BY_OWNER, uid);
  const jobs = existing.map((job) =>
    cacheJob(sources, job, { pod: podsOf(job, sources.taskPods)[0], refusal: refusal(job) }),
  );
  const known = new Set(jobs.map((job) => job.uid));
  const { imageRef } = entry.spec;
  const image = imageRef && sources.images.cache.get(`${imageRef.namespace}/${imageRef.name}`);
  const own = sources.namespaces.cache.get(namespace);
  const jobNamespace =
    own?.metadata.deletionTimestamp === undefined ? namespace : sources.config.namespaces.system;
  const hosts = visibleHosts(sources, jobNamespace);
  const usable = new Set(hostsOf(own ?? { metadata: { name: namespace } }, hosts));
  return {
    entry,
    jobNamespace,
    reference: referenceOf(entry),
    image: resolveImage(entry, image),
    duplicateOf: duplicateOf(sources, entry),
    hosts: new Map(hosts.map((node) => [node.metadata.name, hostOf(node, usable.has(node))])),
    freeSlots: (host) => freeSlots(sources, host),
    jobs,
    credentials: [],
    lingering: new Set(
      pods.filter((pod) => !known.has(controllerOf(pod)?.uid ?? '')).map((pod) => pod.spec.nodeName ?? ''),
    ),
    config: sources.config,
    now: sources.clock(),
  };
}

/** Returns the hosts that see Jobs of the namespace. A host that joined without a certificate sees those of its own namespace only. */
function visibleHosts({ nodes }: EntrySources, namespace: string): Readonly<Node>[] {
  return nodes.cache.list().filter((node) => {
    const only = node.metadata.labels?.[ONLY_NAMESPACE_LABEL];
    return isHost(node) && (only === undefined || only === namespace);
  });
}

/** Returns the key by which entries of a namespace for the same image are found. */
export function keyOfImage(entry: Readonly<ImageCacheEntry>): string {
  return `${entry.metadata.namespace} ${referenceOf(entry)}`;
}

/** Returns the names of the hosts that wait in the entry's queue or for a free slot. */
export function queuedHosts({ status }: ImageCacheEntry): string[] {
  const rows = status?.nodes ?? [];
  return rows.filter(({ state }) => state === 'Queued').map(({ node }) => node);
}

/** Pod of a Job, or the message with which the API server refuses this Pod. */
interface JobPod {
  readonly pod: Pod | undefined;
  readonly refusal: string | undefined;
}

function cacheJob({ nodes, clock }: EntrySources, job: Job, { pod, refusal }: JobPod): CacheJob {
  const { name, namespace = '', uid = '', annotations = {}, creationTimestamp = '' } = job.metadata;
  const type: TaskType = name.startsWith('uncache-') ? 'uncache' : 'cache';
  return {
    name,
    namespace,
    uid,
    host: hostOfJob(job)[0] ?? '',
    type,
    createdAt: Date.parse(creationTimestamp),
    attempt: annotations[ATTEMPT_ANNOTATION] ?? '',
    isParked: job.spec.activeDeadlineSeconds === PARKED_SECONDS,
    isScheduled: pod?.spec.nodeName !== undefined,
    obstacle: pod && obstacleOf(pod, nodes),
    outcome: outcomeOf(job, { pod, refusal }, clock()),
  };
}

/**
 * Returns the scheduler's explanation why the Pod has no host. The result is undefined if the scheduler has not decided yet, or has
 * accepted the host. The explanation of a Pod with a host is ignored, because this host can write any text, which can be slow to read.
 */
function obstacleOf(pod: Pod, nodes: Informer<Node>): string | undefined {
  const condition = podCondition(pod, 'PodScheduled');
  return pod.spec.nodeName === undefined && condition?.status === 'False'
    ? explainPlacement(pod, condition.message ?? '', () => nodes.cache.list().filter(isHost))
    : undefined;
}

/**
 * Returns the outcome of a Job. Usually the Pod of the Job shows the outcome. If the Pod was removed, a complete Job counts as succeeded.
 * A success has the time of the Job controller, because the clock of a host can be wrong. Before the Job has ended, this time is `now`.
 */
function outcomeOf(job: Job, { pod, refusal }: JobPod, now: number): TaskOutcome {
  const outcome = taskOutcome(job, pod, refusal);
  const end = trueCondition(job, 'Complete', 'Failed');
  if (outcome.kind === 'succeeded') {
    return { ...outcome, finishedAt: end?.lastTransitionTime ?? timestamp(now) };
  }
  return outcome.kind === 'failed' || end?.type !== 'Complete' || isSeenAlive(pod)
    ? outcome
    : { kind: 'succeeded', report: {}, finishedAt: end.lastTransitionTime };
}

/**
 * If the entry is a duplicate, returns the name of the other entry for which hosts keep the same image. Otherwise returns undefined. An
 * entry that is being deleted neither is a duplicate nor makes one, because hosts keep and remove an image for each entry apart.
 */
function duplicateOf({ entries }: EntrySources, entry: ImageCacheEntry): string | undefined {
  const isStaying = ({ metadata }: Readonly<ImageCacheEntry>) => metadata.deletionTimestamp === undefined;
  const rivals = entries.cache.byIndex(ENTRIES_BY_REFERENCE, keyOfImage(entry)).filter(isStaying);
  const first = isStaying(entry) ? keepingEntry(rivals) : undefined;
  return first === undefined || first.metadata.uid === entry.metadata.uid ? undefined : first.metadata.name;
}

function hostOf(node: Readonly<Node>, isUsable: boolean): ObservedHost {
  const { metadata, spec, status } = node;
  return {
    name: metadata.name,
    tags: new Set(tagsOf(node)),
    isUsable,
    dedicatedTo: dedicatedTo(node),
    notReadySince: notReadySince(node),
    isCordoned: spec?.unschedulable === true,
    images: (status?.images ?? []).map(({ names }) => digestsIn(names ?? [])),
  };
}

/**
 * Returns the time when the host stopped being Ready, in milliseconds since the epoch. The result is undefined if the host is Ready. A host
 * without a Ready condition is treated as never Ready, because nothing can be scheduled there.
 */
function notReadySince({ metadata, status }: Readonly<Node>): number | undefined {
  const ready = conditionIn(status, 'Ready');
  return ready?.status === 'True'
    ? undefined
    : Date.parse(ready?.lastTransitionTime ?? metadata.creationTimestamp ?? '');
}

function freeSlots({ nodes, pods, emulatorPods, jobs }: EntrySources, host: string): number {
  const machines = [pods, emulatorPods].flatMap(({ cache }) => cache.byIndex(PODS_BY_NODE, host));
  const tasks = jobs.cache.byIndex(JOBS_BY_HOST, host).map(({ spec }) => spec.template.spec);
  return (
    slotsOf(nodes.cache.get(host)) - machines.filter(holdsSlot).length - tasks.filter(asksForSlot).length
  );
}
