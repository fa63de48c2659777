/**
 * Resolves the settings of a VM once, at its deployment. Each setting comes from the first source that has it: VM → VMConfig → Image or
 * ISO → operator's configuration → built-in value. The first source that sets `image` or `iso` determines both.
 */
import { isImageReference, normaliseImageName } from '../../api/v1alpha1/reference.ts';
import { VM_FIELD_ROWS } from '../../api/v1alpha1/fields.ts';
import { MACHINE_FIELDS, type MachineField } from '../../api/v1alpha1/machine.ts';
import { chooseImages, type ImageNames, mergePlacement, OF_INSTALLED } from '../../api/v1alpha1/vmsources.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import type { VMConfig, VMConfigSpec } from '../../api/v1alpha1/vmconfig.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import { whyNotReservable } from '../../api/v1alpha1/ports.ts';
import { type ImageAccess, resolveAccess } from '../objects/registries.ts';
import { contentOf, showsCredentials, traitsOf } from '../image/content.ts';
import type { ObservedVM } from './observe.ts';
import { reservedPorts, type WantedPorts } from './ports.ts';

/** Disk or ISO of a machine. The agent uses `source`. The scheduler uses `containerImage` and prefers hosts that have this image. */
export interface ResolvedImage {
  readonly source: MachineImageSource;
  readonly containerImage: string;
  /** Name of the Image or ISO as `berth.dev/NAMESPACE/NAME`; undefined for a plain image reference. */
  readonly name?: string;
  readonly format: 'Auto' | 'Raw' | 'QCOW2';
}

/** Fields of the VM that the document for the agent has under the same names. */
type ForMachine = { readonly [Field in MachineField]: VMSpec[Field] };

export interface Resolved extends WantedPorts, ImageAccess, ForMachine {
  readonly image: ResolvedImage | undefined;
  readonly iso: ResolvedImage | undefined;
  readonly cpu: number;
  readonly memoryBytes: bigint;
  readonly diskSizeBytes: bigint | undefined;
  /** Size of the image's disk in bytes, if it is known before a host has the image. */
  readonly imageSizeBytes: bigint | undefined;
  readonly placement: NonNullable<VMSpec['placement']>;
  readonly vncEnabled: boolean;
  readonly hardwareIdentity: 'Consistent' | 'Dynamic';
  readonly readiness: NonNullable<VMSpec['readiness']>;
  readonly sshAuthorizedKeys: readonly string[];
  readonly userData: VMSpec['userData'];
  readonly userDataSecretRef: VMSpec['userDataSecretRef'];
  readonly config: { name: string; namespace: string; generation: number } | undefined;
}

/**
 * Reason why the settings of a VM cannot be resolved. With `wait`, they might be resolved later, for example when a missing object is
 * created. With `terminal`, they can never be resolved.
 */
export interface Unresolved {
  readonly kind: 'wait' | 'terminal';
  readonly reason:
    | 'ConfigNotFound'
    | 'ImageNotFound'
    | 'ImageNotReady'
    | 'NoImage'
    | 'PortsNeedNAT'
    | 'NetworkModeUnsupported'
    | 'PortNotReservable'
    | 'SerialNumberUnsupported'
    | 'NotMacOS';
  readonly message: string;
}

/** The parts of the observed state that decide how a VM is resolved. */
export type Resolvable = Pick<ObservedVM, 'vm' | 'lookups' | 'config'>;

export function isUnresolved(value: Resolved | Unresolved): value is Unresolved {
  return 'reason' in value;
}

/** Default values of the fields of the display. */
const DISPLAY_DEFAULTS: ReadonlyMap<string, number> = new Map(
  VM_FIELD_ROWS.flatMap(({ name, displayDefault }) =>
    displayDefault === undefined ? [] : [[name, displayDefault]],
  ),
);

/** Settings from one source, for example the VMConfig. Each setting comes from the first source that has it. */
type Layer = Partial<Omit<VMSpec, 'configRef' | 'image' | 'iso'>>;

function pick<Field extends keyof Layer>(layers: readonly Layer[], field: Field): Layer[Field] {
  return layers.find((layer) => layer[field] !== undefined)?.[field];
}

export function resolve(observed: Resolvable): Resolved | Unresolved {
  const { spec } = observed.vm;
  const config = findConfig(observed);
  if (spec.configRef !== undefined && config === undefined) {
    const namespaces = configNamespaces(observed, spec.configRef).join(' and ');
    const message = `VMConfig ${spec.configRef.name} was not found in ${namespaces}`;
    return { kind: 'wait', reason: 'ConfigNotFound', message };
  }
  const images = resolveImages(observed, config?.spec);
  if ('reason' in images) {
    return images;
  }
  const { image, iso } = images;
  const layers = [spec, { ...config?.spec }, ...imageLayers(images), observed.config.defaults];
  const resolved: Resolved = {
    image,
    iso,
    imageSizeBytes: imageSize(images),
    ...resolveHardware(layers, isFromIPSW(images)),
    ...resolveRest(layers),
    ...resolveAccess(observed.lookups, [image, iso], pick(layers, 'imagePullSecrets')),
    config: config && configIdentity(config),
  };
  return (
    networkFault(observed, resolved) ??
    serialNumberFault(observed, resolved) ??
    installationFault(images, resolved) ??
    resolved
  );
}

/** Returns the settings from the Image and the ISO. A VM with both needs the pull secrets of both. */
function imageLayers(images: ResolvedImages): Layer[] {
  const { imageObject, isoObject } = images;
  const specs = [imageObject, isoObject].flatMap((object) => (object === undefined ? [] : [object.spec]));
  const secrets = specs.flatMap(({ imagePullSecrets = [] }) => imagePullSecrets);
  const imagePullSecrets = secrets.length === 0 ? undefined : secrets;
  const given: Layer[] = specs.map(({ architecture, os }) => ({ architecture, os, imagePullSecrets }));
  return isFromIPSW(images) ? [...given, OF_INSTALLED] : given;
}

function isFromIPSW({ image }: Pick<ResolvedImages, 'image'>): boolean {
  return image?.source.type === 'ipsw';
}

/** Refuses another operating system or architecture than that of an IPSW. */
function installationFault(images: ResolvedImages, { os, architecture }: Resolved): Unresolved | undefined {
  const isMacOS = os === OF_INSTALLED.os && architecture === OF_INSTALLED.architecture;
  if (!isFromIPSW(images) || isMacOS) {
    return undefined;
  }
  const message = `An IPSW installs macOS for arm64, but the VM asks for os ${os} and architecture ${architecture}. Create the VM again without these fields, or with MacOS and arm64`;
  return { kind: 'terminal', reason: 'NotMacOS', message };
}

/**
 * Finds the VMConfig of a VM. If the VM states no namespace for it, the function searches the VM's own namespace, then the default
 * namespace.
 */
export function findConfig(observed: Resolvable): VMConfig | undefined {
  const { vm, lookups } = observed;
  const ref = vm.spec.configRef;
  if (ref === undefined) {
    return undefined;
  }
  return configNamespaces(observed, ref)
    .map((namespace) => lookups.vmConfig(ref.name, namespace))
    .find((found) => found !== undefined);
}

/** Returns the namespaces in which the VMConfig of the VM can be, the first one first. */
function configNamespaces(
  { vm, config }: Pick<Resolvable, 'vm' | 'config'>,
  { namespace }: NonNullable<VMSpec['configRef']>,
): readonly string[] {
  const own = vm.metadata.namespace ?? '';
  return namespace === undefined ? [...new Set([own, config.namespaces.default])] : [namespace];
}

/** Refuses a serial number for a guest with macOS. The guest would have the one of its image. */
function serialNumberFault({ vm }: Resolvable, { os }: Resolved): Unresolved | undefined {
  if (os !== 'MacOS' || vm.spec.serialNumber === undefined) {
    return undefined;
  }
  const message =
    'A guest with macOS has the serial number of its image. Create the VM again without serialNumber';
  return { kind: 'terminal', reason: 'SerialNumberUnsupported', message };
}

function networkFault(observed: Resolvable, resolved: Resolved): Unresolved | undefined {
  return portsNeedNAT(resolved) ?? unsupportedMode(resolved) ?? portNotReservable(observed, resolved);
}

function portsNeedNAT({ ports, networkMode }: Resolved): Unresolved | undefined {
  if (networkMode === 'NAT' || ports.length === 0) {
    return undefined;
  }
  const message = `Reserved ports need network mode NAT, but the VM has mode ${networkMode}`;
  return { kind: 'terminal', reason: 'PortsNeedNAT', message };
}

/** Refuses a network mode that no host supports. Otherwise the machine would get another network than the VM requests. */
function unsupportedMode({ networkMode }: Resolved): Unresolved | undefined {
  if (networkMode === 'NAT') {
    return undefined;
  }
  const message = `Network mode ${networkMode} is not supported yet. Create the VM again with network.mode NAT`;
  return { kind: 'terminal', reason: 'NetworkModeUnsupported', message };
}

function portNotReservable({ config }: Resolvable, resolved: Resolved): Unresolved | undefined {
  const faults = reservedPorts(resolved).map(({ hostPort }) => whyNotReservable(config.ports, hostPort));
  const found = faults.filter((fault) => fault !== undefined).join('; ');
  if (found === '') {
    return undefined;
  }
  const message = `The configuration of the operator does not allow the ports of the VM: ${found}. Create the VM again with other ports`;
  return { kind: 'terminal', reason: 'PortNotReservable', message };
}

function configIdentity({ metadata }: VMConfig): NonNullable<Resolved['config']> {
  return { name: metadata.name, namespace: metadata.namespace ?? '', generation: metadata.generation ?? 0 };
}

interface ResolvedImages {
  readonly image: ResolvedImage | undefined;
  readonly iso: ResolvedImage | undefined;
  /** Image and ISO objects that the VM names. They provide architecture, os and pull secrets. */
  readonly imageObject: Image | undefined;
  readonly isoObject: ISO | undefined;
}

function resolveImages(observed: Resolvable, config: VMConfigSpec | undefined): ResolvedImages | Unresolved {
  const { image, iso }: ImageNames = chooseImages([
    observed.vm.spec,
    config,
    { image: observed.config.defaults.image },
  ]);
  if (image === undefined && iso === undefined) {
    const message =
      'Neither the VM, its VMConfig nor the configuration of the operator names an image or ISO';
    return { kind: 'terminal', reason: 'NoImage', message };
  }
  const imageObject = named(image, (name) => observed.lookups.image(name));
  const disk = resolvedImage('Image', image, imageObject, observed);
  if (disk !== undefined && 'reason' in disk) {
    return disk;
  }
  const isoObject = named(iso, (name) => observed.lookups.iso(name));
  const disc = resolvedImage('ISO', iso, isoObject, observed);
  return disc !== undefined && 'reason' in disc ? disc : { image: disk, iso: disc, imageObject, isoObject };
}

/** Returns the Image or ISO object that `name` names. The result is undefined if `name` is an image reference, which names no object. */
function named<T>(name: string | undefined, lookup: (name: string) => T | undefined): T | undefined {
  return name === undefined || isImageReference(name) ? undefined : lookup(name);
}

function resolvedImage(
  kind: string,
  name: string | undefined,
  object: Image | ISO | undefined,
  { vm, config: { namespaces } }: Resolvable,
): ResolvedImage | Unresolved | undefined {
  if (name === undefined) {
    return undefined;
  }
  if (isImageReference(name)) {
    const reference = normaliseImageName(name);
    return { source: { type: 'registry', reference }, containerImage: reference, format: 'Auto' };
  }
  if (object === undefined) {
    const message = `${kind} ${name} was not found in the namespace of the VM or in ${namespaces.default}`;
    return { kind: 'wait', reason: 'ImageNotFound', message };
  }
  const content = contentOf(object);
  if (content !== undefined && !showsCredentials(object, content.source, vm.metadata.namespace)) {
    return content;
  }
  const message =
    content === undefined
      ? `${kind} ${name} has no content yet. Look at its status`
      : `The VM cannot use ${kind} ${name} of the namespace ${object.metadata.namespace}. The URL of the ${kind} can contain credentials, and the Pod of the VM would show this URL to users of another namespace. Set imageStorage in the configuration of the operator, so that Pods do not need the URL. If the ${kind} is already Ready, create it again`;
  return { kind: 'wait', reason: 'ImageNotReady', message };
}

function resolveHardware(layers: readonly Layer[], isInstalled: boolean) {
  const diskSize = pick(layers, 'diskSize');
  return {
    ...resolveForMachine(layers, isInstalled),
    // The last source of settings is the operator's configuration, which always has cpu and memory.
    cpu: pick(layers, 'cpu') ?? 0,
    memoryBytes: parseQuantity(pick(layers, 'memory') ?? '0'),
    diskSizeBytes: diskSize === undefined ? undefined : parseQuantity(diskSize),
    hardwareIdentity: pick(layers, 'hardwareIdentity') ?? 'Consistent',
  };
}

function imageSize({ image, imageObject }: ResolvedImages): bigint | undefined {
  const { sizeBytes } = traitsOf(image?.source);
  if (sizeBytes !== undefined) {
    return BigInt(sizeBytes);
  }
  const { size } = imageObject?.status ?? {};
  return size === undefined ? undefined : parseQuantity(size);
}

/**
 * Returns the fields that the document for the agent has under the same names. If a layer sets a field of the display, or if the image comes
 * from an IPSW, the other fields of the display have their defaults.
 */
function resolveForMachine(layers: readonly Layer[], isInstalled: boolean): ForMachine {
  const given = MACHINE_FIELDS.map((name) => [name, pick(layers, name)] as const);
  const hasDisplay = given.some(([name, value]) => DISPLAY_DEFAULTS.has(name) && value !== undefined);
  const withDefaults = given.map(([name, value]) => [
    name,
    hasDisplay || isInstalled ? (value ?? DISPLAY_DEFAULTS.get(name)) : value,
  ]);
  return Object.fromEntries(withDefaults) as ForMachine;
}

function resolveNetwork(layers: readonly Layer[]) {
  const networks = layers.map(({ network = {} }) => network);
  return {
    networkMode: networks.find(({ mode }) => mode !== undefined)?.mode ?? 'NAT',
    automaticPorts:
      networks.find(({ automaticPorts }) => automaticPorts !== undefined)?.automaticPorts ?? true,
    ports: pick(layers, 'ports') ?? [],
  };
}

function resolveVnc(layers: readonly Layer[]) {
  const all = layers.map(({ vnc = {} }) => vnc);
  const vncEnabled = all.find(({ enabled }) => enabled !== undefined)?.enabled ?? true;
  const isAsked = all.find(({ hostPort }) => hostPort !== undefined)?.hostPort ?? false;
  return { vncEnabled, vncHostPort: vncEnabled && isAsked };
}

/** Fields with SSH keys in user data of cloud-init and Ignition, outside comments. */
const KEYS_IN_USER_DATA = /^(?!\s*#).*\b(?:ssh_authorized_keys|ssh_import_id|sshAuthorizedKeys)["']?\s*:/m;

/** Returns true if users can log in to the guest with SSH keys, as far as the operator knows. It does not know user data in a Secret. */
function hasKeys(layers: readonly Layer[]): boolean {
  const keys = pick(layers, 'sshAuthorizedKeys') ?? [];
  return keys.length > 0 || KEYS_IN_USER_DATA.test(resolveUserData(layers).userData ?? '');
}

/** Returns the user data of the first source that has any. A guest gets either a text or the content of a Secret. */
function resolveUserData(layers: readonly Layer[]): Pick<Resolved, 'userData' | 'userDataSecretRef'> {
  const { userData, userDataSecretRef } =
    layers.find((layer) => (layer.userData ?? layer.userDataSecretRef) !== undefined) ?? {};
  return { userData, userDataSecretRef };
}

function resolveRest(layers: readonly Layer[]) {
  return {
    ...resolveUserData(layers),
    placement: layers.reduceRight<Resolved['placement']>(
      (weaker, { placement }) => mergePlacement(weaker, placement),
      {},
    ),
    ...resolveNetwork(layers),
    ...resolveVnc(layers),
    readiness: pick(layers, 'readiness') ?? { type: hasKeys(layers) ? ('SSH' as const) : ('None' as const) },
    sshAuthorizedKeys: pick(layers, 'sshAuthorizedKeys') ?? [],
  };
}
