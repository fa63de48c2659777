/** Starts, stops, suspends, resumes and reverts VMs. */
import type { Command } from '../../api/http/vmaction.ts';
import { requestPower } from '../../api/http/vmpower.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { undefinedIf } from '../../base/errors.ts';
import type { KubeClient } from '../../kube/client.ts';
import { isConflict } from '../../kube/errors.ts';
import { type NamespacedRef, getAs } from '../callers/objects.ts';
import { StatusError } from '../http/errors.ts';

/**
 * Writes the command into the VM object, so that the host executes it later. @throws StatusError 409 when the state of the VM does not
 * allow the command, or others change the VM in each attempt.
 */
export async function command(client: KubeClient, ref: NamespacedRef, word: Command): Promise<void> {
  const requested = await requestPower(word, {
    read: async () => await getAs(client, VMS, ref),
    write: async (patch) => await undefinedIf(isConflict, client.mergePatch(VMS, ref, patch)),
  });
  if ('refusal' in requested) {
    throw new StatusError(409, requested.refusal);
  }
}
