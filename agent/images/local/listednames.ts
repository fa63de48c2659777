/** Determines which images of the store a Node lists, and under which names. */
import { IMAGES_LISTED } from '../../../api/v1alpha1/listedimages.ts';
import type { Metadata } from './layout.ts';

/** Prefix of the names of Image and ISO objects. All other names are references, which begin with the host of a registry. */
const OBJECT = 'berth.dev/';
/** Mark at the beginning of an ISO object's name in the store. */
const ISO_MARK = 'iso ';
/**
 * Largest length in characters of all names in the list, and of the names of one image. Users choose the names of images. Without these
 * limits, the names could fill the Node, and the API server would refuse its status. The limit of one image is enough for the most names
 * that an image keeps, if they have usual lengths.
 */
const LIST_LENGTH = 800_000;
const IMAGE_LENGTH = 16_000;
/**
 * Largest length of the names with a digest in a repository. Other names cannot displace them, because the operator compares digests.
 * Without the digest of the index, an Image for several platforms would never count as cached. The limit has room for all digests of one
 * repository.
 */
const DIGESTS_LENGTH = 2_500;

export interface StoredImage {
  /** Names as in `Node.status.images`: normalised reference, `repository@digest`, and `berth.dev/NAMESPACE/NAME@digest`. */
  names: string[];
  sizeBytes: number;
}

/**
 * Returns the name under which the store keeps the content of an ISO object. An Image and an ISO can have the same name. In the store a name
 * belongs to one content, so without the mark each of them would take the name from the other. A Node lists the name without the mark.
 */
export function nameOfISO(name: string): string {
  return `${ISO_MARK}${name}`;
}

/**
 * Returns the images that have names. Images of cache entries come first, because a Node lists only a limited number of images. The other
 * images follow. In each of these two groups, larger images come first, and images of equal size are in the order of their names.
 */
export function listedImages(images: readonly Metadata[]): StoredImage[] {
  const length = namesLength(images.length);
  const listed = images.map((metadata) => ({
    names: listedNames(metadata, length),
    sizeBytes: metadata.sizeBytes,
    wanted: metadata.entries.length > 0,
  }));
  return listed
    .filter(({ names }) => names.length > 0)
    .toSorted(
      (a, b) =>
        Number(b.wanted) - Number(a.wanted) ||
        b.sizeBytes - a.sizeBytes ||
        (a.names[0] ?? '').localeCompare(b.names[0] ?? ''),
    )
    .map(({ names, sizeBytes }) => ({ names, sizeBytes }));
}

/** Returns how many characters the names of one image may have together. `images` is the number of images on the host. */
export function namesLength(images: number): number {
  return Math.min(IMAGE_LENGTH, Math.floor(LIST_LENGTH / Math.min(images, IMAGES_LISTED)));
}

/**
 * Returns the names as in `Node.status.images`. If the names are longer than `length` together, the newest names of Image objects are left
 * out first, then the newest references. If the names with a digest are too long, those of the newest repositories are left out.
 */
export function listedNames({ names, digest, repositories }: Metadata, length: number): string[] {
  if (names.length === 0) {
    return [];
  }
  const plain = names.map((name) => (name.startsWith(ISO_MARK) ? name.slice(ISO_MARK.length) : name));
  const references = plain.filter((name) => !name.startsWith(OBJECT));
  const objects = plain.filter((name) => name.startsWith(OBJECT)).map((name) => `${name}@${digest}`);
  const pinned = repositories.flatMap(({ name, digests }) => digests.map((one) => `${name}@${one}`));
  const digests = within(DIGESTS_LENGTH, pinned);
  const left = length - digests.join('').length;
  return [...new Set([...within(left, [...references, ...objects]), ...digests])];
}

/** Returns the first names, which have at most `length` characters together. */
function within(length: number, names: readonly string[]): string[] {
  let left = length;
  return names.filter((name) => {
    left -= name.length;
    return left >= 0;
  });
}
