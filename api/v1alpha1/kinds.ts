import type { DisplayDpiMaximum } from './fields.ts';
import { EMULATOR_KIND } from './emulator.ts';
import { IMAGE_KIND } from './image.ts';
import { IMAGE_CACHE_ENTRY_KIND } from './imagecacheentry.ts';
import { ISO_KIND } from './iso.ts';
import type { KindDefinition } from './kind.ts';
import {
  EMULATORS,
  IMAGE_CACHE_ENTRIES,
  IMAGES,
  ISOS,
  RUNNER_SETS,
  SERVERS,
  VM_CONFIGS,
  VM_POOLS,
  VMS,
  VM_SNAPSHOTS,
} from './resources.ts';
import { runnerSetKind } from './runnerset.ts';
import { SERVER_KIND } from './server.ts';
import { vmKind } from './vm.ts';
import { vmConfigKind } from './vmconfig.ts';
import { VM_SNAPSHOT_KIND } from './vmsnapshot.ts';
import { vmPoolKind } from './vmpool.ts';

/** Returns all kinds of the API group `berth.dev`. `dpiMaximum` is the largest DPI that a display can have. */
export function kinds(dpiMaximum: DisplayDpiMaximum): readonly KindDefinition[] {
  return [
    { ...VMS, ...vmKind(dpiMaximum) },
    { ...VM_CONFIGS, ...vmConfigKind(dpiMaximum) },
    { ...VM_SNAPSHOTS, ...VM_SNAPSHOT_KIND },
    { ...IMAGES, ...IMAGE_KIND },
    { ...ISOS, ...ISO_KIND },
    { ...IMAGE_CACHE_ENTRIES, ...IMAGE_CACHE_ENTRY_KIND },
    { ...EMULATORS, ...EMULATOR_KIND },
    { ...VM_POOLS, ...vmPoolKind(dpiMaximum) },
    { ...SERVERS, ...SERVER_KIND },
    { ...RUNNER_SETS, ...runnerSetKind(dpiMaximum) },
  ];
}
