/** Yields the versions of an object for commands that wait. */
import { follow } from '../../kube/follow.ts';
import type { KubeObject, Resource } from '../../kube/objects.ts';
import type { Cluster } from '../cluster.ts';

/**
 * Yields `first` and then each new version of the object, and ends when the object is deleted. If the caller stops early, the watch ends too.
 *
 * @throws the errors of {@link follow}.
 */
export async function* versionsFrom<T extends KubeObject>(
  { client, watches }: Cluster,
  type: Resource<T>,
  first: T,
  signal: AbortSignal,
): AsyncGenerator<T> {
  const versions = follow<T>({ client, watches, type, from: first.metadata, signal });
  try {
    yield first;
    yield* versions;
  } finally {
    await versions.return(undefined);
  }
}
