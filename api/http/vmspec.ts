/** Turns requests for VMs and VM configs into their objects and back, for the HTTP API and the `berth` command. */
import { VM_FIELD_ROWS, type VMField } from '../v1alpha1/fields.ts';
import { DEFAULT_VM_NAME } from '../v1alpha1/names.ts';
import { gibibytesOf, quantityOf } from '../v1alpha1/quantity.ts';
import type { VM, VMSpec } from '../v1alpha1/vm.ts';
import type { VMConfigSpec } from '../v1alpha1/vmconfig.ts';
import type { MachineRequest, Metadata, VMDeployBody, VMDetails } from './vm.ts';

/** VM that is about to be created. */
interface UnsavedVM {
  metadata: Partial<VM['metadata']>;
  spec: VMSpec;
}

/** Default time limit of a deployment in minutes. `deployTimeoutSeconds` has the same default. */
const TIMEOUT_MINUTES = 10;

/** Why nobody chooses the drivers of a machine, as on another platform. */
export const DRIVERS_BY_HOST = 'The hosts choose the drivers of machines by themselves';

/** Returns the VM for the body of a deployment. The API server chooses the last characters of a generated name. */
export function vmOf(body: VMDeployBody, namespace: string): UnsavedVM {
  const { name = DEFAULT_VM_NAME, labels } = body;
  return {
    metadata: {
      namespace,
      ...(isNamed(body) ? { name } : { generateName: `${name}-` }),
      ...(labels === undefined ? {} : { labels }),
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

/** Returns the spec of a VMConfig: the fields that it has in common with a VM. A field that the request does not give is undefined. */
export function vmConfigSpec(request: MachineRequest): VMConfigSpec {
  const { memory, vncConsole, vncHostPort, reservedPorts } = request;
  return {
    ...sameValues(request, ({ isInConfig }) => isInConfig === true),
    memory: memory === undefined ? undefined : quantityOf(memory),
    vnc:
      (vncConsole ?? vncHostPort) === undefined ? undefined : { enabled: vncConsole, hostPort: vncHostPort },
    placement: placementOf(request),
    ports: reservedPorts === undefined ? undefined : parsePorts(reservedPorts),
  };
}

/** Returns the chosen fields of a VM that have the same values in the request. */
function sameValues(request: MachineRequest, isChosen: (field: VMField) => boolean): Partial<VMSpec> {
  const given: Readonly<Record<string, unknown>> = request;
  return Object.fromEntries(
    VM_FIELD_ROWS.flatMap((row) =>
      row.http === undefined || !isChosen(row) ? [] : [[row.name, given[row.http]]],
    ),
  );
}

function placementOf({ node, tag, tagRequired, scheduler }: MachineRequest): VMConfigSpec['placement'] {
  if ((node ?? tag ?? scheduler) === undefined) {
    return undefined;
  }
  return {
    node,
    tag,
    tagPolicy: tag === undefined ? undefined : tagRequired === true ? 'Required' : 'Preferred',
    strategy: scheduler && (scheduler === 'most-allocated' ? 'MostAllocated' : 'Default'),
  };
}

function specOf(body: VMDeployBody): VMSpec {
  const { vmConfig, timeout, vmMetadata } = body;
  return {
    ...vmConfigSpec(body),
    ...sameValues(body, ({ isInConfig }) => isInConfig === undefined),
    configRef: vmConfig === undefined ? undefined : { name: vmConfig },
    deployTimeoutSeconds: timeout === undefined ? undefined : timeout * 60,
    guestMetadata: vmMetadata && valuesIn(vmMetadata),
  };
}

function parsePorts(text: string): string[] {
  return text
    .split(',')
    .map((port) => port.trim())
    .filter((port) => port !== '');
}

/** Returns the metadata values for the guest, which clients send as a map or as a list. */
function valuesIn(metadata: Metadata): Record<string, string> {
  const { items } = metadata;
  return Array.isArray(items)
    ? Object.fromEntries(items.map(({ key, value }) => [key, value]))
    : (metadata as Record<string, string>);
}

/** Fields of a request as an item shows them. */
type ShownRequest = VMDetails['request'];

/** Returns the fields of a request that gives the same values, from the spec of a VMConfig or VM. */
export function machineRequest(spec: VMConfigSpec): Omit<ShownRequest, 'name'> {
  const { memory, vnc, ports, placement = {} } = spec;
  const { node, strategy, tag, tagPolicy } = placement;
  return {
    ...requestValues(spec, ({ isInConfig }) => isInConfig === true),
    memory: gibibytesOf(memory),
    node,
    scheduler: strategy && (strategy === 'MostAllocated' ? 'most-allocated' : 'default'),
    tag,
    tagRequired: tag === undefined ? undefined : tagPolicy === 'Required',
    vncConsole: vnc?.enabled,
    vncHostPort: vnc?.hostPort,
    reservedPorts: ports?.join(','),
  };
}

/** Returns the request that deploys the same VM, without labels. */
export function vmRequest({ metadata: { name }, spec }: VM): ShownRequest {
  const { configRef, deployTimeoutSeconds: seconds, guestMetadata } = spec;
  return {
    ...machineRequest(spec),
    ...requestValues(spec, ({ isInConfig }) => isInConfig === undefined),
    name,
    vmConfig: configRef?.name,
    timeout: seconds === undefined ? undefined : Math.ceil(seconds / 60),
    vmMetadata: guestMetadata,
  };
}

/** Returns the chosen fields of a request that have the same values in the VM. */
function requestValues(spec: VMSpec, isChosen: (field: VMField) => boolean): Partial<ShownRequest> {
  const values: Readonly<Record<string, unknown>> = spec;
  return Object.fromEntries(
    VM_FIELD_ROWS.flatMap((row) =>
      row.http === undefined || !isChosen(row) ? [] : [[row.http, values[row.name]]],
    ),
  );
}
