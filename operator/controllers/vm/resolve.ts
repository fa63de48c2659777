/**
 * What a VM runs with: VM → VMConfig → Image → operator's configuration → built-in, once, at deployment.
 * One-of groups (image or iso) are taken whole.
 */
import { isImageReference, normaliseImageName } from '../../../api/v1alpha1/imagename.ts';
import type { MachineImageSource } from '../../../api/v1alpha1/machine.ts';
import type { Image } from '../../../api/v1alpha1/image.ts';
import type { ISO } from '../../../api/v1alpha1/iso.ts';
import type { VMSpec } from '../../../api/v1alpha1/vm.ts';
import type { VMConfig, VMConfigSpec } from '../../../api/v1alpha1/vmconfig.ts';
import { parseQuantity } from '../../../api/v1alpha1/quantity.ts';
import type { Observed } from './observed.ts';

/** A disk or ISO: what the agent is told, and the name that the Pod's container carries so that the scheduler prefers hosts that have it. */
export interface ResolvedImage {
  readonly source: MachineImageSource;
  readonly containerImage: string;
  readonly format: 'Auto' | 'Raw' | 'QCOW2';
}

export interface Resolved {
  readonly image: ResolvedImage | undefined;
  readonly iso: ResolvedImage | undefined;
  readonly imagePullSecrets: readonly { name: string }[];
  readonly architecture: 'amd64' | 'arm64' | undefined;
  readonly os: 'MacOS' | 'Linux' | 'Windows' | undefined;
  readonly cpu: number;
  readonly memoryBytes: bigint;
  readonly diskSizeBytes: bigint | undefined;
  readonly display: { width: number; height: number; dpi: number } | undefined;
  readonly placement: NonNullable<VMSpec['placement']>;
  readonly networkMode: 'NAT' | 'Bridge';
  readonly vncEnabled: boolean;
  readonly hardwareIdentity: 'Consistent' | 'Dynamic';
  readonly readiness: NonNullable<VMSpec['readiness']>;
  readonly config: { name: string; namespace: string; generation: number } | undefined;
}

/** Why a VM cannot be resolved: `wait` for something that may still come, or `terminal` when it never can. */
export interface Unresolved {
  readonly kind: 'wait' | 'terminal';
  readonly reason: 'ConfigNotFound' | 'ImageNotFound' | 'NoImage' | 'PortsNeedNAT' | 'InvalidConfig';
  readonly message: string;
}

export function isUnresolved(value: Resolved | Unresolved): value is Unresolved {
  return 'reason' in value;
}

/** Of a display when only some of its three values are given; also an IPSW's default (1920×1080 at 96). */
const DEFAULT_DISPLAY = { width: 1920, height: 1080, dpi: 96 };

export function resolve(observed: Observed): Resolved | Unresolved {
  const { vm } = observed;
  const ref = vm.spec.configRef;
  const namespace = ref?.namespace ?? vm.metadata.namespace ?? '';
  const config =
    ref === undefined
      ? undefined
      : (observed.lookups.vmConfig(ref.name, namespace) ??
        (ref.namespace === undefined
          ? observed.lookups.vmConfig(ref.name, observed.config.namespaces.default)
          : undefined));
  if (ref !== undefined && config === undefined) {
    return {
      kind: 'wait',
      reason: 'ConfigNotFound',
      message: `VMConfig ${ref.name} was not found in ${namespace}`,
    };
  }
  const images = resolveImages(observed, config?.spec);
  if ('reason' in images) {
    return images;
  }
  const resolved = {
    ...images,
    ...resolveHardware(observed, config?.spec, images.object),
    ...resolveRest(observed, config?.spec),
    config: config === undefined ? undefined : configIdentity(config),
  };
  if (resolved.networkMode !== 'NAT' && (vm.spec.ports ?? []).length > 0) {
    return {
      kind: 'terminal',
      reason: 'PortsNeedNAT',
      message: `spec.ports needs network mode NAT, but the mode resolved to ${resolved.networkMode}`,
    };
  }
  return resolved;
}

function configIdentity({ metadata }: VMConfig): NonNullable<Resolved['config']> {
  return { name: metadata.name, namespace: metadata.namespace ?? '', generation: metadata.generation ?? 0 };
}

interface ResolvedImages {
  readonly image: ResolvedImage | undefined;
  readonly iso: ResolvedImage | undefined;
  /** The Image object that was named, for what it says of architecture and os. */
  readonly object: Image | undefined;
}

function resolveImages(observed: Observed, config: VMConfigSpec | undefined): ResolvedImages | Unresolved {
  const { image, iso } = imageGroup(observed, config);
  if (image === undefined && iso === undefined) {
    const message = 'neither the VM, its VMConfig nor the operator names an image or iso';
    return { kind: 'terminal', reason: 'NoImage', message };
  }
  const imageObject =
    image === undefined || isImageReference(image) ? undefined : observed.lookups.image(image);
  const isoObject = iso === undefined || isImageReference(iso) ? undefined : observed.lookups.iso(iso);
  const missing = missingName('Image', image, imageObject) ?? missingName('ISO', iso, isoObject);
  if (missing !== undefined) {
    return {
      kind: 'wait',
      reason: 'ImageNotFound',
      message: `${missing} was not found in the VM's namespace or ${observed.config.namespaces.default}`,
    };
  }
  return {
    image: image === undefined ? undefined : resolvedImage(image, imageObject),
    iso: iso === undefined ? undefined : resolvedImage(iso, isoObject),
    object: imageObject,
  };
}

function imageGroup(
  observed: Observed,
  config: VMConfigSpec | undefined,
): { image?: string | undefined; iso?: string | undefined } {
  const { spec } = observed.vm;
  const named = [spec, config].find((from) => from?.image !== undefined || from?.iso !== undefined);
  return named ?? { image: observed.config.defaults.image };
}

function missingName(kind: string, name: string | undefined, object: unknown): string | undefined {
  const needed = name !== undefined && !isImageReference(name);
  return needed && object === undefined ? `${kind} ${name}` : undefined;
}

function resolvedImage(name: string, object: Image | ISO | undefined): ResolvedImage {
  if (object === undefined) {
    const reference = normaliseImageName(name);
    return { source: { type: 'registry', reference }, containerImage: reference, format: 'Auto' };
  }
  const { source } = object.spec;
  const containerImage =
    source.registry === undefined
      ? `berth.dev/${object.metadata.namespace}/${object.metadata.name}`
      : normaliseImageName(source.registry.reference);
  const format = 'format' in object.spec ? (object.spec.format ?? 'Auto') : 'Raw';
  return { source: machineSource(source), containerImage, format };
}

type AnySource = Image['spec']['source'] | ISO['spec']['source'];

/** The Image's source as the agent is told it. Those that need a controller of their own are passed on as unsupported, never guessed. */
function machineSource(source: AnySource): MachineImageSource {
  if (source.registry !== undefined) {
    return { type: 'registry', reference: normaliseImageName(source.registry.reference) };
  }
  if (source.http !== undefined) {
    return { type: 'http', url: source.http.url, sha256: source.http.sha256 };
  }
  if (source.sharedFile !== undefined) {
    return { type: 'sharedFile', path: source.sharedFile.path };
  }
  if ('empty' in source && source.empty !== undefined) {
    return { type: 'empty', sizeBytes: Number(parseQuantity(source.empty.size)) };
  }
  return { type: 'unsupported', description: Object.keys(source).join(', ') };
}

function resolveHardware(observed: Observed, config: VMConfigSpec | undefined, image: Image | undefined) {
  const { spec } = observed.vm;
  const { defaults } = observed.config;
  const memory = spec.memory ?? config?.memory ?? defaults.memory;
  const diskSize = spec.diskSize ?? config?.diskSize ?? defaults.diskSize;
  return {
    architecture:
      spec.architecture ?? config?.architecture ?? image?.spec.architecture ?? defaults.architecture,
    os: spec.os ?? config?.os ?? image?.spec.os ?? defaults.os,
    cpu: spec.cpu ?? config?.cpu ?? defaults.cpu,
    memoryBytes: parseQuantity(memory),
    diskSizeBytes: diskSize === undefined ? undefined : parseQuantity(diskSize),
    display: resolveDisplay(spec, config, image),
    hardwareIdentity: spec.hardwareIdentity ?? config?.hardwareIdentity ?? defaults.hardwareIdentity,
  };
}

function resolveDisplay(
  spec: VMSpec,
  config: VMConfigSpec | undefined,
  image: Image | undefined,
): Resolved['display'] {
  const width = spec.displayWidth ?? config?.displayWidth;
  const height = spec.displayHeight ?? config?.displayHeight;
  const dpi = spec.displayDPI ?? config?.displayDPI;
  const given = width !== undefined || height !== undefined || dpi !== undefined;
  if (!given && image?.spec.source.ipsw === undefined) {
    return undefined;
  }
  return {
    width: width ?? DEFAULT_DISPLAY.width,
    height: height ?? DEFAULT_DISPLAY.height,
    dpi: dpi ?? DEFAULT_DISPLAY.dpi,
  };
}

function resolveRest(observed: Observed, config: VMConfigSpec | undefined) {
  const { spec } = observed.vm;
  return {
    imagePullSecrets: spec.imagePullSecrets ?? config?.imagePullSecrets ?? [],
    placement: spec.placement ?? config?.placement ?? {},
    networkMode: spec.network?.mode ?? config?.network?.mode ?? observed.config.defaults.networkMode,
    vncEnabled: spec.vnc?.enabled ?? config?.vnc?.enabled ?? true,
    readiness: spec.readiness ?? config?.readiness ?? { type: 'None' as const },
  };
}
