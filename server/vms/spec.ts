/** Turns the body of a deployment into a VM. */
import { guestMetadataOf, type VMDeployBody } from '../../api/http/vmdeploy.ts';
import { ANSWER_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { VM, VMSpec } from '../../api/v1alpha1/vm.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { machineSpec } from '../machines/request.ts';

/** Start of the name of a VM to which nobody gave a name. */
const DEFAULT_NAME = 'vm';
/** Time for a deployment if the request gives none. `deployTimeoutSeconds` has the same default. */
const TIMEOUT_MINUTES = 10;

/**
 * Returns the VM for the body. The API server chooses the last characters of a generated name. `answerBy` is the time until which the
 * caller takes the answer, in milliseconds since the epoch; undefined when nobody waits.
 */
export function vmOf(
  body: VMDeployBody,
  { namespace, answerBy }: { namespace: string; answerBy?: number | undefined },
): Unsaved<VM> {
  const { name = DEFAULT_NAME, labels } = body;
  return {
    metadata: {
      namespace,
      ...(isNamed(body) ? { name } : { generateName: `${name}-` }),
      ...(labels === undefined ? {} : { labels }),
      annotations: answerBy === undefined ? {} : { [ANSWER_BY_ANNOTATION]: new Date(answerBy).toISOString() },
    },
    spec: specOf(body),
  };
}

/** Reports whether the caller chose the whole name of the VM. */
export function isNamed({ name, shouldGenerateName = false }: VMDeployBody): boolean {
  return name !== undefined && !shouldGenerateName;
}

/** Returns the longest wait for the deployment in minutes. */
export function timeoutMinutes({ timeout = TIMEOUT_MINUTES }: VMDeployBody): number {
  return timeout;
}

function specOf(body: VMDeployBody): VMSpec {
  const { vmConfig, timeout, reservedPorts, systemSerial } = body;
  return {
    ...machineSpec(body),
    serialNumber: systemSerial,
    configRef: vmConfig === undefined ? undefined : { name: vmConfig },
    ports: reservedPorts === undefined ? undefined : portsIn(reservedPorts),
    deployTimeoutSeconds: timeout === undefined ? undefined : timeout * 60,
    guestMetadata: guestMetadataOf(body),
  };
}

function portsIn(text: string): string[] {
  return text
    .split(',')
    .map((port) => port.trim())
    .filter((port) => port !== '');
}
