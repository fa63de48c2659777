/** Bounds of a machine's display: width and height in pixels, and DPI (dots per inch). */
import { integer } from './schema.ts';

/**
 * Largest allowed DPI (dots per inch) of a display. The administrator chooses it at installation. The other bounds of a display cannot be
 * chosen.
 */
export type DisplayDpiMaximum = 240 | 320;
export const DEFAULT_DISPLAY_DPI_MAXIMUM: DisplayDpiMaximum = 240;

export interface Bounds {
  minimum: number;
  maximum: number;
}
interface DisplayBounds {
  displayWidth: Bounds;
  displayHeight: Bounds;
  displayDPI: Bounds;
}

/** Returns the smallest and largest allowed values of `displayWidth`, `displayHeight` and `displayDPI`. */
export function displayBounds(dpiMaximum: DisplayDpiMaximum = DEFAULT_DISPLAY_DPI_MAXIMUM): DisplayBounds {
  return {
    displayWidth: { minimum: 320, maximum: 3840 },
    displayHeight: { minimum: 480, maximum: 2160 },
    displayDPI: { minimum: 60, maximum: dpiMaximum },
  };
}

/** Returns the schemas of the three display fields of a VM and of a VMConfig. */
export function displayFields(dpiMaximum: DisplayDpiMaximum) {
  const bounds = displayBounds(dpiMaximum);
  const field = (description: string, { minimum, maximum }: Bounds) =>
    integer(description, minimum, maximum).optional();
  return {
    displayWidth: field(
      'Width of the display in pixels. The guest has a screen if at least one display field is set, even if VNC is off. If this field is omitted but another display field is set, the width is 1920.',
      bounds.displayWidth,
    ),
    displayHeight: field(
      'Height of the display in pixels. If this field is omitted but another display field is set, the height is 1080.',
      bounds.displayHeight,
    ),
    displayDPI: field(
      'Dots per inch of the display. The host uses this value to compute the physical size of the screen for the guest. If a host cannot set this value, the condition DisplayReady gives the reason.',
      bounds.displayDPI,
    ),
  };
}
