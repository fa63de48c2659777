/** Deletes a VM and waits until it no longer exists. */
import type { VM } from '../../api/v1alpha1/vm.ts';
import { follow } from '../../kube/follow.ts';
import type { Caller } from '../callers/caller.ts';
import { StatusError } from '../http/errors.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { WaitEnd } from '../http/waiting.ts';
import { trimmed } from './deploy.ts';

/**
 * Longest wait in milliseconds for the end of a deletion. A guest has 30 s to shut down, but a host that does not report can delay the
 * deletion much longer.
 */
const LIMIT_MILLISECONDS = 600_000;

/**
 * Deletes a VM and resolves when the VM no longer exists. The wait ends when the signal of `end` aborts with a {@link WaitEnd}.
 *
 * @throws ApiError when the API server refuses. @throws StatusError 504 when the deletion has not ended in time, 503 when the server stops.
 */
export async function deleteAndWait(
  { client, watches }: Caller,
  { metadata: from }: VM,
  end: AbortController,
): Promise<void> {
  const { name, namespace = '', uid } = from;
  const { signal } = end;
  const timer = setTimeout(() => end.abort(new WaitEnd('late')), LIMIT_MILLISECONDS);
  try {
    await client.delete(VMS, { name, namespace }, { uid });
    const versions = follow({ client, watches, type: VMS, from, trim: trimmed, signal });
    while ((await versions.next()).done !== true) {
      // The iterator yields versions of the VM as long as the VM exists.
    }
  } catch (error) {
    throw error instanceof WaitEnd
      ? new StatusError(error.why === 'stopping' ? 503 : 504, `VM ${name} is still being deleted`)
      : error;
  } finally {
    clearTimeout(timer);
  }
}
