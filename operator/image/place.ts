/**
 * Identifies places in the cluster's image storage. A place is an artifact in the storage's registry, or a file in the storage's folder.
 * All functions are pure.
 */
import { createHash } from 'node:crypto';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { MachineImageSource } from '../../api/v1alpha1/machine.ts';
import { readReference, repositoryName } from '../../api/v1alpha1/reference.ts';
import type { StorageTarget } from '../../api/v1alpha1/task.ts';
import type { OperatorConfig } from '../config/config.ts';

/** Number of hash characters in the file names and tags of stored content. The hash distinguishes several contents of one image. */
const HASH_LENGTH = 16;
/**
 * Largest number of characters of an image's name in the place of its content. A name can have 253 characters. Then the repository would be
 * too long for registries, and the file name would be too long for file systems. The hash distinguishes images with the same beginning.
 */
const NAME_LENGTH = 128;

/** Place of an image's content in the storage: an artifact with its digest, or a file. */
export type Place = StorageTarget;

/** Returns the place of the content in the configured image storage. The result is undefined if the content is stored elsewhere. */
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

/** Returns the text with which the names of all repositories below `prefix` begin. */
function root(prefix: string): string {
  const any = 'any';
  return repositoryOf(`${prefix}/${any}`).slice(0, -any.length);
}

/** Returns a text that is different for each place in the image storage. */
export function placeKey(place: Place): string {
  return place.type === 'registry' ? place.reference : folderKey(place.path);
}

/** Returns the key of a file in the storage folder. */
export function folderKey(path: string): string {
  return `folder:${path}`;
}

/**
 * Returns the reference without tag and digest. An invalid reference is returned unchanged. This is harmless, because no content can be
 * stored under an invalid reference.
 */
export function repositoryOf(reference: string): string {
  const parts = readReference(reference);
  return typeof parts === 'string' ? reference : repositoryName(parts);
}

/**
 * Returns the tag or file in which to store new content of an image. Another `version` gives another tag or file. The result is undefined
 * if there is no image storage.
 */
export function storageTarget(
  object: Image | ISO,
  { imageStorage, namespaces }: OperatorConfig,
  version: string,
): StorageTarget | undefined {
  const { namespace, name, uid } = object.metadata;
  const hash = createHash('sha256').update(`${uid} ${version}`).digest('hex').slice(0, HASH_LENGTH);
  const named = `${namespace}/${shortName(name)}`;
  if (imageStorage?.registry !== undefined) {
    const reference = `${imageStorage.registry.prefix}/${named}:${hash}`;
    return { type: 'registry', reference, secretNamespace: namespaces.system };
  }
  return imageStorage?.folder === true ? { type: 'folder', path: `${named}-${hash}.qcow2` } : undefined;
}

/** Returns the beginning of a name. A repository must not end with a dot or a dash, so the result does not end with one either. */
function shortName(name: string): string {
  return name.slice(0, NAME_LENGTH).replace(/[^a-z0-9]+$/, '');
}
