/** Where machines get the content of an Image or ISO, and by which names hosts list it. */
import { mayHoldCredentials } from '../../api/v1alpha1/describe.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import { normaliseImageName } from '../../api/v1alpha1/reference.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { type MachineImageSource, machineImageSourceSchema } from '../../api/v1alpha1/machine.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import { keyOf } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';

export interface ImageContent {
  readonly source: MachineImageSource;
  /** The name in `Node.status.images`, so that the scheduler prefers hosts that hold the image. */
  readonly containerImage: string;
  /** `berth.dev/NAMESPACE/NAME`. */
  readonly name: string;
  readonly format: 'Auto' | 'Raw' | 'QCOW2';
}

/** Undefined while the image has no content yet: a copy, or the disk of a VM, that is still to come. */
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

/** The name under which hosts list the content of an Image or ISO. */
export function imageObjectName({ metadata }: Image | ISO): string {
  return `berth.dev/${metadata.namespace}/${metadata.name}`;
}

/** The objects that a copy may be of, in this order, as `namespace/name`. An object is no copy of itself. */
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

/** The content in the status, once the image was fetched or made. */
export function storedContent(object: HasContent): MachineImageSource | undefined {
  const parsed = machineImageSourceSchema.safeParse(object.status?.content);
  return parsed.success ? parsed.data : undefined;
}

/**
 * Whether a copy would show people of another namespace an address that may hold credentials. Hosts need the address as it is,
 * so that it would stand in the copy's status and in the Pods of VMs.
 */
export function isKeptFromCopies(origin: Image | ISO, copy: Image | ISO): boolean {
  const content = storedContent(origin);
  const isForeign = origin.metadata.namespace !== copy.metadata.namespace;
  return isForeign && content?.type === 'http' && mayHoldCredentials(content.url);
}

type AnySource = Image['spec']['source'] | ISO['spec']['source'];

/** The source that hosts can fetch straight from the spec, without any work before. */
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
    ? { type: 'unsupported', description: 'an IPSW needs an Apple host' }
    : undefined;
}
