/**
 * Makes the items of Images, ISOs and pushes that the HTTP API and the `berth` command show, and the specs of new Images and ISOs. Each push
 * is stored as an Image object. The operator deletes this Image an hour after the push has ended.
 */
import type { ContentRequest, ImageItem } from './image.ts';
import type { Image } from '../v1alpha1/image.ts';
import { IMAGE_FIELD_ROWS } from '../v1alpha1/imagefields.ts';
import type { ISO } from '../v1alpha1/iso.ts';
import type { ApiObject } from '../v1alpha1/kind.ts';
import { notReadyMessage } from './conditions.ts';
import type { Push } from './vm.ts';

/** The spec fields that an Image and an ISO have in common. */
export type StoredSpec = Pick<
  ISO['spec'],
  'description' | 'architecture' | 'os' | 'imagePullSecrets' | 'download'
> &
  Pick<Image['spec'], 'format'> & {
    source: Pick<Image['spec']['source'], 'copyOf' | 'http' | 'registry' | 'upload'>;
  };
export type StoredStatus = NonNullable<ISO['status']> &
  Pick<NonNullable<Image['status']>, 'lastCommit' | 'memory'>;
export type StoredContent = ApiObject<StoredSpec, StoredStatus>;

export function imageItem({ metadata, spec, status = {} }: StoredContent): ImageItem {
  const state = stateOf(status);
  return {
    name: metadata.name,
    namespace: metadata.namespace,
    description: spec.description ?? '',
    type: spec.architecture ?? '',
    state,
    size: status.size,
    storageSize: status.storageSize,
    memorySize: status.memory?.size,
    errorMessage: errorOf(state, status),
    lastUpdatedTimestamp: status.lastUpdateTime,
    progressPercent: status.progressPercent,
    digest: status.digest,
    ...requestValues(spec),
  };
}

/** Returns the state that clients see for an Image or ISO. Clients wait while the state is Updating. */
function stateOf({ phase }: StoredStatus): ImageItem['state'] {
  return phase === 'Ready' || phase === 'Failed' ? phase : 'Updating';
}

/** Returns the reason why the object or its last commit failed. After a failed commit, the object keeps its content and stays Ready. */
function errorOf(state: ImageItem['state'], status: StoredStatus): string | undefined {
  if (state === 'Failed') {
    return notReadyMessage({ status });
  }
  const { lastCommit } = status;
  return lastCommit?.result === 'Failed' ? lastCommit.message : undefined;
}

/**
 * Returns the spec of a copy in `namespace`. The copy has the description of the original if no other is given. If the original is in
 * another namespace, the copy has no pull secrets, because those Secrets do not exist in `namespace`.
 */
export function copySpec(
  { metadata, spec }: StoredContent,
  namespace: string,
  description?: string,
): StoredContent['spec'] {
  const { architecture, os, format, imagePullSecrets } = spec;
  return {
    description: description ?? spec.description,
    source: { copyOf: { name: metadata.name, namespace: metadata.namespace } },
    architecture,
    os,
    format,
    imagePullSecrets: metadata.namespace === namespace ? imagePullSecrets : undefined,
  };
}

/** Returns the spec of a new Image or ISO from the fields of a request, or from flags with the same names. */
export function contentSpec(request: ContentRequest): StoredContent['spec'] {
  const given: Readonly<Record<string, unknown>> = request;
  const spec = { source: {} };
  for (const { path, http } of IMAGE_FIELD_ROWS) {
    const value = http === undefined ? undefined : given[http];
    if (value !== undefined) {
      setAt(spec, path.split('.'), value);
    }
  }
  return spec;
}

function setAt(
  object: Record<string, unknown>,
  [name = '', ...rest]: readonly string[],
  value: unknown,
): void {
  if (rest.length === 0) {
    object[name] = value;
    return;
  }
  const part = (object[name] ?? {}) as Record<string, unknown>;
  object[name] = part;
  setAt(part, rest, value);
}

/** Returns the fields of the request that made the object, as the item shows them. */
function requestValues(spec: StoredContent['spec']): Partial<ImageItem> {
  return Object.fromEntries(
    IMAGE_FIELD_ROWS.flatMap(({ path, http, isNotShown }) =>
      http === undefined || isNotShown === true ? [] : [[http, valueAt(spec, path.split('.'))]],
    ),
  );
}

function valueAt(object: unknown, [name = '', ...rest]: readonly string[]): unknown {
  const value = (object as Record<string, unknown> | undefined)?.[name];
  return rest.length === 0 ? value : valueAt(value, rest);
}

/** Prefix of the name of each push. */
export const PUSH_NAME = 'vm-push-';

/** Reports whether the Image represents a push of a VM's disk to a registry. */
export function isPush({ metadata, spec }: Image): boolean {
  return metadata.name.startsWith(PUSH_NAME) && spec.push !== undefined && spec.source.fromVM !== undefined;
}

export function pushItem({ metadata, spec, status = {} }: Image): Push {
  const { reference = '', requestedAt } = spec.push ?? {};
  const { lastPush } = status;
  const last = lastPush?.requestedAt === requestedAt ? lastPush : undefined;
  return {
    jobName: metadata.name,
    image: reference,
    status: statusOf(last?.result, status),
    progressPercent: status.progressPercent,
    message: last?.message || notReadyMessage({ status }),
  };
}

/**
 * Returns the status of the push. A push first copies the disk. If a copy fails and the operator will copy the disk again, the push is
 * Pending, because clients take Failed for the end. If the Image is finished but has no result of the push, the push has failed. The cause
 * can be that the VM was deleted before the copy.
 */
function statusOf(
  result: string | undefined,
  { phase = 'Pending', finishedTime }: NonNullable<Image['status']>,
): Push['status'] {
  if (result === 'Succeeded' || result === 'Failed') {
    return result;
  }
  if (finishedTime !== undefined) {
    return 'Failed';
  }
  return phase === 'Failed' || phase === 'Pending' ? 'Pending' : 'Running';
}
