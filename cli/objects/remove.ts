/** Deletes objects. */
import { follow } from '../../kube/follow.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import { type Kind, report } from './kind.ts';
import { forEachName, getNamed } from './named.ts';

/**
 * Time limit for the wait until an object is deleted, as in the HTTP API. A guest has 30 s to shut down, but a host that does not answer
 * can delay the deletion for much longer.
 */
const LIMIT_MILLISECONDS = 600_000;

interface Removal {
  readonly names: readonly string[];
  /** Whether to wait until the objects are completely removed. */
  readonly wait: boolean;
}

/**
 * Deletes all named objects at the same time.
 *
 * @throws CommandError when an object does not exist, or still exists after the time limit; ApiError.
 */
export async function remove<T extends KubeObject>(
  terminal: Terminal,
  globals: Globals,
  kind: Kind<T>,
  { names, wait }: Removal,
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { done: objects, rethrow } = await forEachName(names, async (name) => {
      const object = await getNamed(cluster, kind, name, signal);
      await removeOne(cluster, kind, object, { wait, signal });
      return object;
    });
    const words = wait ? 'Successfully deleted' : 'Requested deletion of';
    await report(terminal, globals, { kind, objects, sentence: (name) => `${words} ${kind.noun} ${name}` });
    rethrow();
  });
}

/**
 * Deletes the object. If `wait` is true, waits until the object is gone. Does not delete a new object that somebody else created with the
 * same name.
 *
 * @throws CommandError when the object still exists after the time limit; ApiError.
 */
async function removeOne<T extends KubeObject>(
  { client, watches, namespace }: Cluster,
  { type, noun }: Kind<T>,
  { metadata: from }: T,
  { wait, signal }: { wait: boolean; signal: AbortSignal },
): Promise<void> {
  await client.delete(type, { namespace, name: from.name }, { uid: from.uid, signal });
  if (!wait) {
    return;
  }
  const late = AbortSignal.timeout(LIMIT_MILLISECONDS);
  const versions = follow({ client, watches, type, from, signal: AbortSignal.any([signal, late]) });
  try {
    while ((await versions.next()).done !== true) {
      // The object still exists.
    }
  } catch (error) {
    throw error === late.reason
      ? new CommandError(`${noun} ${from.name} is still being deleted`, EXIT.noAnswer)
      : error;
  }
}
