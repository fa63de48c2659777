/** Turns an Image or an ISO into the item that the HTTP API and the `berth` command show. */
import type { ImageItem } from './image.ts';
import type { Image } from '../v1alpha1/image.ts';
import type { ISO } from '../v1alpha1/iso.ts';
import type { ApiObject } from '../v1alpha1/metadata.ts';
import { notReadyMessage } from './conditions.ts';

/** The spec fields that an Image and an ISO have in common. */
export type StoredSpec = Pick<
  ISO['spec'],
  'description' | 'architecture' | 'os' | 'imagePullSecrets' | 'download'
> &
  Pick<Image['spec'], 'format'> & {
    source: Pick<Image['spec']['source'], 'copyOf' | 'http' | 'registry' | 'upload'>;
  };
export type StoredStatus = NonNullable<ISO['status']> & Pick<NonNullable<Image['status']>, 'lastCommit'>;
export type Stored = ApiObject<StoredSpec, StoredStatus>;

export function imageItem({ metadata, spec, status = {} }: Stored): ImageItem {
  const state = stateOf(status);
  return {
    name: metadata.name,
    namespace: metadata.namespace,
    description: spec.description ?? '',
    type: spec.architecture ?? '',
    state,
    size: status.size,
    storageSize: status.storageSize,
    errorMessage: errorOf(state, status),
    lastUpdatedTimestamp: status.lastUpdateTime,
    progressPercent: status.progressPercent,
    digest: status.digest,
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
