/** Determines what the VMs of a RunnerSet need of their hosts. For each VM, the operator determines it from the same objects in the same order. */
import { diskRequest } from '../api/v1alpha1/hostspace.ts';
import type { Image } from '../api/v1alpha1/image.ts';
import type { ISO } from '../api/v1alpha1/iso.ts';
import { parseQuantity, type Quantity } from '../api/v1alpha1/quantity.ts';
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
type Layer = Partial<
  Pick<VMConfigSpec, 'architecture' | 'os' | 'cpu' | 'memory' | 'diskSize' | 'ports' | 'placement'>
>;

function pick<Field extends keyof Layer>(layers: readonly Layer[], field: Field): Layer[Field] {
  return layers.find((layer) => layer[field] !== undefined)?.[field];
}

/** What a set and the objects that it names say about its VMs. */
interface Sources {
  readonly own: Layer;
  readonly shared: Layer;
  readonly guests: readonly Layer[];
  readonly image: Readonly<Image> | undefined;
  /** Objects that the lookups do not find, for example `Image linux`. Behind a VMConfig that they do not find, nothing is known. */
  readonly unseen: readonly string[];
}

function sourcesOf(
  { spec }: Readonly<RunnerSet>,
  lookups: HostLookups,
  { defaults }: Pick<RunnersConfig, 'defaults'>,
): Sources {
  const own = spec.template?.spec ?? {};
  const config = named('VMConfig', (spec.template?.spec ?? spec).configRef?.name, lookups.config);
  const shared = config?.found?.spec ?? {};
  const { image, iso } = chooseImages([own, shared, { image: defaults.image }]);
  const disk = named('Image', image, lookups.image);
  const guests = [disk, named('ISO', iso, lookups.iso)];
  const unseen = [config, ...guests].filter((one) => one !== undefined && one.found === undefined);
  return {
    own,
    shared,
    image: disk?.found,
    guests: guests.flatMap((one) => (one?.found === undefined ? [] : [guestSettings(one.found)])),
    unseen: unseen.flatMap((one) => one?.title ?? []),
  };
}

function parseSize(size: Quantity | undefined): bigint | undefined {
  return size === undefined ? undefined : parseQuantity(size);
}

/** Settings of the operator that decide which hosts can take a VM. */
export type PlacingConfig = Pick<RunnersConfig, 'defaults' | 'diskRequestRatio' | 'vm_shared_disk_enabled'>;

/** Returns the needs. Objects that do not exist, or that this program may not read, decide nothing. */
export function needsOf(set: Readonly<RunnerSet>, lookups: HostLookups, config: PlacingConfig): Needs {
  const { defaults, vm_shared_disk_enabled: sharesDisk } = config;
  const { own, shared, guests, image } = sourcesOf(set, lookups, config);
  const layers = [own, shared, ...guests, defaults];
  return {
    architecture: pick(layers, 'architecture'),
    os: pick(layers, 'os'),
    cpu: pick(layers, 'cpu') ?? defaults.cpu,
    memory: String(pick(layers, 'memory') ?? defaults.memory),
    disk: diskRequest(
      // The size of the Image is known when a host has it.
      { diskSizeBytes: parseSize(pick(layers, 'diskSize')), imageSizeBytes: parseSize(image?.status?.size) },
      config,
    ),
    ports: pick(layers, 'ports') ?? [],
    placement: mergePlacement(shared.placement, own.placement),
    sharesDisk,
  };
}

/** Returns the first object that the set names and that the lookups do not find, for example `Image linux`. */
export function unseenBy(
  set: Readonly<RunnerSet>,
  lookups: HostLookups,
  config: Pick<RunnersConfig, 'defaults'>,
): string | undefined {
  return sourcesOf(set, lookups, config).unseen[0];
}

/** Looks up an object. An image reference names none. */
function named<T>(
  kind: string,
  name: string | undefined,
  lookup: (name: string) => T | undefined,
): { readonly title: string; readonly found: T | undefined } | undefined {
  return name === undefined || isImageReference(name)
    ? undefined
    : { title: `${kind} ${name}`, found: lookup(name) };
}
