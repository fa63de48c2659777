/** Shows an Image or an ISO as the HTTP API does. */
import type { ImageItem } from '../../api/http/image.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { ApiObject } from '../../api/v1alpha1/metadata.ts';
import { notReadyMessage } from '../conditions.ts';

/** The parts that an Image and an ISO have in common. */
export type StoredSpec = Pick<ISO['spec'], 'description' | 'architecture' | 'os' | 'imagePullSecrets'> &
  Pick<Image['spec'], 'format'> & { source: Pick<Image['spec']['source'], 'copyOf'> };
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

/** Clients wait while the state is Updating. */
function stateOf({ phase }: StoredStatus): ImageItem['state'] {
  return phase === 'Ready' || phase === 'Failed' ? phase : 'Updating';
}

/** Returns why the object failed, or why its last commit failed. After a failed commit the object keeps its content and is Ready. */
function errorOf(state: ImageItem['state'], status: StoredStatus): string | undefined {
  if (state === 'Failed') {
    return notReadyMessage({ status });
  }
  const { lastCommit } = status;
  return lastCommit?.result === 'Failed' ? lastCommit.message : undefined;
}
