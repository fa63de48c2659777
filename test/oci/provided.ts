/** Values that the set-up of the project gives to its tests. */
import { inject } from 'vitest';
import type { ImageName } from '../../hack/images.ts';
import type { UnpackedImage } from './image.ts';
import './setup.ts';

const provided = inject('images');

/** The reason why these tests cannot run here, or undefined if they can. */
export const unfit: string | undefined = typeof provided === 'string' ? provided : undefined;

/** An unpacked image. All tests share it and leave it unchanged. */
export function image(name: ImageName): UnpackedImage {
  if (typeof provided === 'string') {
    throw new Error(provided);
  }
  return provided[name];
}
