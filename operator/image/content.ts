/**
 * Determines the source from which machines get the content of an Image or ISO, the properties of each type of source, and the name under
 * which hosts list this content.
 */
import { cachedObjectName, contentName } from '../../api/v1alpha1/cachetargets.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import { normaliseImageName, readReference } from '../../api/v1alpha1/reference.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import {
  INSTALLED_DISK_BYTES,
  type MachineImageSource,
  machineImageSourceSchema,
  mayHoldCredentials,
  registryReference,
  type SourceOf,
  type SourceType,
} from '../../api/v1alpha1/source.ts';
import type { StorageTarget } from '../../api/v1alpha1/task.ts';
import { keyOf } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';

interface ImageContent {
  readonly source: MachineImageSource;
  /**
   * Digest of the content. For an image for several platforms, it is the digest of the index if it is known. Otherwise it is the digest for
   * the platform of the host that fetched the content first.
   */
  readonly digest: string | undefined;
  /** Name in `Node.status.images`. The scheduler prefers hosts that list this name. */
  readonly containerImage: string;
  /** Name of the Image or ISO as `berth.dev/NAMESPACE/NAME`. */
  readonly name: string;
  readonly format: 'Auto' | 'Raw' | 'QCOW2';
}

/**
 * Returns the content of an Image or ISO. The result is undefined while the content does not exist, for example while a copy waits for its
 * original.
 */
export function contentOf(object: Image | ISO): ImageContent | undefined {
  const source = storedContent(object) ?? directSource(object.spec.source);
  if (source === undefined) {
    return undefined;
  }
  const name = imageObjectName(object);
  const reference = registryReference(source);
  const digest = (reference === undefined ? undefined : pinnedDigest(reference)) ?? object.status?.digest;
  return {
    source,
    name,
    digest,
    containerImage: digest === undefined ? (reference ?? name) : contentName(digest),
    format: ('format' in object.spec ? object.spec.format : undefined) ?? 'Auto',
  };
}

function pinnedDigest(reference: string): string | undefined {
  const parts = readReference(reference);
  return typeof parts === 'string' ? undefined : parts.digest;
}

/** Returns the name of an Image or ISO in tasks and in the stores of hosts. */
export function imageObjectName({ metadata }: Image | ISO): string {
  return cachedObjectName(metadata.namespace ?? '', metadata.name);
}

/**
 * Returns the keys (`namespace/name`) of the objects from which an Image or ISO can be copied, in order of preference. The key of this
 * Image or ISO itself is left out.
 */
export function originKeys(object: Image | ISO, { namespaces }: OperatorConfig): string[] {
  const { copyOf } = object.spec.source;
  if (copyOf === undefined) {
    return [];
  }
  const { namespace: own = '' } = object.metadata;
  const places = copyOf.namespace === undefined ? [own, namespaces.default] : [copyOf.namespace];
  const keys = places.map((namespace) => `${namespace}/${copyOf.name}`);
  return [...new Set(keys)].filter((key) => key !== keyOf(object));
}

export interface HasContent {
  readonly status?: { readonly content?: unknown } | undefined;
}

/** Returns the content that the status names. The result is undefined until the content of the image was fetched or created. */
export function storedContent(object: HasContent): MachineImageSource | undefined {
  return machineImageSourceSchema.safeParse(object.status?.content).data;
}

/**
 * Returns true if `copy` must not refer to the stored content of `origin`, because users of the copy could read credentials.
 * {@link showsCredentials} contains the rule.
 */
export function isKeptFromCopies(origin: Image | ISO, copy: Image | ISO): boolean {
  return showsCredentials(origin, storedContent(origin), copy.metadata.namespace);
}

/**
 * Returns true if a copy or VM in `namespace` must not use the address of the object's content. This is true if the object is in another
 * namespace and the address can contain credentials. The status of a copy and the Pod of a VM contain the full address, so users of
 * `namespace` could read the credentials.
 */
export function showsCredentials(
  { metadata }: Image | ISO,
  content: MachineImageSource | undefined,
  namespace: string | undefined,
): boolean {
  return metadata.namespace !== namespace && traitsOf(content).mayHoldCredentials === true;
}

/** Properties of a source from which hosts get content. Absent properties do not apply to the source. */
interface SourceTraits {
  /** True if the source surely keeps its content. Other content is copied to the image storage, if there is one. */
  readonly isLasting: boolean;
  /** True if the address can contain credentials. */
  readonly mayHoldCredentials?: boolean;
  /** Digest that a host must report for the content. */
  readonly digest?: string;
  /** Place of the content in the cluster's image storage. */
  readonly place?: StorageTarget;
  /** Size in bytes of a disk that the source describes completely. */
  readonly sizeBytes?: number;
  /** True if the content is no disk, but what a host needs to make one. It cannot be pushed, downloaded or stored. */
  readonly isInstaller?: boolean;
}

/** Why an IPSW is neither pushed nor downloaded. */
export const NO_DISK =
  'An IPSW is no disk. Deploy a VM from the Image, save the disk of the VM as another Image, and use that Image';

/** A type of source that is forgotten here does not compile. */
const TRAITS: { readonly [T in SourceType]: (source: SourceOf<T>) => SourceTraits } = {
  registry: () => ({ isLasting: true }),
  http: ({ url, sha256 }) => ({
    // The web server might later remove the file.
    isLasting: false,
    mayHoldCredentials: mayHoldCredentials(url),
    digest: `sha256:${sha256.toLowerCase()}`,
  }),
  sharedFile: () => ({ isLasting: true }),
  empty: ({ sizeBytes }) => ({ isLasting: true, sizeBytes }),
  storedArtifact: ({ reference }) => ({ isLasting: true, place: { type: 'registry', reference } }),
  storedFile: ({ path }) => ({ isLasting: true, place: { type: 'folder', path } }),
  ipsw: ({ url, sha256 }) => ({
    isLasting: true,
    isInstaller: true,
    sizeBytes: INSTALLED_DISK_BYTES,
    mayHoldCredentials: mayHoldCredentials(url),
    digest: `sha256:${sha256.toLowerCase()}`,
  }),
};

/** Returns the properties of a source. Without a source, no property applies. */
export function traitsOf(source: MachineImageSource | undefined): SourceTraits {
  return source === undefined
    ? { isLasting: true }
    : (TRAITS[source.type] as (source: MachineImageSource) => SourceTraits)(source);
}

type AnySource = Image['spec']['source'] | ISO['spec']['source'];
type SourceFields = Required<Image['spec']['source'] & ISO['spec']['source']>;

/**
 * For each field of the source in the spec, the source for hosts. Undefined if the content must first be created, for example from the disk
 * of a VM. A field that is forgotten here does not compile.
 */
const DIRECT: {
  readonly [F in keyof SourceFields]:
    | ((value: NonNullable<SourceFields[F]>) => MachineImageSource)
    | undefined;
} = {
  registry: ({ reference }) => ({ type: 'registry', reference: normaliseImageName(reference) }),
  http: ({ url, sha256 }) => ({ type: 'http', url, sha256 }),
  sharedFile: ({ path }) => ({ type: 'sharedFile', path }),
  empty: ({ size }) => ({ type: 'empty', sizeBytes: Number(parseQuantity(size)) }),
  ipsw: ({ url, sha256 }) => ({ type: 'ipsw', url, sha256 }),
  copyOf: undefined,
  fromVM: undefined,
  upload: undefined,
};

/**
 * Returns the source if hosts can fetch it directly from the address in the spec. The result is undefined for a source whose content must
 * first be created, for example the disk of a VM.
 */
export function directSource(source: AnySource): MachineImageSource | undefined {
  const [set] = Object.entries(source).filter(([, value]) => value !== undefined);
  const direct = DIRECT[set?.[0] as keyof SourceFields] as
    | ((value: unknown) => MachineImageSource)
    | undefined;
  return direct?.(set?.[1]);
}
