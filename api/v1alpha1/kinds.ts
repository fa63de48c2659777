import type { DisplayDpiMaximum } from './display.ts';
import { EMULATOR_KIND } from './emulator.ts';
import { IMAGE_KIND } from './image.ts';
import { IMAGE_CACHE_ENTRY_KIND } from './imagecacheentry.ts';
import { ISO_KIND } from './iso.ts';
import type { KindDefinition } from './kind.ts';
import { vmKind } from './vm.ts';
import { vmConfigKind } from './vmconfig.ts';

/** Returns all kinds of the group. The display's DPI may be at most `dpiMaximum`. */
export function kinds(dpiMaximum: DisplayDpiMaximum): readonly KindDefinition[] {
  return [
    vmKind(dpiMaximum),
    vmConfigKind(dpiMaximum),
    IMAGE_KIND,
    ISO_KIND,
    IMAGE_CACHE_ENTRY_KIND,
    EMULATOR_KIND,
  ];
}
