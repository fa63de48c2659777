/** Looks twice before a deployment ends because an object does not exist. */
import type { VM } from '../../api/v1alpha1/vm.ts';
import { pause } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { unlessMissing } from '../../kube/errors.ts';
import { StatusError } from '../http/errors.ts';
import { VMS } from '../resources.ts';
import { stateOf } from './progress.ts';

/** Time in which the operator learns of a new object. Clients create a VM config or an image and deploy a VM of it at once. */
const LEARNING_MILLISECONDS = 1_000;

/**
 * Returns the state of the deployment with the version of the VM that shows it. If an object seems to be missing, the VM is read again
 * after a moment. A VM that others have made under its name is not looked at.
 *
 * @throws ApiError when the API server does not answer; the signal's reason.
 */
export async function settledState(
  client: KubeClient,
  vm: VM,
  wanted: Parameters<typeof stateOf>[1],
  signal: AbortSignal,
): Promise<{ vm: VM; state: ReturnType<typeof stateOf> }> {
  const state = stateOf(vm, wanted);
  if (!(state instanceof StatusError) || state.status !== 404) {
    return { vm, state };
  }
  await pause(LEARNING_MILLISECONDS, signal);
  const { name, namespace = '', uid } = vm.metadata;
  const later = await unlessMissing(client.get(VMS, { namespace, name }, { signal }));
  return later === undefined || later.metadata.uid !== uid
    ? { vm, state }
    : { vm: later, state: stateOf(later, wanted) };
}
