/**
 * Removes content from the cluster's image storage when nothing needs the content any more. Events report content that could not be
 * removed. Just before a removal, the Images, ISOs and Pods that need content are read again from the API server, not from the cache.
 *
 * Also grants the right to read the credentials of the storage to the hosts that need it now. One RoleBinding of the system namespace has as
 * subjects the hosts with an unfinished task that writes to the registry. Its Secret is never copied to a namespace of users.
 */
import type { Logger } from 'pino';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import type { Recorder } from '../objects/events.ts';
import {
  type Job,
  JOBS,
  type Pod,
  PODS,
  ROLE_BINDINGS,
  type RoleBinding,
  type Subject,
} from '../../kube/core.ts';
import type { OperatorConfig } from '../config/config.ts';
import {
  contentOwner,
  type ContentPlace,
  folderKey,
  isRemoval,
  keptEvent,
  placeKey,
  recordedPlace,
  repositoryOf,
} from '../image/place.ts';
import { Writer } from '../objects/writer.ts';
import { jobOf, podsOf } from '../tasks/owner.ts';
import { type MachineImageSource, registryReference } from '../../api/v1alpha1/source.ts';
import { directSource, storedContent, traitsOf } from '../image/content.ts';
import { taskOf } from '../tasks/job.ts';
import { machineOf } from '../podbacked/pod.ts';
import { STORAGE_SECRET, STORAGE_WRITERS, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { Informer } from '../../kube/informer.ts';
import { IMAGES, ISOS } from '../../api/v1alpha1/resources.ts';
import { taskOutcome, trueCondition } from '../tasks/outcome.ts';
import { keyOf } from '../../kube/objects.ts';

/**
 * The only key of this controller. One reconcile handles all removals, so that the needed content is determined only once for all of them.
 */
const REMOVALS_KEY = 'storage';

export interface RemovalControllerOptions extends RemovalSources {
  readonly client: KubeClient;
  readonly config: OperatorConfig;
  readonly recorder: Recorder;
  readonly consistency: Consistency;
  readonly clock: () => number;
}

export class RemovalReconciler {
  readonly #options: RemovalControllerOptions;
  readonly #jobs: Writer<Job>;
  /**
   * For each removal, the time of the first check that found the content unneeded. The map's key is the uid of the removal's Job. When the
   * operator starts, the map is empty, so each removal waits its full time again. During this time, work that the previous operator process
   * began can end.
   */
  #unneededSince: RemovalPlan['unneededSince'] = new Map();
  /** Uids of ended Jobs that this process has already reported and deleted. The cache might still contain these Jobs. */
  #reported: ReadonlySet<string> = new Set();

  constructor(options: RemovalControllerOptions) {
    const { client, consistency, jobs } = options;
    this.#options = options;
    this.#jobs = new Writer({ client, consistency, type: JOBS, informer: jobs });
  }

  async reconcile(_key: string, { logger }: { logger: Logger }): Promise<Result> {
    const { config, clock } = this.#options;
    const removals = observeRemovals(this.#options);
    if (removals.length === 0) {
      return undefined;
    }
    const plan = planRemovals({
      removals,
      needs: cachedNeeds(this.#options),
      unneededSince: this.#unneededSince,
      // Without an image storage, `keepMilliseconds` is infinite, so nothing is removed.
      keepMilliseconds: (config.imageStorage?.keepSeconds ?? Number.POSITIVE_INFINITY) * 1000,
      now: clock(),
    });
    this.#unneededSince = plan.unneededSince;
    await this.#finish(plan, logger);
    await this.#begin(plan.due, logger);
    const { wakeMilliseconds } = plan;
    return wakeMilliseconds === undefined ? undefined : { requeueAfterMilliseconds: wakeMilliseconds };
  }

  async #begin(due: readonly ContentRemoval[], logger: Logger): Promise<void> {
    if (due.length === 0) {
      return;
    }
    const needs = await currentNeeds(this.#options.client, this.#options);
    for (const { job, place } of due.filter((one) => !isNeeded(one.place, needs))) {
      await this.#jobs.patch(REMOVALS_KEY, job, { spec: { suspend: false } });
      logger.info(
        { job: job.metadata.name, place: placeKey(place) },
        'removing content that nothing needs any more',
      );
    }
  }

  /**
   * Reports each removal that has ended, and then deletes its Job. The report is a log line, and also an Event if the content remains. If
   * the operator crashes before the deletion, the next operator reports the removal again.
   */
  async #finish({ ended }: RemovalPlan, logger: Logger): Promise<void> {
    const uidOf = ({ job }: ContentRemoval): string => job.metadata.uid ?? '';
    const reported = new Set(ended.map(uidOf).filter((uid) => this.#reported.has(uid)));
    for (const removal of ended.filter((one) => !reported.has(uidOf(one)))) {
      this.#tell(removal, removal.end.kept, logger);
      await this.#jobs.delete(removal.job, { propagationPolicy: 'Background' });
      reported.add(uidOf(removal));
    }
    this.#reported = reported;
  }

  #tell({ job, place }: ContentRemoval, kept: string | undefined, logger: Logger): void {
    const lost = placeKey(place);
    if (kept === undefined) {
      logger.info({ place: lost }, 'content was removed from the image storage');
      return;
    }
    logger.warn({ place: lost, kept }, 'content stays in the image storage');
    this.#options.recorder.event(contentOwner(job), keptEvent(lost, kept));
  }
}

/**
 * When a change can allow a removal to begin, this function enqueues the removals. Changes of VMs' Pods enqueue nothing, because the
 * next regular reconcile sees them.
 */
export function enqueueRemovals(
  controller: Controller,
  { images, isos, jobs, taskPods }: RemovalSources,
): void {
  const look = (): void => controller.enqueue(REMOVALS_KEY);
  jobs.cache.onChange(({ object }) => {
    if (isRemoval(object)) {
      look();
    }
  });
  taskPods.cache.onChange(({ object }) => {
    const job = jobOf(object, jobs);
    if (job !== undefined && isRemoval(job)) {
      look();
    }
  });
  // Each change of an image's content enqueues the removals. Regular checks alone could miss content that an image needs only for a short
  // time.
  for (const { cache } of [images, isos]) {
    cache.onChange(({ type, object, previous }) => {
      const isSame = type === 'updated' && sameContent(object, previous);
      if (!isSame && jobs.cache.list().some(isRemoval)) {
        look();
      }
    });
  }
}

function sameContent(a: Image | ISO, b: Image | ISO | undefined): boolean {
  return JSON.stringify(a.status?.content) === JSON.stringify(b?.status?.content);
}

/**
 * Longest time in milliseconds between two checks whether something needs content that is to be removed. The operator does not notice a
 * need that exists only between two checks.
 */
const LOOK_MILLISECONDS = 60_000;

/**
 * Largest number of removals that run at the same time. Without this limit, a deleted namespace with a thousand images would fill the hosts
 * with Pods.
 */
const REMOVALS_LIMIT = 20;

/** Result of an ended removal. `kept` is the reason why the content is still stored. It is undefined if the content was removed. */
interface RemovalEnd {
  readonly kept: string | undefined;
}

export interface ContentRemoval {
  readonly job: Job;
  readonly place: ContentPlace;
  readonly end: RemovalEnd | undefined;
}

interface ObservedRemovals {
  readonly removals: readonly ContentRemoval[];
  readonly needs: Needs;
  /**
   * For each removal, the time of the first check that found the content unneeded, in milliseconds since the epoch. The map's key is the
   * `uid` of the removal's Job.
   */
  readonly unneededSince: ReadonlyMap<string, number>;
  /**
   * Time in milliseconds for which content must be unneeded before it is removed. When the last image with this content goes away, somebody
   * might just be creating a copy or VM that needs the content. The caches might not show this object yet. When the time is over, they show
   * it, or its creation has failed.
   */
  readonly keepMilliseconds: number;
  readonly now: number;
}

interface RemovalPlan {
  readonly unneededSince: ReadonlyMap<string, number>;
  /** Removals that begin next, unless the API server shows that something needs the content. */
  readonly due: readonly ContentRemoval[];
  readonly ended: readonly (ContentRemoval & { readonly end: RemovalEnd })[];
  /** Time in milliseconds after which the removals must be reconciled again, even if nothing has changed. */
  readonly wakeMilliseconds: number | undefined;
}

export function planRemovals(observed: ObservedRemovals): RemovalPlan {
  const { removals, needs, keepMilliseconds, now } = observed;
  const waiting = removals.filter(({ job, end }) => job.spec.suspend === true && end === undefined);
  const unneededSince = new Map<string, number>();
  for (const { job, place } of waiting) {
    const { uid = '' } = job.metadata;
    if (!isNeeded(place, needs)) {
      unneededSince.set(uid, observed.unneededSince.get(uid) ?? now);
    }
  }
  const due = waiting.filter(({ job }) => {
    const since = unneededSince.get(job.metadata.uid ?? '');
    return since !== undefined && now - since >= keepMilliseconds;
  });
  const underWay = removals.filter(({ job, end }) => job.spec.suspend !== true && end === undefined).length;
  // Removals begin in groups, so that the operator asks the API server only once per group what is still needed.
  const places = underWay > REMOVALS_LIMIT / 2 ? 0 : REMOVALS_LIMIT - underWay;
  const ended = removals.flatMap((removal) =>
    removal.end === undefined ? [] : [{ ...removal, end: removal.end }],
  );
  const wakeMilliseconds = waiting.length === 0 ? undefined : Math.min(LOOK_MILLISECONDS, keepMilliseconds);
  return { unneededSince, due: due.slice(0, places), ended, wakeMilliseconds };
}

/** Content of the image storage that is needed: keys of single files or artifacts (`placeKey`), and names of whole repositories. */
interface Needs {
  readonly keys: ReadonlySet<string>;
  /**
   * True if there is a Pod whose description of its machine cannot be read. The machine of such a Pod could need any content, so all
   * content counts as needed.
   */
  readonly unknown: boolean;
}

interface Users {
  readonly objects: readonly (Image | ISO)[];
  /** The Pods of VMs. */
  readonly pods: readonly Pod[];
  /** The Jobs that do tasks (work on images). */
  readonly jobs: readonly Job[];
}

/** Returns the content that the given objects, Pods and Jobs need. If this is uncertain, the content counts as needed. */
export function needsOf({ objects, pods, jobs }: Users): Needs {
  const machines = pods.map((pod) => ({ pod, machine: machineOf(pod) }));
  const keys = [
    ...objects.flatMap((object) => [storedContent(object), directSource(object.spec.source)].flatMap(keysOf)),
    ...machines
      .filter(({ pod }) => isPreparing(pod))
      .flatMap(({ machine }) => [machine?.image, machine?.iso].flatMap(keysOf)),
    ...jobs.flatMap(keysOfJob),
  ];
  return { keys: new Set(keys), unknown: machines.some(({ machine }) => machine === undefined) };
}

/**
 * Returns true if the machine of a Pod needs its sources in the storage. It needs them only until it runs, because the host fetches the
 * content before it starts the machine.
 */
function isPreparing({ status }: Pod): boolean {
  return (status?.phase ?? 'Pending') === 'Pending';
}

export function isNeeded(place: ContentPlace, { keys, unknown }: Needs): boolean {
  const repository = place.type === 'registry' && keys.has(repositoryOf(place.reference));
  return unknown || repository || keys.has(placeKey(place));
}

function keysOf(source: MachineImageSource | undefined): string[] {
  const { place } = traitsOf(source);
  const reference = registryReference(source);
  // An image can name a repository of the image storage without a digest. Therefore the whole repository counts as needed.
  const repository = reference === undefined ? [] : [repositoryOf(reference)];
  return place === undefined ? repository : [placeKey(place)];
}

/**
 * Returns the keys of the content that a Job needs: its source and its target. After the Job, the target can become the content of an
 * image. If the target is in a registry, its digest is unknown until the Job ends. Therefore the whole repository counts as needed.
 */
function keysOfJob(job: Job): string[] {
  const task = taskOf(job);
  const source = task !== undefined && 'image' in task ? keysOf(task.image.source) : [];
  const target = task !== undefined && 'target' in task ? task.target : undefined;
  if (target === undefined) {
    return source;
  }
  return [...source, target.type === 'folder' ? folderKey(target.path) : repositoryOf(target.reference)];
}

export interface RemovalSources {
  readonly images: Informer<Image>;
  readonly isos: Informer<ISO>;
  /** The Pods of VMs. */
  readonly pods: Informer<Pod>;
  readonly jobs: Informer<Job>;
  readonly taskPods: Informer<Pod>;
}

export function observeRemovals({ jobs, taskPods }: RemovalSources): ContentRemoval[] {
  return jobs.cache
    .list()
    .filter(isRemoval)
    .flatMap((job) => {
      const place = recordedPlace(job);
      return place === undefined ? [] : [{ job, place, end: endOf(job, taskPods) }];
    });
}

/**
 * Returns the result of a removal, as the newest Pod of the Job shows it. The result is undefined while the Job controller can try again.
 */
function endOf(job: Job, taskPods: Informer<Pod>): RemovalEnd | undefined {
  if (trueCondition(job, 'Complete', 'Failed', 'FailureTarget') === undefined) {
    return undefined;
  }
  const newest = podsOf(job, taskPods).toSorted(byAge).at(-1);
  const outcome = taskOutcome(job, newest);
  switch (outcome.kind) {
    case 'succeeded':
      return { kept: outcome.report.kept };
    case 'failed':
      return { kept: `${outcome.reason}: ${outcome.message}` };
    default:
      return undefined;
  }
}

function byAge(a: Pod, b: Pod): number {
  return (a.metadata.creationTimestamp ?? '').localeCompare(b.metadata.creationTimestamp ?? '');
}

function cachedNeeds({ images, isos, pods, jobs }: RemovalSources): Needs {
  const objects = [...images.cache.list(), ...isos.cache.list()];
  return needsOf({ objects, pods: pods.cache.list(), jobs: jobs.cache.list() });
}

/**
 * Determines the needed content from objects that the API server returns now. Only the Jobs come from the cache. The objects are read in
 * pages, and only their keys are kept. All Pods of 12,000 VMs together would need 100 MB of memory.
 */
export async function currentNeeds(
  client: Pick<KubeClient, 'pages'>,
  { jobs }: Pick<RemovalSources, 'jobs'>,
): Promise<Needs> {
  const found: Needs[] = [needsOf({ objects: [], pods: [], jobs: jobs.cache.list() })];
  for (const type of [IMAGES, ISOS]) {
    for await (const { items } of client.pages<Image | ISO>(type)) {
      found.push(needsOf({ objects: items, pods: [], jobs: [] }));
    }
  }
  for await (const { items } of client.pages(PODS, { labelSelector: VM_UID_LABEL })) {
    found.push(needsOf({ objects: [], pods: items, jobs: [] }));
  }
  return {
    keys: new Set(found.flatMap(({ keys }) => [...keys])),
    unknown: found.some(({ unknown }) => unknown),
  };
}

const RBAC_GROUP = 'rbac.authorization.k8s.io';
const ENDED: ReadonlySet<string | undefined> = new Set(['Succeeded', 'Failed']);

interface WriterSources {
  readonly jobs: Informer<Job>;
  readonly taskPods: Informer<Pod>;
  /** The one RoleBinding, in the system namespace. */
  readonly storageWriters: Informer<RoleBinding>;
}

interface StorageWritersOptions extends WriterSources {
  readonly client: KubeClient;
  readonly config: OperatorConfig;
  readonly consistency: Consistency;
}

export class StorageWritersReconciler {
  readonly #options: StorageWritersOptions;
  readonly #bindings: Writer<RoleBinding>;

  constructor(options: StorageWritersOptions) {
    const { client, consistency, storageWriters } = options;
    this.#options = options;
    this.#bindings = new Writer({ client, consistency, type: ROLE_BINDINGS, informer: storageWriters });
  }

  /** Sets the subjects. `key` is that of the RoleBinding, which the chart makes. */
  async reconcile(key: string, { logger }: { logger: Logger }): Promise<Result> {
    const { storageWriters, taskPods, jobs } = this.#options;
    const binding = storageWriters.cache.get(key);
    if (binding === undefined) {
      return undefined;
    }
    const subjects = writingHosts(taskPods.cache.list(), (pod) => jobOf(pod, jobs)).map(hostSubject);
    if (JSON.stringify(subjects.map(nameOf)) !== JSON.stringify((binding.subjects ?? []).map(nameOf))) {
      logger.info({ hosts: subjects.map(nameOf) }, 'setting the hosts that may write to the image storage');
      await this.#bindings.patch(key, binding, { subjects });
    }
    return undefined;
  }
}

/** Returns the names of the hosts with an unfinished task that writes to the registry of the image storage, in alphabetical order. */
export function writingHosts(
  pods: readonly Readonly<Pod>[],
  jobFor: (pod: Readonly<Pod>) => Readonly<Job> | undefined,
): string[] {
  const writing = pods.filter((pod) => {
    const job = ENDED.has(pod.status?.phase) ? undefined : jobFor(pod);
    return job !== undefined && writes(job);
  });
  return [...new Set(writing.flatMap(({ spec }) => spec.nodeName ?? []))].toSorted();
}

function writes(job: Readonly<Job>): boolean {
  const task = taskOf(job);
  const target = task !== undefined && 'target' in task ? task.target : undefined;
  return target?.type === 'registry';
}

function hostSubject(host: string): Subject {
  return { kind: 'User', apiGroup: RBAC_GROUP, name: `system:node:${host}` };
}

function nameOf({ name }: Subject): string {
  return name;
}

/** Enqueues the RoleBinding when it changes, and when the Pod of a task changes. */
export function enqueueStorageWriters(
  controller: Controller,
  { jobs, taskPods, storageWriters, config }: WriterSources & { config: OperatorConfig },
): void {
  const key = keyOf({ metadata: { namespace: config.namespaces.system, name: STORAGE_WRITERS } });
  const enqueue = (): void => controller.enqueue(key);
  storageWriters.cache.onChange(enqueue);
  taskPods.cache.onChange(({ object }) => {
    if (object.spec.imagePullSecrets?.some(({ name }) => name === STORAGE_SECRET) === true) {
      enqueue();
    }
  });
  // A Pod can be seen before its Job.
  jobs.cache.onChange(({ type }) => {
    if (type === 'added') {
      enqueue();
    }
  });
}
