/**
 * Where a VM gets its settings from beside its own fields: its image or ISO, and the default values of a configuration. The operator and the
 * runners for GitHub decide this in the same way.
 */
import * as z from 'zod';
import { VM_FIELDS } from './fields.ts';
import type { Image } from './image.ts';
import type { ISO } from './iso.ts';
import { parseBytes } from './quantity.ts';
import { machineImageSourceSchema } from './source.ts';
import type { VMSpec } from './vm.ts';

/** A quantity in a configuration. */
const configQuantity = z.string().refine(isQuantity, { error: 'is not a quantity such as 4Gi' });

function isQuantity(text: string): boolean {
  return (parseBytes(text) ?? -1n) >= 0n;
}

/** Default values in a configuration that decide which hosts can take a VM. */
export const HARDWARE_DEFAULTS = {
  image: z.string().optional(),
  cpu: z.number().int().min(1).max(256).default(2),
  memory: configQuantity.default('4Gi'),
  diskSize: configQuantity.optional(),
  /**
   * Disk size that the operator assumes in a Pod's request while the real disk size is unknown. The real size becomes known when a host
   * has the image.
   */
  diskRequest: configQuantity.default('10Gi'),
  architecture: z.enum(VM_FIELDS.architecture.values).optional(),
  os: z.enum(VM_FIELDS.os.values).optional(),
};

/**
 * Fraction of a VM's disk size that its Pod requests from the host's disk, more than 0 and at most 1. A small fraction is usually enough,
 * because a disk grows only as its guest writes. If the value is 1, the host always has space for the whole disk of each VM.
 */
export const DISK_REQUEST_RATIO = z.number().gt(0).max(1).default(0.2);

/** Settings of a guest that a host installs from an IPSW. */
export const OF_INSTALLED = { architecture: 'arm64', os: 'MacOS' } as const;

/** Names of the disk and the ISO of a VM. */
export interface ImageNames {
  readonly image?: string | undefined;
  readonly iso?: string | undefined;
}

/** Returns the names of the first layer that has any, because this layer determines both. */
export function chooseImages(layers: readonly (ImageNames | undefined)[]): ImageNames {
  return layers.find((layer) => (layer?.image ?? layer?.iso) !== undefined) ?? {};
}

/** Returns what an Image or ISO says of its guests. */
export function guestSettings({ spec, status }: Image | ISO): Pick<VMSpec, 'architecture' | 'os'> {
  const isInstaller =
    machineImageSourceSchema.safeParse(status?.content).data?.type === 'ipsw' ||
    ('ipsw' in spec.source && spec.source.ipsw !== undefined);
  const { architecture, os } = { ...(isInstaller && OF_INSTALLED), ...spec };
  return { architecture, os };
}

type Placement = NonNullable<VMSpec['placement']>;

/**
 * Merges two placements. Fields of the stronger one replace those of `weaker`. A `tagPolicy` is valid only for the tag of its own source.
 * Therefore the `tagPolicy` of `weaker` is dropped if the stronger one has a tag.
 */
export function mergePlacement(weaker: Placement = {}, stronger: Placement = {}): Placement {
  const { tagPolicy: _policy, ...others } = weaker;
  return { ...(stronger.tag === undefined ? weaker : others), ...stronger };
}
