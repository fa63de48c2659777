/** Creates the Secret with the VNC password of a VM. The operator has the right to create Secrets, but not to read them. */
import { API_VERSION, VNC_SECRET_KEY, VNC_SECRET_TYPE, vncSecretName } from '../../../api/v1alpha1/names.ts';
import type { Facts } from '../facts.ts';
import type { Observed } from '../observe.ts';
import { machineOf, waitingState } from '../podstate.ts';
import { NOTHING, requeueAfter, type StepResult, type Write } from './step.ts';

/**
 * Time in milliseconds between attempts to create the Secret while the Secret of an earlier VM of the same name exists. No watch shows
 * when that Secret is deleted.
 */
const RECHECK_MILLISECONDS = 2_000;
/** Number of random bytes in a password. In base64url they are eight characters, and VNC uses no more than eight. */
const PASSWORD_BYTES = 6;

/**
 * Returns the request that creates the Secret with the VNC password. An existing Secret is not changed. The VM owns the Secret, so the
 * Secret is deleted together with the VM.
 */
export function createVncSecret({ vm, random }: Observed): Write {
  const { name, namespace = '', uid = '' } = vm.metadata;
  const password = Buffer.from(random(), 'hex').subarray(0, PASSWORD_BYTES).toString('base64url');
  return {
    kind: 'createSecret',
    secret: {
      metadata: {
        name: vncSecretName(name),
        namespace,
        ownerReferences: [{ apiVersion: API_VERSION, kind: 'VM', name, uid, controller: true }],
      },
      type: VNC_SECRET_TYPE,
      immutable: true,
      stringData: { [VNC_SECRET_KEY]: password },
    },
  };
}

/**
 * Creates the Secret with the VNC password again while the host reports that this Secret is missing. An attempt has no effect while the
 * Secret of an earlier VM of the same name exists.
 */
export function ensureVncSecret(observed: Observed, { failure }: Facts): StepResult {
  const { pod } = observed;
  const isMissed = pod !== undefined && waitingState(pod).reason === 'VNCSecretNotFound';
  const isAsked =
    isMissed && machineOf(pod)?.automaticPorts?.some(({ purpose }) => purpose === 'vnc') === true;
  return isAsked && failure === undefined
    ? requeueAfter(RECHECK_MILLISECONDS, createVncSecret(observed))
    : NOTHING;
}
