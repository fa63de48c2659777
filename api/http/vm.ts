/** VMs in the HTTP API: their items, and the requests that deploy and change them. VM configs share the fields of the machine. */
import * as z from 'zod';
import { NEW_IMAGE_NAME_LENGTH, TAG, TAG_LENGTH } from '../v1alpha1/names.ts';
import { objectName, text, timestamp, VM_NAME } from '../v1alpha1/schema.ts';
import { descriptionSchema } from '../v1alpha1/source.ts';
import { fieldSchema, imageName } from '../v1alpha1/template.ts';
import type { VMSpec } from '../v1alpha1/vm.ts';
import { continueField, decimal, whole } from './request.ts';
import {
  boundsOf,
  DEPLOY_MINUTES_MAXIMUM,
  type DisplayDpiMaximum,
  type FieldsWith,
  VM_FIELD_ROWS,
  type VM_FIELDS,
} from '../v1alpha1/fields.ts';

/** Bounds of memory in GiB. The minimum is 0.1, because clients offer steps of 0.1 GiB. The kinds VM and VMConfig have the same maximum. */
const MEMORY = { minimum: 0.1, maximum: 16_384 };

/** Longest text of reserved ports, in characters. Each of the 64 ports has at most 15 characters, a comma and a space. */
const PORTS_LENGTH = 1_088;
/**
 * Pattern of reserved ports in a request. A request must give the host port, although the VM kind does not require it. The API server
 * checks the port numbers.
 */
const RESERVED_PORTS = /^ *\d+:\d+(\/[a-zA-Z]+)?( *, *\d+:\d+(\/[a-zA-Z]+)?)* *(, *)?$/;

type HttpField = FieldsWith<{ http: string }>;
type ConfigField = HttpField & FieldsWith<{ isInConfig: true }>;
/** Fields of a request for these fields of a VM. */
type HttpShape<Name extends HttpField> = {
  [Field in Name as (typeof VM_FIELDS)[Field]['http']]: z.ZodOptional<z.ZodType<NonNullable<VMSpec[Field]>>>;
};

/**
 * Returns the schemas of the fields that have the same values in a request and in a VM: those that a VMConfig has, too, or those of the VM
 * alone.
 */
function sameFields(isInConfig: true | undefined, dpiMaximum: DisplayDpiMaximum): object {
  const rows = VM_FIELD_ROWS.filter((row) => row.http !== undefined && row.isInConfig === isInConfig);
  return Object.fromEntries(rows.map((row) => [row.http, valueSchema(row, dpiMaximum).optional()]));
}

/**
 * Returns the schemas of the same fields in an item. They have no bounds, because an item shows every value that a user gave, also with
 * kubectl.
 */
function shownFields(isInConfig: true | undefined): object {
  const rows = VM_FIELD_ROWS.filter((row) => row.http !== undefined && row.isInConfig === isInConfig);
  return Object.fromEntries(rows.map((row) => [row.http, shownValue(row).optional()]));
}

/** Values of the fields in an item that have fields of their own, or are lists. */
const SHOWN_STRUCTURES: Readonly<Record<HttpField & FieldsWith<{ type: 'structured' }>, z.ZodType>> = {
  readiness: z.object({ type: z.string(), port: z.int().optional() }),
  sshAuthorizedKeys: z.array(z.string()),
  userData: z.string(),
  userDataSecretRef: z.object({ name: z.string(), key: z.string() }),
};

function shownValue({ name, type }: (typeof VM_FIELD_ROWS)[number]): z.ZodType {
  switch (type) {
    case 'integer':
      return z.int();
    case 'disk':
      return z.union([z.int(), z.string()]);
    case 'structured':
      return SHOWN_STRUCTURES[name as keyof typeof SHOWN_STRUCTURES];
    default:
      return z.string();
  }
}

/** Returns the schemas of the fields of {@link machineRequestFields}, as an item shows them. */
export function shownMachineFields() {
  return {
    ...(shownFields(true) as HttpShape<ConfigField>),
    memory: z.number().optional().meta({ description: 'Memory in GiB.' }),
    node: z.string().optional().meta({ description: 'The only allowed host.' }),
    scheduler: z.enum(['default', 'most-allocated']).optional(),
    tag: z.string().optional(),
    tagRequired: z.boolean().optional(),
    vncConsole: z.boolean().optional(),
    vncHostPort: z.boolean().optional(),
    reservedPorts: z.string().optional(),
  };
}

function valueSchema(row: (typeof VM_FIELD_ROWS)[number], dpiMaximum: DisplayDpiMaximum): z.ZodType {
  if (row.type !== 'integer') {
    return fieldSchema(row, dpiMaximum);
  }
  const { minimum, maximum } = boundsOf(row, dpiMaximum);
  return whole(minimum, maximum).meta({ description: row.description });
}

/** Returns the schemas of the fields that belong to a single VM, and have the same values in a request and in the VM. */
export function vmRequestFields(dpiMaximum: DisplayDpiMaximum) {
  return sameFields(undefined, dpiMaximum) as HttpShape<Exclude<HttpField, ConfigField>>;
}

/** Returns the schemas of the machine's fields in a request. `dpiMaximum` is the largest allowed DPI of the display. */
export function machineRequestFields(dpiMaximum: DisplayDpiMaximum) {
  return {
    ...(sameFields(true, dpiMaximum) as HttpShape<ConfigField>),
    memory: decimal(MEMORY.minimum, MEMORY.maximum).optional().meta({ description: 'Memory in GiB.' }),
    node: objectName('The only allowed host.').optional(),
    tag: text('Tag of the wanted hosts.', TAG_LENGTH, TAG).optional(),
    tagRequired: z
      .boolean()
      .optional()
      .meta({ description: 'Whether only hosts with the tag are used. False when omitted.' }),
    scheduler: z.enum(['default', 'default-scheduler', 'most-allocated']).optional().meta({
      description:
        'Rule for the choice of the host. `default` and `default-scheduler` spread the machines over the hosts. `most-allocated` fills one host after the other.',
    }),
    vncConsole: z
      .boolean()
      .optional()
      .meta({ description: 'Whether the display is served over VNC. True when omitted.' }),
    vncHostPort: z.boolean().optional().meta({
      description:
        'Whether the display is also served on a port of the host, without encryption. False when omitted.',
    }),
    reservedPorts: text(
      'Reserved ports, separated by commas. Each has the form HOST:GUEST, optionally with /tcp or /udp.',
      PORTS_LENGTH,
      RESERVED_PORTS,
    ).optional(),
    gpuPassthrough: z
      .literal(false, { error: 'GPU passthrough is not offered' })
      .optional()
      .meta({ description: 'Only false is accepted.' }),
  };
}

/** TypeScript type of the fields of a request. */
export type MachineRequest = z.infer<z.ZodObject<ReturnType<typeof machineRequestFields>>>;

/** Returns false if a request asks for hosts with its tag only, but names no tag. */
export function hasRequiredTag({ tag, tagRequired }: Pick<MachineRequest, 'tag' | 'tagRequired'>): boolean {
  return tagRequired !== true || tag !== undefined;
}

/** Returns false if a request gives user data both as a text and in a Secret. */
export function isOneUserData({
  userData,
  userDataSecretRef,
}: Pick<MachineRequest, 'userData' | 'userDataSecretRef'>): boolean {
  return userData === undefined || userDataSecretRef === undefined;
}

export const ONE_USER_DATA = {
  error: 'at most one of userData and userDataSecretRef may be given',
  path: ['userDataSecretRef'],
};

export const NEEDS_TAG = { error: 'may be true only if tag is given', path: ['tagRequired'] };

/** VM in a list. An unknown port is absent and never 0, because clients would take 0 for a port. */
export const vmItemSchema = z
  .object({
    name: z.string(),
    node: z.string().optional(),
    /** Address of the host. NAT forwards ports of the host to the guest, so clients need no address of the guest. */
    ip: z.string().optional(),
    cpu: z.int().optional(),
    memory: z.string().optional().meta({ description: 'Memory with two decimals, for example 4.80Gi.' }),
    image: z.string().optional(),
    gpuPassthrough: z.boolean(),
    deployDate: z.string().optional().meta({ description: 'RFC 3339 time at which the VM was created.' }),
    ssh: z.int().optional().meta({ description: 'Host port for SSH.' }),
    vnc: z.int().optional().meta({ description: 'Host port for VNC.' }),
    screenshare: z.int().optional().meta({ description: 'Host port for screen sharing.' }),
    status: z.enum(['Pending', 'Running', 'Failed', 'Stopped', 'Suspended', 'Terminating']),
    reservedPorts: z
      .string()
      .optional()
      .meta({ description: 'Reserved ports as HOST:GUEST/PROTOCOL, for example 8080:80/tcp.' }),
    powerState: z.string().optional(),
    owner: z.string().optional().meta({ description: 'User who made the VM.' }),
    architecture: z.string().optional(),
    labels: z.record(z.string(), z.string()).optional(),
    message: z.string().optional(),
  })
  .meta({ id: 'VM', description: 'A VM with its state and its ports.' });
export type VMItem = z.infer<typeof vmItemSchema>;

/** VM by its name: its item, and the request that makes the same VM. A list has no requests, because user data can be long. */
export const vmDetailsSchema = vmItemSchema
  .extend({
    request: z
      .object({
        ...shownMachineFields(),
        ...(shownFields(undefined) as HttpShape<Exclude<HttpField, ConfigField>>),
        name: z.string(),
        labels: z.record(z.string(), z.string()).optional(),
        vmConfig: z.string().optional(),
        timeout: z.int().optional().meta({ description: 'Minutes to wait until the VM runs.' }),
        vmMetadata: z.record(z.string(), z.string()).optional(),
      })
      .meta({
        description:
          'Body of a request that deploys the same VM. It has all values that were given, but for fields that only kubectl has. Content of Secrets is never in it.',
      }),
  })
  .meta({ id: 'VMDetails', description: 'A VM with its state, its ports and the request for it.' });
export type VMDetails = z.infer<typeof vmDetailsSchema>;

export const vmListSchema = z
  .object({ items: z.array(vmItemSchema), continue: continueField })
  .meta({ id: 'VMList', description: 'VMs, in the order of the API server.' });

/** Largest disk in GB. */
const DISK_MAXIMUM = 1_000_000;

const COMMANDS = ['start', 'stop', 'suspend', 'resume', 'revert'] as const;
export type Command = (typeof COMMANDS)[number];

const commandSchema = z.enum(COMMANDS);

export const execBody = z
  .object({
    command: commandSchema.meta({ description: 'What the machine does.' }),
    snapshot: objectName(
      'Name of the snapshot to which revert resets the disk. When omitted, the disk is reset to its image.',
    ).optional(),
  })
  .refine(({ command, snapshot }) => snapshot === undefined || command === 'revert', {
    error: 'belongs to the command revert only',
    path: ['snapshot'],
  });

export const execParams = {
  command: commandSchema.meta({ description: 'What the machine does.', examples: ['start'] }),
};

export const saveBody = z.object({
  imageName: objectName('Name of the new image.').max(NEW_IMAGE_NAME_LENGTH),
  description: descriptionSchema.optional(),
  memory: z.boolean().optional().meta({
    description:
      'Whether the image also gets the memory of the running VM. VMs of such an image start from this memory.',
  }),
  snapshot: objectName(
    'Name of a VMSnapshot of the VM. The image gets the disk of the snapshot instead of the present one.',
  ).optional(),
});

export const commitBody = z.object({ description: descriptionSchema.optional() });

export const pushBody = z.object({ imageReference: imageName('Target of the push.') });

export const pushStartedSchema = z
  .object({ jobName: z.string().meta({ description: 'Name of the push.' }) })
  .meta({ id: 'PushStarted', description: 'The name of a new push.' });

export const prolongBody = z.object({
  aliveUntil: timestamp(
    'New time in RFC 3339 after which the operator deletes the VM. It must not be earlier than the present one.',
  ),
});

export const resizeBody = z.object({
  size: whole(1, DISK_MAXIMUM).meta({ description: 'Size of the disk in GB. A disk can only grow.' }),
});

export const pushSchema = z
  .object({
    jobName: z.string(),
    image: z.string().meta({ description: 'Target of the push.' }),
    status: z.enum(['Pending', 'Running', 'Succeeded', 'Failed']),
    progressPercent: z.int().optional(),
    message: z.string().optional(),
  })
  .meta({ id: 'Push', description: 'A push with its progress.' });
export type Push = z.infer<typeof pushSchema>;

export const pushListSchema = z
  .object({ items: z.array(pushSchema) })
  .meta({ id: 'PushList', description: 'The pushes of a namespace.' });

export const deleteQuery = z.object({
  wait: z
    .enum(['true', 'false'])
    .default('false')
    .meta({ description: 'If true, the server answers only after the VM is completely removed.' }),
});

/** Largest number of metadata values for the guest. The VM kind has the same limit. */
const METADATA_ENTRIES = 64;
/** Largest number of labels in a request. The item of a VM shows at most this number of labels. */
const LABELS = 64;
const NAME_LENGTH = 63;
/** Longest name in a request that asks for a generated name. The server adds a dash and 5 characters to this name. */
const GENERATED_NAME_LENGTH = NAME_LENGTH - 6;
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
      timeout: whole(1, DEPLOY_MINUTES_MAXIMUM)
        .optional()
        .meta({ description: 'Minutes to wait until the VM runs. 10 when omitted.' }),
      vmMetadata: metadataSchema.optional(),
      labels: z
        .record(z.string(), z.string())
        .refine((labels) => Object.keys(labels).length <= LABELS, {
          error: `must have at most ${LABELS} labels`,
        })
        .optional()
        .meta({ description: `Labels of the VM, at most ${LABELS}.`, maxProperties: LABELS }),
    })
    .refine(isOneUserData, ONE_USER_DATA)
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
  .meta({ id: 'DeployedVM', description: 'The deployed VM, with the address and the ports of its guest.' });
export type DeployedVM = z.infer<typeof deployedVMSchema>;
