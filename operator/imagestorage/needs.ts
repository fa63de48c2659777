/** Determines which content of the cluster's image storage is needed. All functions are pure. */
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { MachineImageSource } from '../../api/v1alpha1/machine.ts';
import type { Job, Pod } from '../../kube/core.ts';
import { directSource, storedContent } from '../image/content.ts';
import { folderKey, type Place, placeKey, repositoryOf } from '../image/place.ts';
import { taskOf } from '../tasks/job.ts';
import { machineOf } from '../vm/podstate.ts';

/** Content of the image storage that is needed: keys of single files or artifacts (`placeKey`), and names of whole repositories. */
export interface Needs {
  readonly keys: ReadonlySet<string>;
  /**
   * True if there is a Pod whose description of its machine cannot be read. The machine of such a Pod could need any content, so all
   * content counts as needed.
   */
  readonly unknown: boolean;
}

export interface Users {
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
      // An image can name a repository of the image storage without a digest. Therefore the whole repository counts as needed.
      return [repositoryOf(source.reference)];
    default:
      return [];
  }
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
