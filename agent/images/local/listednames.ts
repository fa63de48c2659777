/** Determines the names under which a Node lists an image of the store. */
import { IMAGES_LISTED } from '../../../api/v1alpha1/listedimages.ts';
import type { Metadata } from './layout.ts';

/** Prefix of the names of Image and ISO objects. All other names are references, which begin with the host of a registry. */
const OBJECT = 'berth.dev/';
/**
 * Largest length in characters of all names in the list, and of the names of one image. Users choose the names of images. Without these
 * limits, the names could fill the Node, and the API server would refuse its status. The limit of one image is enough for the most names
 * that an image keeps, if they have usual lengths.
 */
const LIST_LENGTH = 800_000;
const IMAGE_LENGTH = 16_000;

/** Returns the largest length in characters of the names of one image, if the host has this number of images. */
export function namesLength(images: number): number {
  return Math.min(IMAGE_LENGTH, Math.floor(LIST_LENGTH / Math.min(images, IMAGES_LISTED)));
}

/**
 * Returns the names as in `Node.status.images`. If the names are longer than `length` together, the last ones are left out: first names with
 * a digest, then the newest names of Image objects, then the newest references.
 */
export function listedNames({ names, digest, repositories }: Metadata, length: number): string[] {
  if (names.length === 0) {
    return [];
  }
  const references = names.filter((name) => !name.startsWith(OBJECT));
  const objects = names.filter((name) => name.startsWith(OBJECT)).map((name) => `${name}@${digest}`);
  const pinned = repositories.flatMap(({ name, digests }) => digests.map((one) => `${name}@${one}`));
  let left = length;
  return [...new Set([...references, ...objects, ...pinned])].filter((name) => {
    left -= name.length;
    return left >= 0;
  });
}
