/**
 * Reads from the caches all that the plan and the status of one Image or ISO need. Also enqueues the Images and ISOs that depend on an object
 * when it changes, and checks whether a host's report about its task can be true. A host can lie, for example after somebody took over its
 * agent. The operator believes a report of success, but accepts only content at the place that the task names.
 */
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { RegistryCredential } from '../../api/v1alpha1/registrycredentials.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMSnapshot } from '../../api/v1alpha1/vmsnapshot.ts';
import type { Job, Namespace, Node, Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import type { OperatorConfig } from '../config/config.ts';
import { type TaskOutcome, taskOutcome, trueCondition } from '../tasks/outcome.ts';
import { jobOf, podsOf, TASKS_BY_OWNER } from '../tasks/owner.ts';
import { VM_FIELDS } from '../../api/v1alpha1/fields.ts';
import { OPERATION_LABEL } from '../../api/v1alpha1/names.ts';
import { taskOf } from '../tasks/job.ts';
import { onlyOwnHosts } from '../tasks/placement.ts';
import { imageObjectName, originKeys, traitsOf } from './content.ts';
import type { Controller } from '../../kube/controller.ts';
import { keyOf } from '../../kube/objects.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { isSha256, readReference, repositoryName } from '../../api/v1alpha1/reference.ts';
import { registryReference } from '../../api/v1alpha1/source.ts';
import type { StorageTarget, Task, TaskReport } from '../../api/v1alpha1/task.ts';

/** Label of Jobs. Its value is the number of the attempt. */
export const ATTEMPT_LABEL = 'berth.dev/attempt';
/** Annotation of a commit, push or download Job. Its value is the `requestedAt` of this action in the spec. */
export const REQUESTED_AT_ANNOTATION = 'berth.dev/requested-at';

export type ImageOperationType = 'pull' | 'save' | 'upload' | 'commit' | 'push' | 'download';

/** A Job that works for the image, with the values of the Job's labels and annotations, and with its outcome. */
export interface ImageJob {
  readonly job: Job;
  readonly operation: string;
  readonly requestedAt: string | undefined;
  readonly attempt: number;
  readonly outcome: TaskOutcome;
  /** Name of the host of the Job's Pod. It is undefined if the Pod has no host, or is gone. */
  readonly host?: string | undefined;
}

export interface ObservedImage {
  readonly object: Image | ISO;
  readonly kind: 'Image' | 'ISO';
  readonly jobs: readonly ImageJob[];
  /** Original from which this object is copied. Both have the same kind. */
  readonly origin: Image | ISO | undefined;
  readonly vm: (name: string) => VM | undefined;
  /** Returns a snapshot of the image's namespace. */
  readonly snapshot: (name: string) => VMSnapshot | undefined;
  /** Names of the VMs that hosts are preparing with this image. The list is filled only while the image is being deleted. */
  readonly deploying: readonly string[];
  /** Credentials of the image's namespace for registries. They are not in a cache. The operator reads them when it must create a Job. */
  readonly credentials: readonly RegistryCredential[];
  /** Returns whether tasks of the namespace run on its own hosts only. */
  readonly isDedicated: () => boolean;
  readonly config: OperatorConfig;
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
}

export interface ImageSources {
  readonly kind: 'Image' | 'ISO';
  readonly objects: Informer<Image> | Informer<ISO>;
  readonly vms: Informer<VM>;
  readonly snapshots: Informer<VMSnapshot>;
  readonly jobs: Informer<Job>;
  readonly taskPods: Informer<Pod>;
  readonly nodes: Informer<Node>;
  readonly namespaces: Informer<Namespace>;
  readonly config: OperatorConfig;
  readonly clock: () => number;
}

/**
 * Returns the observed state of one Image or ISO.
 * @param refusal returns the message with which the API server refuses a Pod for a Job, if it does
 */
export function observeImage(
  sources: ImageSources,
  object: Image | ISO,
  refusal: (job: Job) => string | undefined = () => undefined,
): ObservedImage {
  const { kind, objects, vms, snapshots, jobs, config, clock } = sources;
  const { namespace = '', uid = '' } = object.metadata;
  return {
    object,
    kind,
    jobs: jobs.cache.byIndex(TASKS_BY_OWNER, uid).map((job) => imageJob(job, sources, refusal(job))),
    origin: originKeys(object, config)
      .map((key) => objects.cache.get(key))
      .find((found) => found !== undefined),
    vm: (name) => vms.cache.get(`${namespace}/${name}`),
    snapshot: (name) => snapshots.cache.get(`${namespace}/${name}`),
    deploying:
      object.metadata.deletionTimestamp === undefined
        ? []
        : vms.cache
            .list()
            .filter((vm) => isDeploying(vm) && names(vm, { kind, config }, object))
            .map(({ metadata }) => metadata.name),
    credentials: [],
    isDedicated: () => onlyOwnHosts(sources, namespace),
    config,
    now: clock(),
  };
}

function imageJob(job: Job, { taskPods }: ImageSources, refusal: string | undefined): ImageJob {
  const { labels = {}, annotations = {} } = job.metadata;
  const [pod] = podsOf(job, taskPods);
  const host = pod?.spec.nodeName;
  return {
    job,
    operation: labels[OPERATION_LABEL] ?? '',
    requestedAt: annotations[REQUESTED_AT_ANNOTATION],
    attempt: Number(labels[ATTEMPT_LABEL] ?? 1),
    outcome: checkedOutcome(taskOutcome(job, pod, refusal), taskOf(job), host),
    host,
  };
}

/**
 * Returns true if the Job has not ended. The Job itself also shows its end, because somebody can remove its Pod, for example by a drain of
 * the host. A Job without its Pod looks as if it waits.
 */
export function isOpen({ job, outcome }: ImageJob): boolean {
  const isComplete = trueCondition(job, 'Complete') !== undefined;
  return !isComplete && (outcome.kind === 'waiting' || outcome.kind === 'running');
}

const DEPLOYING: ReadonlySet<string> = new Set(['Scheduled', 'Pulling', 'Cloning', 'Starting']);

function isDeploying({ status }: VM): boolean {
  return DEPLOYING.has(status?.phase ?? '');
}

/**
 * Returns true if the VM's spec names the Image or ISO. Also returns true if the VM's status shows that its machine was created from this
 * object.
 */
function names(
  vm: VM,
  { kind, config }: Pick<ImageSources, 'kind' | 'config'>,
  object: Image | ISO,
): boolean {
  const { name, namespace } = object.metadata;
  const named = kind === 'ISO' ? vm.spec.iso : vm.spec.image;
  // The status of a VM with both shows only the Image. Therefore its spec alone shows an ISO of the default namespace.
  const isShared = kind === 'ISO' && vm.spec.image !== undefined && namespace === config.namespaces.default;
  return (
    (named === name && (vm.metadata.namespace === namespace || isShared)) || isMadeFrom(vm, kind, object)
  );
}

function isMadeFrom({ spec, status }: VM, kind: ObservedImage['kind'], object: Image | ISO): boolean {
  // In the status of a VM, an Image and an ISO with the same name have the same reference. The spec of the VM shows which of them the
  // status means. If the spec names both, the status contains the reference of the Image.
  const referred = spec.image !== undefined ? 'Image' : spec.iso !== undefined ? 'ISO' : kind;
  const own = imageObjectName(object);
  const reference = status?.image?.reference;
  return referred === kind && (reference === own || reference?.startsWith(`${own}@`) === true);
}

/**
 * Returns functions that find the Images or ISOs to reconcile when another object changes. Each function returns keys (`namespace/name`).
 * Some of the functions search all Images or ISOs. This takes little time, because there are far fewer Images than VMs.
 */
export function imagesAffected({ kind, objects, config }: Pick<ImageSources, 'kind' | 'objects' | 'config'>) {
  const matching = (test: (object: Image | ISO) => boolean): string[] =>
    objects.cache.list().filter(test).map(keyOf);
  const byJob = ({ metadata: { namespace, ownerReferences = [] } }: Job): string[] =>
    ownerReferences.filter((owner) => owner.kind === kind).map(({ name }) => `${namespace}/${name}`);
  return {
    byOrigin: (origin: Image | ISO) =>
      matching((object) => originKeys(object, config).includes(keyOf(origin))),
    byJob,
    byPod: (pod: Pod, jobs: Informer<Job>) => {
      const job = jobOf(pod, jobs);
      return job === undefined ? [] : byJob(job);
    },
    byVM: ({ metadata: { name, namespace } }: VM) =>
      matching(({ spec, metadata }) => metadata.namespace === namespace && vmNames(spec).includes(name)),
    bySnapshot: ({ metadata: { name, namespace } }: VMSnapshot) =>
      matching(({ spec, metadata }) => metadata.namespace === namespace && snapshotName(spec) === name),
  };
}

function vmNames(spec: Image['spec'] | ISO['spec']): (string | undefined)[] {
  const fromVM = 'fromVM' in spec.source ? spec.source.fromVM?.name : undefined;
  return [fromVM, 'commit' in spec ? spec.commit?.vmName : undefined];
}

function snapshotName({ source }: Image['spec'] | ISO['spec']): string | undefined {
  return 'fromVM' in source ? source.fromVM?.snapshot : undefined;
}

/** Enqueues the Images or ISOs that depend on a changed object: an Image or ISO, a Job, a Job's Pod, a VM, or a snapshot. */
export function enqueueImages(controller: Controller, options: Omit<ImageSources, 'clock'>): void {
  const { objects, vms, snapshots, jobs, taskPods } = options;
  const enqueue = (keys: readonly string[]): void => keys.forEach((key) => controller.enqueue(key));
  const affected = imagesAffected(options);
  objects.cache.onChange(({ object }) => enqueue([keyOf(object), ...affected.byOrigin(object)]));
  jobs.cache.onChange(({ object }) => enqueue(affected.byJob(object)));
  taskPods.cache.onChange(({ object }) => enqueue(affected.byPod(object, jobs)));
  snapshots.cache.onChange(({ object }) => enqueue(affected.bySnapshot(object)));
  vms.cache.onChange(({ type, object, previous }) => {
    if (type !== 'updated' || diskKey(object) !== diskKey(previous)) {
      enqueue(affected.byVM(object));
    }
  });
}

/**
 * Returns a text that changes when the VM first runs, and when it fails. Each of these changes can end the wait of an Image for the disk of
 * the VM.
 */
function diskKey(vm: VM | undefined): string {
  const { firstRunningTime, failure } = vm?.status ?? {};
  return `${firstRunningTime} ${failure?.time}`;
}

/** Reason of a task that counts as failed, because the report of the host does not match the task. */
const REPORT_REFUSED: Reason = 'ReportRefused';
/** Size in bytes of the largest disk that a VM can have (`diskSize`): 1Pi. */
const SIZE_LIMIT_BYTES = 1024 ** 5;

/**
 * Returns the outcome of a task. If the report does not match the task, the result is a failure. `host` is the name of the host that
 * reported.
 */
function checkedOutcome(outcome: TaskOutcome, task: Task | undefined, host: string | undefined): TaskOutcome {
  if (outcome.kind !== 'succeeded') {
    return outcome;
  }
  const fault = reportFault(task, outcome.report);
  if (fault === undefined) {
    return outcome;
  }
  const message = `Host ${host ?? 'unknown'} ${fault}. The operator ignores the report`;
  return { kind: 'failed', reason: REPORT_REFUSED, message, finishedAt: outcome.finishedAt };
}

/**
 * Returns the reason why a report cannot be the result of the task. In a message, the reason comes after the host's name. The result is
 * undefined if the report can be right.
 */
export function reportFault(task: Task | undefined, report: TaskReport): string | undefined {
  switch (task?.type) {
    case 'import':
      return sizeFault(report) ?? importFault(task, report);
    case 'save':
    case 'receive':
      return sizeFault(report) ?? newContentFault(task, report);
    case 'push':
      return sizeFault(report) ?? pinnedFault(task.reference, report);
    case undefined:
      return 'sent a report, but the operator cannot read the task of the Job';
    default:
      // A report about a task of any other type does not name content, so there is nothing to check.
      return undefined;
  }
}

function importFault({ image, target }: Task & { type: 'import' }, report: TaskReport): string | undefined {
  if (target !== undefined) {
    return storedFault(target, report);
  }
  const reference = registryReference(image.source);
  if (reference !== undefined) {
    return digestFault(report) ?? repositoryFault(reference, report);
  }
  const { digest } = traitsOf(image.source);
  if (digest !== undefined && digest !== report.digest) {
    return `reported ${said(report.digest)}, but the source has another sha256`;
  }
  return digestFault(report) ?? noReferenceFault(report);
}

/**
 * Checks a report about stored content. A report about a file must not name a place, because the task determines the path. A report about
 * an artifact must name the repository of the task, with a digest.
 */
function storedFault(target: StorageTarget, report: TaskReport): string | undefined {
  return target.type === 'folder'
    ? (digestFault(report) ?? noReferenceFault(report))
    : (digestFault(report) ?? pinnedFault(target.reference, report));
}

/**
 * Checks a report about an artifact. The reported `reference` must name the requested repository, and end with the reported `digest` if
 * there is one.
 */
function pinnedFault(asked: string, report: TaskReport): string | undefined {
  const { reference = '', digest } = report;
  const isSame = digest === undefined || reference.endsWith(`@${digest}`);
  return (
    repositoryFault(asked, report) ??
    (isSame ? undefined : `reported a reference whose digest is not ${said(digest)}`)
  );
}

/**
 * Checks that the report names the requested repository with a digest and without a tag. If a digest was requested, the report
 * must name the same digest.
 */
function repositoryFault(asked: string, { reference }: TaskReport): string | undefined {
  const parts = readReference(asked);
  if (typeof parts === 'string') {
    return 'sent a report, but the image reference in the task is not valid';
  }
  const repository = repositoryName(parts);
  const pinned = parts.digest;
  const start = `${repository}@`;
  const digest = reference?.startsWith(start) === true ? reference.slice(start.length) : '';
  if (!isSha256(digest)) {
    return `reported ${said(reference)}, but the result must be ${repository} with a digest`;
  }
  return pinned === undefined || pinned === digest
    ? undefined
    : `reported ${said(digest)}, but the task names ${pinned}`;
}

function digestFault({ digest }: TaskReport): string | undefined {
  return digest !== undefined && isSha256(digest)
    ? undefined
    : `reported ${said(digest)} instead of a digest`;
}

function noReferenceFault({ reference }: TaskReport): string | undefined {
  return reference === undefined
    ? undefined
    : `reported the reference ${said(reference)}, but the task has no registry`;
}

function sizeFault({ sizeBytes = 0, storageBytes = 0, memory }: TaskReport): string | undefined {
  const sizes = [sizeBytes, storageBytes, memory?.memoryBytes ?? 0];
  const wrong = sizes.find((size) => size < 0 || size > SIZE_LIMIT_BYTES);
  if (wrong !== undefined) {
    return `reported a size of ${wrong} bytes`;
  }
  const { cpu = 1 } = memory ?? {};
  return cpu > VM_FIELDS.cpu.maximum ? `reported memory of a VM with ${cpu} processors` : undefined;
}

/** Checks a report about a saved disk or an upload. Memory is refused if nobody asked for it, because it can contain secrets. */
function newContentFault(task: Task & { type: 'save' | 'receive' }, report: TaskReport): string | undefined {
  const isAsked = task.type === 'save' && task.memory === true;
  return report.memory !== undefined && !isAsked
    ? 'reported memory, but the task is only about a disk'
    : storedFault(task.target, report);
}

/** Returns at most 200 characters of a text that a host reported, in quotation marks. */
function said(text: string | undefined): string {
  const shown = 200;
  return text === undefined ? 'nothing' : JSON.stringify(text.slice(0, shown));
}
