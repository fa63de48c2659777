/** Determines what the VMs of a RunnerSet need of their hosts. For each VM, the operator determines it from the same objects in the same order. */
import type { Image } from '../api/v1alpha1/image.ts';
import type { ISO } from '../api/v1alpha1/iso.ts';
import { isImageReference } from '../api/v1alpha1/reference.ts';
import type { RunnerSet } from '../api/v1alpha1/runnerset.ts';
import type { VMConfig, VMConfigSpec } from '../api/v1alpha1/vmconfig.ts';
import { chooseImages, guestSettings, mergePlacement } from '../api/v1alpha1/vmsources.ts';
import type { RunnersConfig } from './config.ts';
import type { Needs } from './places.ts';

/** Finds the objects that a set names. */
export interface HostLookups {
  readonly config: (name: string) => Readonly<VMConfig> | undefined;
  readonly image: (name: string) => Readonly<Image> | undefined;
  readonly iso: (name: string) => Readonly<ISO> | undefined;
}

/** Settings from one source. Each setting comes from the first source that has it. */
type Layer = Partial<Pick<VMConfigSpec, 'architecture' | 'os' | 'cpu' | 'memory' | 'placement'>>;

function pick<Field extends keyof Layer>(layers: readonly Layer[], field: Field): Layer[Field] {
  return layers.find((layer) => layer[field] !== undefined)?.[field];
}

/** Returns the needs. Objects that do not exist, or that this program may not read, decide nothing. */
export function needsOf(
  { spec }: Readonly<RunnerSet>,
  lookups: HostLookups,
  config: Pick<RunnersConfig, 'defaults' | 'vm_shared_disk_enabled'>,
): Needs {
  const { defaults, vm_shared_disk_enabled: sharesDisk } = config;
  const own = spec.template?.spec ?? {};
  const shared = named((spec.template?.spec ?? spec).configRef?.name, lookups.config)?.spec ?? {};
  const { image, iso } = chooseImages([own, shared, { image: defaults.image }]);
  const guests = [named(image, lookups.image), named(iso, lookups.iso)]
    .filter((object) => object !== undefined)
    .map(guestSettings);
  const layers = [own, shared, ...guests, defaults];
  return {
    architecture: pick(layers, 'architecture'),
    os: pick(layers, 'os'),
    cpu: pick(layers, 'cpu') ?? defaults.cpu,
    memory: String(pick(layers, 'memory') ?? defaults.memory),
    placement: mergePlacement(shared.placement, own.placement),
    sharesDisk,
  };
}

/** Looks up an object. An image reference names none. */
function named<T>(name: string | undefined, lookup: (name: string) => T | undefined): T | undefined {
  return name === undefined || isImageReference(name) ? undefined : lookup(name);
}
