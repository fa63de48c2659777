/**
 * Resource types of Berth's kinds, for clients of the Kubernetes API. This file imports no schema, because a schema would slow the start of
 * the `berth` command.
 */
import type { Emulator } from './emulator.ts';
import type { Image } from './image.ts';
import type { ImageCacheEntry } from './imagecacheentry.ts';
import type { ISO } from './iso.ts';
import { API_VERSION } from './names.ts';
import type { RunnerSet } from './runnerset.ts';
import type { Server } from './server.ts';
import type { VM } from './vm.ts';
import type { VMConfig } from './vmconfig.ts';
import type { VMSnapshot } from './vmsnapshot.ts';
import type { VMPool } from './vmpool.ts';

/**
 * Names from which a client builds the URLs of a kind's objects. The field `example` is never set. It exists only so that TypeScript can
 * infer the type of the objects.
 */
interface KindResource<T> {
  readonly apiVersion: string;
  readonly kind: string;
  readonly plural: string;
  readonly namespaced: boolean;
  readonly example?: T;
}

export const VMS = kindResource<VM>('VM', 'vms');
export const VM_CONFIGS = kindResource<VMConfig>('VMConfig', 'vmconfigs');
export const IMAGES = kindResource<Image>('Image', 'images');
export const ISOS = kindResource<ISO>('ISO', 'isos');
export const VM_SNAPSHOTS = kindResource<VMSnapshot>('VMSnapshot', 'vmsnapshots');
export const EMULATORS = kindResource<Emulator>('Emulator', 'emulators');
export const IMAGE_CACHE_ENTRIES = kindResource<ImageCacheEntry>('ImageCacheEntry', 'imagecacheentries');
export const VM_POOLS = kindResource<VMPool>('VMPool', 'vmpools');
export const RUNNER_SETS = kindResource<RunnerSet>('RunnerSet', 'runnersets');
export const SERVERS = kindResource<Server>('Server', 'servers', false);

function kindResource<T>(kind: string, plural: string, namespaced = true): KindResource<T> {
  return { apiVersion: API_VERSION, kind, plural, namespaced };
}
