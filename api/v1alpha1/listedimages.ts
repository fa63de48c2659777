/**
 * Bounds the list of images in the status of a Node. The API server accepts any list from a host. Without bounds, a hostile host could make
 * the readers of its Node use much time and memory.
 */
import { IMAGE_NAME_LENGTH } from './reference.ts';

/**
 * Largest number of images in the Node's status. A list of this length has about 50 KiB. The agent limits the names of each image, so that
 * users cannot make the list too large. A kubelet lists 50 images, but that limit could leave out an image of an ImageCacheEntry.
 */
export const IMAGES_LISTED = 200;
/** Largest number of names of one image. More names for the same content come from a mistake or an attack. */
const NAMES_LISTED = 256;
/** Largest length of a name in characters. It is enough for the longest reference with a digest. */
const NAME_LENGTH = 2 * IMAGE_NAME_LENGTH;

interface Listed {
  /** The API server writes null if the host reported the image without names. */
  readonly names: readonly string[] | null;
}

/** Returns the images with their names. Leaves out images and names beyond the bounds. */
export function listedImages<Image extends Listed>(
  images: readonly Image[] = [],
): (Image & { names: string[] })[] {
  return images.slice(0, IMAGES_LISTED).map((image) => ({
    ...image,
    names: (image.names ?? []).slice(0, NAMES_LISTED).filter(({ length }) => length <= NAME_LENGTH),
  }));
}
