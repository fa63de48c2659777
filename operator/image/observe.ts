/** Looks at the caches for one Image or ISO. */
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { type Job, JOB_NAME_LABEL } from '../../kube/job.ts';
import type { OperatorConfig } from '../config/config.ts';
import { podsOf, taskOutcome } from '../tasks/job.ts';
import { imageObjectName, originKeys } from './content.ts';
import type { ImageJob, ObservedImage } from './observed.ts';
import { ATTEMPT_LABEL, IMAGE_UID_LABEL, OPERATION_LABEL, REQUESTED_AT_ANNOTATION } from './plan.ts';
import { judgedOutcome } from './report.ts';
import { taskOf } from './facts.ts';

/** Index of Jobs by the uid of the Image or ISO that they work on. */
export const JOBS_BY_IMAGE = 'image';
/** Index of task Pods by `namespace/name` of their Job. */
export const PODS_BY_JOB = 'job';

export function jobImage({ metadata }: Job): string[] {
  const uid = metadata.labels?.[IMAGE_UID_LABEL];
  return uid === undefined ? [] : [uid];
}

export function podJob({ metadata }: Pod): string[] {
  const name = metadata.labels?.[JOB_NAME_LABEL];
  return name === undefined ? [] : [`${metadata.namespace}/${name}`];
}

export interface ImageSources {
  readonly kind: 'Image' | 'ISO';
  readonly objects: Informer<Image> | Informer<ISO>;
  readonly vms: Informer<VM>;
  readonly jobs: Informer<Job>;
  readonly taskPods: Informer<Pod>;
  readonly config: OperatorConfig;
  readonly clock: () => number;
}

export function observeImage(sources: ImageSources, object: Image | ISO): ObservedImage {
  const { kind, objects, vms, jobs, config, clock } = sources;
  const { namespace = '', uid = '' } = object.metadata;
  return {
    object,
    kind,
    jobs: jobs.cache.byIndex(JOBS_BY_IMAGE, uid).map((job) => imageJob(job, sources)),
    origin: originKeys(object, config)
      .map((key) => objects.cache.get(key))
      .find((found) => found !== undefined),
    vm: (name) => vms.cache.get(`${namespace}/${name}`),
    deploying:
      object.metadata.deletionTimestamp === undefined
        ? []
        : vms.cache
            .list()
            .filter((vm) => isDeploying(vm) && names(vm, object))
            .map(({ metadata }) => metadata.name),
    config,
    now: clock(),
  };
}

function imageJob(job: Job, { taskPods }: ImageSources): ImageJob {
  const { name, namespace, labels = {}, annotations = {} } = job.metadata;
  const [pod] = podsOf(job, taskPods.cache.byIndex(PODS_BY_JOB, `${namespace}/${name}`));
  return {
    job,
    operation: labels[OPERATION_LABEL] ?? '',
    requestedAt: annotations[REQUESTED_AT_ANNOTATION],
    attempt: Number(labels[ATTEMPT_LABEL] ?? 1),
    outcome: judgedOutcome(taskOutcome(job, pod), taskOf(job), pod?.spec.nodeName),
  };
}

const DEPLOYING: ReadonlySet<string> = new Set(['Scheduled', 'Pulling', 'Cloning', 'Starting']);

function isDeploying({ status }: VM): boolean {
  return DEPLOYING.has(status?.phase ?? '');
}

function names({ metadata, spec, status }: VM, object: Image | ISO): boolean {
  const { name, namespace } = object.metadata;
  const named = [spec.image, spec.iso].includes(name) && metadata.namespace === namespace;
  return named || status?.image?.reference?.startsWith(imageObjectName(object)) === true;
}
