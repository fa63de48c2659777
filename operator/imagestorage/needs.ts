/** Where content lies in the cluster's image storage, and what needs it there. Pure. */
import type { Image } from '../../api/v1alpha1/image.ts';
import { readReference, repositoryName } from '../../api/v1alpha1/reference.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { MachineImageSource } from '../../api/v1alpha1/machine.ts';
import type { StorageTarget } from '../../api/v1alpha1/task.ts';
import type { Pod } from '../../kube/core.ts';
import type { Job } from '../../kube/job.ts';
import type { OperatorConfig } from '../config/config.ts';
import { machineOf } from '../vm/facts.ts';
import { directSource, storedContent } from '../image/content.ts';
import { taskOf } from '../image/facts.ts';

/** One version of one image: a manifest, by its digest, or a file. */
export type Place = StorageTarget;

/** Undefined for content that lies elsewhere: also in a storage that the operator's configuration names no more. */
export function placeOf(
  content: MachineImageSource | undefined,
  { imageStorage }: OperatorConfig,
): Place | undefined {
  switch (content?.type) {
    case 'storedFile':
      return imageStorage?.folder === true ? { type: 'folder', path: content.path } : undefined;
    case 'storedArtifact':
      return artifactPlace(content.reference, imageStorage?.registry?.prefix);
    default:
      return undefined;
  }
}

function artifactPlace(reference: string, prefix: string | undefined): Place | undefined {
  const parts = readReference(reference);
  const isPinned = typeof parts !== 'string' && parts.digest !== undefined;
  return prefix !== undefined && isPinned && repositoryName(parts).startsWith(root(prefix))
    ? { type: 'registry', reference }
    : undefined;
}

/** How the name of each repository below a prefix begins. */
function root(prefix: string): string {
  const any = 'any';
  return repositoryOf(`${prefix}/${any}`).slice(0, -any.length);
}

/** One text for one place. */
export function placeKey(place: Place): string {
  return place.type === 'registry' ? place.reference : folderKey(place.path);
}

function folderKey(path: string): string {
  return `folder:${path}`;
}

/** What is needed of the storage: of places their keys, of repositories their names. */
export interface Needs {
  readonly keys: ReadonlySet<string>;
  /** There is something that cannot be read, and might need anything. */
  readonly unknown: boolean;
}

export interface Users {
  readonly objects: readonly (Image | ISO)[];
  /** Of VMs. */
  readonly pods: readonly Pod[];
  /** Of tasks. */
  readonly jobs: readonly Job[];
}

/** When in doubt something is needed. */
export function needsOf({ objects, pods, jobs }: Users): Needs {
  const machines = pods.map((pod) => ({ pod, machine: machineOf(pod) }));
  const keys = [
    ...objects.flatMap((object) => [storedContent(object), directSource(object.spec.source)].flatMap(keysOf)),
    ...machines.flatMap(({ pod, machine }) =>
      [machine?.image, machine?.iso].filter((source) => isUsedInPlace(source, pod)).flatMap(keysOf),
    ),
    ...jobs.flatMap(keysOfJob),
  ];
  return { keys: new Set(keys), unknown: machines.some(({ machine }) => machine === undefined) };
}

/** The disk of a machine lies over a file of the folder for as long as there is a machine; an artifact is fetched by then. */
function isUsedInPlace(source: MachineImageSource | undefined, { status }: Pod): boolean {
  return source?.type === 'storedFile' || (status?.phase ?? 'Pending') === 'Pending';
}

export function isNeeded(place: Place, { keys, unknown }: Needs): boolean {
  const repository = place.type === 'registry' && keys.has(repositoryOf(place.reference));
  return unknown || repository || keys.has(placeKey(place));
}

function keysOf(source: MachineImageSource | undefined): string[] {
  switch (source?.type) {
    case 'storedFile':
      return [folderKey(source.path)];
    case 'storedArtifact':
      return [source.reference];
    case 'registry':
      // Somebody names what is ours by himself, perhaps by its tag.
      return [repositoryOf(source.reference)];
    default:
      return [];
  }
}

/** What a Job has made may become an image's content yet: its digest is known only afterwards. */
function keysOfJob(job: Job): string[] {
  const task = taskOf(job);
  const source = task !== undefined && 'image' in task ? keysOf(task.image.source) : [];
  const target = task !== undefined && 'target' in task ? task.target : undefined;
  if (target === undefined) {
    return source;
  }
  return [...source, target.type === 'folder' ? folderKey(target.path) : repositoryOf(target.reference)];
}

/** Without tag and digest. A text that is no reference stands for itself: nothing can lie there. */
function repositoryOf(reference: string): string {
  const parts = readReference(reference);
  return typeof parts === 'string' ? reference : repositoryName(parts);
}
