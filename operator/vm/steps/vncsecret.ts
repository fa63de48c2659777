/** Creates the Secret with the VNC password of a VM. The operator may create Secrets, but not read them. */
import { API_VERSION, VNC_SECRET_KEY, VNC_SECRET_TYPE, vncSecretName } from '../../../api/v1alpha1/names.ts';
import type { Facts } from '../facts.ts';
import type { Observed } from '../observe.ts';
import { machineOf, waitingState } from '../podstate.ts';
import { NOTHING, requeueAfter, type StepResult, type Write } from './step.ts';

/** Time in milliseconds between tries while the Secret of an earlier VM still has the name, because no watch shows when it is gone. */
const RECHECK_MILLISECONDS = 2_000;
/** Bytes of a password. In base64url they are eight characters, and VNC uses no more. */
const PASSWORD_BYTES = 6;

/** Returns the write of the Secret. A Secret that exists stays as it is. The VM owns the Secret, which is deleted with the VM. */
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

/** Creates the Secret again while the host misses it. Its name may have belonged to the Secret of an earlier VM until now. */
export function ensureVncSecret(observed: Observed, { failure }: Facts): StepResult {
  const { pod } = observed;
  const isMissed = pod !== undefined && waitingState(pod).reason === 'VNCSecretNotFound';
  const isAsked =
    isMissed && machineOf(pod)?.automaticPorts?.some(({ purpose }) => purpose === 'vnc') === true;
  return isAsked && failure === undefined
    ? requeueAfter(RECHECK_MILLISECONDS, createVncSecret(observed))
    : NOTHING;
}
