/** Turns the body of a deployment into a VM, for the HTTP API and the `berth` command. */
import { ANSWER_BY_ANNOTATION } from '../v1alpha1/names.ts';
import type { VM, VMSpec } from '../v1alpha1/vm.ts';
import { machineSpec } from './machinespec.ts';
import type { Metadata, VMDeployBody } from './vmdeploy.ts';

/** VM that is about to be created. */
interface UnsavedVM {
  metadata: Partial<VM['metadata']>;
  spec: VMSpec;
}

/** Prefix of the generated name of a VM if the request has no name. */
const DEFAULT_NAME = 'vm';
/** Default time limit of a deployment in minutes. `deployTimeoutSeconds` has the same default. */
const TIMEOUT_MINUTES = 10;

/**
 * Returns the VM for the body of a deployment. The API server chooses the last characters of a generated name. `answerBy` is the time until
 * which the caller waits for the answer, in milliseconds since 1970. It is undefined if nobody waits.
 */
export function vmOf(
  body: VMDeployBody,
  { namespace, answerBy }: { namespace: string; answerBy?: number | undefined },
): UnsavedVM {
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

/** Reports whether the caller chose the whole name of the VM. If the API server generates a part of the name, the result is false. */
export function isNamed({ name, shouldGenerateName = false }: VMDeployBody): boolean {
  return name !== undefined && !shouldGenerateName;
}

/** Returns the time limit of the deployment in minutes. */
export function timeoutMinutes({ timeout = TIMEOUT_MINUTES }: VMDeployBody): number {
  return timeout;
}

function specOf(body: VMDeployBody): VMSpec {
  const { vmConfig, timeout, activeDeadlineSeconds, ttlSecondsAfterFinished, reservedPorts, systemSerial } =
    body;
  return {
    ...machineSpec(body),
    serialNumber: systemSerial,
    configRef: vmConfig === undefined ? undefined : { name: vmConfig },
    ports: reservedPorts === undefined ? undefined : portsIn(reservedPorts),
    deployTimeoutSeconds: timeout === undefined ? undefined : timeout * 60,
    activeDeadlineSeconds,
    ttlSecondsAfterFinished,
    guestMetadata: guestMetadataOf(body),
  };
}

function portsIn(text: string): string[] {
  return text
    .split(',')
    .map((port) => port.trim())
    .filter((port) => port !== '');
}

/** Returns the metadata values for the guest, which clients send in one of three fields. */
function guestMetadataOf(body: VMDeployBody): Record<string, string> | undefined {
  const given = [body.vmMetadata, body.vm_metadata, body.customVMMetadata].filter(
    (metadata) => metadata !== undefined,
  );
  return given.length === 0 ? undefined : Object.assign({}, ...given.map(valuesIn));
}

function valuesIn(metadata: Metadata): Record<string, string> {
  const { items } = metadata;
  return Array.isArray(items)
    ? Object.fromEntries(items.map(({ key, value }) => [key, value]))
    : (metadata as Record<string, string>);
}
