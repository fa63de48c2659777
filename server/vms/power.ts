/** Starts, stops, suspends, resumes and reverts VMs. */
import type { Command } from '../../api/http/vmaction.ts';
import { powerChange } from '../../api/http/vmpower.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type NamespacedRef, getAs } from '../callers/objects.ts';
import { StatusError } from '../http/errors.ts';

/**
 * Writes the command into the VM object, so that the host executes it later. @throws StatusError 409 when the state of the VM does not
 * allow the command.
 */
export async function command(client: KubeClient, ref: NamespacedRef, word: Command): Promise<void> {
  const change = powerChange(await getAs(client, VMS, ref), word);
  if ('refusal' in change) {
    throw new StatusError(409, change.refusal);
  }
  await client.mergePatch(VMS, ref, change.patch);
}
