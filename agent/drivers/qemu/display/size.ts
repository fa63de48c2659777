/** Decides for which sizes of a guest's screen the DPI is set. */
import { displayBounds } from '../../../../api/v1alpha1/display.ts';

/** Limit of width and height in pixels. QEMU writes the size in a field of 12 bits, as the standard of screens does (EDID). */
const LARGEST = 4095;

export interface Size {
  /** Width in pixels. */
  width: number;
  /** Height in pixels. */
  height: number;
}

/**
 * Follows the size of a screen. A VNC client can change the size, and QEMU then forgets the DPI. But firmware and boot menus have sizes of
 * their own: if the DPI were set for these sizes, the guest would keep them. So a size counts only after the guest has shown a known size.
 */
export class FollowedSize {
  readonly #wanted: Size;
  #last: Size;
  #isSettled = false;

  constructor(wanted: Size) {
    this.#wanted = wanted;
    this.#last = wanted;
  }

  /**
   * Takes the size of a guest that an earlier agent started. Returns whether the DPI must be set for the size. A client or a boot menu may
   * have chosen another size than the wanted one, so only a later change of the size counts.
   */
  adopt(size: Size): boolean {
    if (isPossible(size)) {
      this.#last = size;
      this.#isSettled = true;
    }
    return isSame(size, this.#wanted);
  }

  /** Notes that the guest boots again. */
  boots(): void {
    this.#isSettled = false;
  }

  /** Returns whether the DPI must be set for a size that the screen has now. */
  counts(size: Size): boolean {
    this.#isSettled ||= isSame(size, this.#wanted) || isSame(size, this.#last);
    if (!this.#isSettled || !isPossible(size)) {
      return false;
    }
    this.#last = size;
    return true;
  }
}

function isSame(one: Size, other: Size): boolean {
  return one.width === other.width && one.height === other.height;
}

/** Returns false for text screens, which have at most 400 lines of pixels, and for sizes that no guest has. */
function isPossible({ width, height }: Size): boolean {
  const { displayWidth, displayHeight } = displayBounds();
  return (
    displayWidth.minimum <= width && width <= LARGEST && displayHeight.minimum <= height && height <= LARGEST
  );
}
