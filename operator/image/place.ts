/** Where content lies in the cluster's image storage. Pure. */
import type { MachineImageSource } from '../../api/v1alpha1/machine.ts';
import { readReference, repositoryName } from '../../api/v1alpha1/reference.ts';
import type { StorageTarget } from '../../api/v1alpha1/task.ts';
import type { OperatorConfig } from '../config/config.ts';

/** One version of one image: a manifest, by its digest, or a file. */
export type Place = StorageTarget;

/** Undefined for content that lies elsewhere, also in a storage that the operator's configuration no longer names. */
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

/** The key of a file in the storage folder. */
export function folderKey(path: string): string {
  return `folder:${path}`;
}

/** The reference without tag and digest. A text that is no reference stands for itself: nothing can lie there. */
export function repositoryOf(reference: string): string {
  const parts = readReference(reference);
  return typeof parts === 'string' ? reference : repositoryName(parts);
}
