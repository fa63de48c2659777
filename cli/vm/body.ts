/** Turns the flags of a deployment into a VM, with the code that the HTTP API also uses for the body of a request. */
import type { VMDeployBody } from '../../api/http/vm.ts';
import { DEPLOY_MINUTES_MAXIMUM } from '../../api/v1alpha1/fields.ts';
import { vmOf } from '../../api/http/vmspec.ts';
import { CommandError, EXIT } from '../errors.ts';
import { inFlags as withFlags } from '../objects/create.ts';
import {
  FLAG_BY_MACHINE_FIELD,
  flagByField,
  type MachineFlags,
  machineRequest,
  tableValues,
} from '../objects/machineflags.ts';

export interface DeployFlags extends MachineFlags {
  readonly generateName?: boolean;
  readonly config?: string;
  readonly reservePort?: readonly string[];
  readonly metadata?: Record<string, string>;
  readonly labels?: Record<string, string>;
  readonly timeout?: number;
}

/** Name of the flag for each field of the VM. */
const FLAG_BY_FIELD: Readonly<Record<string, string>> = {
  ...FLAG_BY_MACHINE_FIELD,
  ...flagByField(undefined),
  'metadata.generateName': 'the name',
  'metadata.labels': '--labels',
  'spec.ports': '--reserve-port',
  'spec.configRef': '--config',
  'spec.guestMetadata': '--metadata',
  'spec.deployTimeoutSeconds': '--timeout',
};

/**
 * Returns the body of a request to the HTTP API that deploys the VM.
 *
 * @throws CommandError when flags are missing or wrong, or contradict each other.
 */
export function bodyOf(name: string | undefined, flags: DeployFlags): VMDeployBody {
  check(flags);
  const { generateName, config, timeout, labels } = flags;
  return {
    ...machineRequest(flags),
    ...tableValues(flags, undefined),
    name,
    shouldGenerateName: generateName,
    vmConfig: config,
    timeout,
    reservedPorts: flags.reservePort?.join(','),
    vmMetadata: flags.metadata && itemsOf(flags.metadata),
    labels,
  };
}

/** @throws CommandError when flags are missing or wrong, or contradict each other. */
function check({ image, iso, config, timeout }: DeployFlags): void {
  if (image === undefined && iso === undefined && config === undefined) {
    throw new CommandError('Name the source of the VM: --image, --iso or --config', EXIT.usage);
  }
  if (image !== undefined && iso !== undefined) {
    throw new CommandError('Use only one of --image and --iso', EXIT.usage);
  }
  if (timeout !== undefined && (timeout < 1 || timeout > DEPLOY_MINUTES_MAXIMUM)) {
    throw new CommandError(
      `--timeout ${timeout} must be from 1 to ${DEPLOY_MINUTES_MAXIMUM} minutes`,
      EXIT.usage,
    );
  }
}

/**
 * Returns the VM that the body describes. `answerBy` is a time in milliseconds since the epoch. The operator deletes the VM at this time if
 * the deployment has not ended before. The memory comes from the flag, because the flag gives a quantity, and a body can contain only a
 * number of GiB.
 */
export function vmFrom(
  body: VMDeployBody,
  { memory }: DeployFlags,
  where: { namespace: string; answerBy?: number },
): ReturnType<typeof vmOf> {
  const vm = vmOf(body, where);
  return memory === undefined ? vm : { ...vm, spec: { ...vm.spec, memory } };
}

/**
 * If the API server refused fields of the VM, returns an error whose message names the flags for these fields. Returns other errors
 * unchanged.
 */
export function inFlags(error: unknown): unknown {
  return withFlags(error, FLAG_BY_FIELD);
}

/**
 * Returns the metadata as an object with the field `items`, which is a list of keys with their values. In this form, a key of the metadata
 * can have any name, even `items`.
 */
function itemsOf(metadata: Record<string, string>): VMDeployBody['vmMetadata'] {
  return { items: Object.entries(metadata).map(([key, value]) => ({ key, value })) };
}
