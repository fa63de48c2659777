/** Decides for which sizes of a guest's screen the DPI is set. */
import { displayBounds } from '../../../../api/v1alpha1/display.ts';

/** Limit of width and height in pixels. QEMU writes the size into a field of 12 bits, as the EDID standard for screens requires. */
const LARGEST = 4095;

export interface Size {
  /** Width in pixels. */
  width: number;
  /** Height in pixels. */
  height: number;
}

/**
 * Follows the size of a screen, to find out when the DPI must be set. If a VNC client changes the size, QEMU forgets the DPI, and the DPI
 * must be set again. Firmware and boot menus change the size too. If the DPI were set at such a size, the guest would keep that size. So
 * after a boot, the DPI is set only when the screen has had the wanted size or the last known size.
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
   * Takes the screen size of a guest that the agent started before its own restart. Returns whether the DPI must be set for this size. If
   * the size is not the wanted size, a client or a boot menu may have chosen it. So the DPI is set only after the next change of the size.
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
