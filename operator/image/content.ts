/** Determines the source from which machines get the content of an Image or ISO, and the names under which hosts list this content. */
import { cachedObjectName } from '../../api/v1alpha1/cachetargets.ts';
import {
  type MachineImageSource,
  machineImageSourceSchema,
  mayHoldCredentials,
} from '../../api/v1alpha1/source.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import { normaliseImageName } from '../../api/v1alpha1/reference.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import { keyOf } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';

export interface ImageContent {
  readonly source: MachineImageSource;
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
  const digest = object.status?.digest;
  return {
    source,
    name,
    containerImage:
      source.type === 'registry' ? source.reference : digest === undefined ? name : `${name}@${digest}`,
    format: ('format' in object.spec ? object.spec.format : undefined) ?? 'Auto',
  };
}

/** Returns the name under which hosts list the content of an Image or ISO. */
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
  return metadata.namespace !== namespace && content?.type === 'http' && mayHoldCredentials(content.url);
}

type AnySource = Image['spec']['source'] | ISO['spec']['source'];

/**
 * Returns the source if hosts can fetch it directly from the address in the spec. The result is undefined for a source whose content must
 * first be created, for example the disk of a VM.
 */
export function directSource(source: AnySource): MachineImageSource | undefined {
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
  return 'ipsw' in source && source.ipsw !== undefined
    ? { type: 'unsupported', description: 'An IPSW is not supported yet' }
    : undefined;
}
