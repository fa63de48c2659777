/** What the set-up of the project gives to its tests. */
import { inject } from 'vitest';
import type { ImageName } from '../../hack/images.ts';
import type { UnpackedImage } from './image.ts';
import './setup.ts';

const provided = inject('images');

/** Why these tests cannot run here; undefined when they can. */
export const unfit: string | undefined = typeof provided === 'string' ? provided : undefined;

/** An unpacked image; the tests share it and leave it as it is. */
export function image(name: ImageName): UnpackedImage {
  if (typeof provided === 'string') {
    throw new Error(provided);
  }
  return provided[name];
}
