/** Deployment of a VM over the HTTP API: the request and the answer. */
import * as z from 'zod';
import type { DisplayDpiMaximum } from '../v1alpha1/fields.ts';
import { objectName, text } from '../v1alpha1/schema.ts';
import { whole } from './fields.ts';
import {
  hasRequiredTag,
  isOneSource,
  machineRequestFields,
  NEEDS_TAG,
  ONE_SOURCE,
  vmRequestFields,
} from './machine.ts';

/** Largest time limit of a deployment, in minutes. */
const TIMEOUT_MAXIMUM = 1_440;
/** Largest number of metadata values for the guest. The VM kind has the same limit. */
const METADATA_ENTRIES = 64;
/** Largest number of labels in a request. The item of a VM shows at most this number of labels. */
const LABELS = 64;
/** Longest text of reserved ports, in characters. Each of the 64 ports has at most 15 characters, a comma and a space. */
const PORTS_LENGTH = 1_088;
const NAME_LENGTH = 63;
/** Longest name in a request that asks for a generated name. The server adds a dash and 5 characters to this name. */
const GENERATED_NAME_LENGTH = NAME_LENGTH - 6;
const VM_NAME = /^[a-z]([-a-z0-9]*[a-z0-9])?$/;
/**
 * Pattern of reserved ports in a request. A request must give the host port, although the VM kind does not require it. The API server
 * checks the port numbers.
 */
const RESERVED_PORTS = /^ *\d+:\d+(\/[a-zA-Z]+)?( *, *\d+:\d+(\/[a-zA-Z]+)?)* *(, *)?$/;

const metadataSchema = z
  .union([
    z.object({
      items: z.array(z.object({ key: z.string(), value: z.string() })).max(METADATA_ENTRIES),
    }),
    z.record(z.string(), z.string()),
  ])
  .meta({
    description: `Metadata values for the guest: a map, or a list of items. At most ${METADATA_ENTRIES} values.`,
  });
export type Metadata = z.infer<typeof metadataSchema>;

/** Returns the schema of the body of a deployment request. `dpiMaximum` is the largest allowed DPI of the display. */
export function vmDeployBody(dpiMaximum: DisplayDpiMaximum) {
  return z
    .object({
      ...machineRequestFields(dpiMaximum),
      ...vmRequestFields(dpiMaximum),
      vmConfig: objectName('VM config that gives the values of omitted fields.').optional(),
      name: text('Name of the VM. When omitted, a name is generated.', NAME_LENGTH, VM_NAME).optional(),
      shouldGenerateName: z
        .boolean()
        .optional()
        .meta({ description: 'Whether the server adds a dash and 5 characters to the name.' }),
      reservedPorts: text(
        'Reserved ports, separated by commas. Each has the form HOST:GUEST, optionally with /tcp or /udp.',
        PORTS_LENGTH,
        RESERVED_PORTS,
      ).optional(),
      timeout: whole(1, TIMEOUT_MAXIMUM)
        .optional()
        .meta({ description: 'Minutes to wait until the VM runs. 10 when omitted.' }),
      vmMetadata: metadataSchema.optional(),
      vm_metadata: metadataSchema.optional(),
      customVMMetadata: metadataSchema.optional(),
      labels: z
        .record(z.string(), z.string())
        .refine((labels) => Object.keys(labels).length <= LABELS, {
          error: `must have at most ${LABELS} labels`,
        })
        .optional()
        .meta({ description: `Labels of the VM, at most ${LABELS}.`, maxProperties: LABELS }),
    })
    .refine(isOneSource, ONE_SOURCE)
    .refine(hasRequiredTag, NEEDS_TAG)
    .refine(
      ({ image, iso, vmConfig }) => image !== undefined || iso !== undefined || vmConfig !== undefined,
      { error: 'at least one of image, iso and vmConfig must be given', path: ['image'] },
    )
    .refine(
      ({ name = '', shouldGenerateName }) =>
        shouldGenerateName !== true || name.length <= GENERATED_NAME_LENGTH,
      {
        error: `must have at most ${GENERATED_NAME_LENGTH} characters if shouldGenerateName is true`,
        path: ['name'],
      },
    );
}
export type VMDeployBody = z.infer<ReturnType<typeof vmDeployBody>>;

export const vmDeployQuery = z
  .object({
    wait: z
      .enum(['true', 'false'])
      .default('true')
      .meta({ description: 'If false, the server answers 202 as soon as the VM exists.' }),
    waitFor: z.enum(['running', 'ready']).default('running').meta({
      description:
        'running: the server answers when the VM runs. ready: the server answers when the VM is Ready. If wait is false, ready is refused.',
    }),
    whenFull: z.enum(['wait', 'fail']).optional().meta({
      description:
        'Behaviour when no host has room for the VM. fail: the server answers 503. wait (the default): the VM waits for room. If wait is false, fail is refused.',
    }),
  })
  .refine(({ wait, waitFor }) => wait === 'true' || waitFor === 'running', {
    error: 'must not be ready if wait is false, because the answer does not wait for the VM',
    path: ['waitFor'],
  })
  .refine(({ wait, whenFull }) => wait === 'true' || whenFull !== 'fail', {
    error: 'must not be fail if wait is false, because the answer does not wait for a host',
    path: ['whenFull'],
  });
export type VMDeployQuery = z.infer<typeof vmDeployQuery>;

export const deployedVMSchema = z
  .object({
    name: z.string(),
    node: z.string().optional(),
    memory: z.string().optional().meta({ description: 'Memory with two decimals, for example 4.80Gi.' }),
    ip: z.string().optional(),
    ssh: z.int().optional(),
    vnc: z.int().optional(),
    screenshare: z.int().optional(),
    status: z.string(),
  })
  .meta({ id: 'DeployedVM' });
export type DeployedVM = z.infer<typeof deployedVMSchema>;
