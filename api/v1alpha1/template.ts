/** Schemas of the fields of VM and VMConfig, which are made from the table in fields.ts. Other kinds use some of them, too. */
import * as z from 'zod';
import {
  boundsOf,
  type DisplayDpiMaximum,
  type FieldsWith,
  VM_FIELD_ROWS,
  VM_FIELDS,
  type VMField,
  type ValueOf,
} from './fields.ts';
import {
  guestMetadataSchema,
  sshAuthorizedKeysSchema,
  userDataSchema,
  userDataSecretSchema,
} from './guestdata.ts';
import { IMAGE_NAME_LENGTH } from './reference.ts';
import { portsSchema } from './ports.ts';
import {
  type CelRule,
  choice,
  diskQuantity,
  documented,
  integer,
  memoryQuantity,
  namespaceName,
  objectName,
  text,
  timestamp,
} from './schema.ts';
import { TAG, TAG_LENGTH } from './names.ts';

const IMAGE_NAME = /^[A-Za-z0-9][-A-Za-z0-9._:/@+]*$/;

/** A reference to an object in the same or another namespace. */
export const objectReferenceSchema = z.object({
  name: objectName('Name of the object.'),
  namespace: namespaceName(
    'Namespace of the referenced object. If omitted, Berth looks first in the namespace of the object with this field, then in platform-default. If you give any other namespace, you need the right to get the referenced object there.',
  ).optional(),
});

/** Message about a URL in the place of an OCI reference. Without this check, a VM would fail only on its host. */
const NO_URL =
  'must not contain ://. Write an OCI reference without https://, or name an Image whose source.http has the URL';

/** Returns the schema of an OCI reference, or of the name of an Image or ISO object. */
export function imageName(description: string) {
  return text(description, IMAGE_NAME_LENGTH, IMAGE_NAME)
    .refine((name) => !name.includes('://'), { error: NO_URL })
    .meta(
      documented(
        `${description} A text with \`/\`, \`:\` or \`@\` is an OCI reference. Any other text names an object in this namespace or in platform-default.`,
        { rule: "!self.contains('://')", message: NO_URL },
      ),
    );
}

export const imagePullSecretsSchema = z
  .array(z.object({ name: objectName('Name of a Secret in this namespace.') }))
  .max(16)
  .meta({
    description: 'Secrets with credentials of registries, in this namespace.',
    'x-kubernetes-list-type': 'map',
    'x-kubernetes-list-map-keys': ['name'],
  });

export const architectureSchema = choice(VM_FIELDS.architecture.description, VM_FIELDS.architecture.values);
export const osSchema = choice(VM_FIELDS.os.description, VM_FIELDS.os.values);

/** Fields that choose the host of a machine. */
const placementFields = {
  node: objectName('The only allowed host.').optional(),
  tag: text(
    'Tag of the wanted hosts. The Nodes of these hosts have the label tag.berth.dev/TAG.',
    TAG_LENGTH,
    TAG,
  ).optional(),
  tagPolicy: choice(
    'Whether the tag is a preference or a requirement. Preferred (the default): other hosts are used if no host with the tag is free. Required: only hosts with the tag are used.',
    ['Preferred', 'Required'],
  ).optional(),
  strategy: choice(
    'Rule for the choice between free hosts. Default: the machines are spread over the hosts. MostAllocated: one host after the other is filled.',
    ['Default', 'MostAllocated'],
  ).optional(),
};
const placementSchema = z
  .object(placementFields)
  .meta({ description: 'Rules that select a host for the machine.' });
const vmPlacementSchema = z.object(placementFields).meta({
  description: 'Rules that select a host for the machine. Each omitted field has the value of the VMConfig.',
});

const { node: _node, ...anyHost } = placementFields;
/** Placement of VMs of which there are several. It names no host, because a host has room for a few of them only. */
export const templatePlacementSchema = z.object(anyHost).meta({
  description: 'Rules that select a host for each VM. Each omitted field has the value of the VMConfig.',
});

const networkSchema = z
  .object({
    mode: choice(
      'Mode of the network: NAT or Bridge. NAT when omitted. Bridge is not supported yet, so a VM with Bridge is Stalled.',
      ['NAT', 'Bridge'],
    ).optional(),
    automaticPorts: z
      .boolean()
      .meta({
        description:
          'Whether the host chooses a port for SSH. For macOS guests it also chooses a port for screen sharing. True when omitted. The field has an effect only if mode is NAT.',
      })
      .optional(),
  })
  .meta({ description: 'Network of the machine.' });
const vncSchema = z
  .object({
    enabled: z
      .boolean()
      .meta({
        description: 'Whether the display is served over VNC, on a socket of the host. True when omitted.',
      })
      .optional(),
    hostPort: z
      .boolean()
      .meta({
        description:
          'Whether the display is also served on a port of the host, without encryption. The password is in the Secret NAME-vnc.',
      })
      .optional(),
  })
  .meta(
    documented('Access to the display over VNC.', {
      rule: '!(has(self.enabled) && !self.enabled && has(self.hostPort) && self.hostPort)',
      message: 'vnc.hostPort needs vnc.enabled',
    }),
  );
const readinessSchema = z
  .object({
    type: choice(
      'Type of the check. None: the VM is ready when the machine runs. SSH: the VM is ready when an SSH server of the guest answers on port 22. GuestAgent: the VM is ready when the QEMU guest agent in the guest answers. Port: the VM is ready when a TCP port of the guest answers.',
      ['None', 'SSH', 'GuestAgent', 'Port'],
    ),
    port: integer('TCP port in the guest, for type Port.', 1, 65_535).optional(),
  })
  .meta(
    documented(
      'Check that decides whether a running machine is Ready. If omitted, the type is SSH for a guest with SSH keys, and otherwise None. Berth knows the keys in sshAuthorizedKeys and userData, but not those in a Secret.',
      {
        rule: "has(self.port) == (self.type == 'Port')",
        message: 'readiness.port is required with type Port, and must not be set with any other type',
      },
    ),
  );

/** Schemas of the fields that have fields of their own, or are lists. */
const STRUCTURED = {
  configRef: objectReferenceSchema.meta({
    description:
      'VMConfig with values for fields that this VM leaves out. The operator reads the VMConfig only when the VM is deployed. A VMConfig in this namespace has precedence over one in platform-default.',
  }),
  imagePullSecrets: imagePullSecretsSchema,
  network: networkSchema,
  ports: portsSchema,
  vnc: vncSchema,
  readiness: readinessSchema,
  sshAuthorizedKeys: sshAuthorizedKeysSchema,
  placement: vmPlacementSchema,
  guestMetadata: guestMetadataSchema,
  userData: userDataSchema,
  userDataSecretRef: userDataSecretSchema,
} satisfies Record<FieldsWith<{ type: 'structured' }>, z.ZodType>;
type Structured = typeof STRUCTURED;

/** Shape of the spec of a VM. Every field is optional. */
type VMShape = {
  [Name in keyof typeof VM_FIELDS]: z.ZodOptional<
    Name extends keyof Structured ? Structured[Name] : z.ZodType<ValueOf<Name>>
  >;
};
type ConfigShape = Pick<VMShape, FieldsWith<{ isInConfig: true }>>;

/**
 * Returns the schemas of all fields of a VM. No schema has a default, because the API server would store the default in the VM. The value of
 * the VMConfig would then have no effect.
 */
export function vmShape(dpiMaximum: DisplayDpiMaximum): VMShape {
  return Object.fromEntries(
    VM_FIELD_ROWS.map((row) => [row.name, fieldSchema(row, dpiMaximum).optional()]),
  ) as unknown as VMShape;
}

/** Returns the schemas of the fields that a VM can take from its VMConfig. */
export function configShape(dpiMaximum: DisplayDpiMaximum): ConfigShape {
  const shape = vmShape(dpiMaximum);
  const shared = VM_FIELD_ROWS.filter(({ isInConfig }) => isInConfig).map(({ name }) => [name, shape[name]]);
  return { ...(Object.fromEntries(shared) as ConfigShape), placement: placementSchema.optional() };
}

/** Returns the schema of one field of a VM. `dpiMaximum` is the largest allowed DPI of the display. */
export function fieldSchema(
  row: VMField & { name: keyof typeof VM_FIELDS },
  dpiMaximum: DisplayDpiMaximum,
): z.ZodType {
  switch (row.type) {
    case 'integer': {
      const { minimum, maximum } = boundsOf(row, dpiMaximum);
      return integer(row.description, minimum, maximum);
    }
    case 'text':
      return text(row.description, row.length, row.pattern);
    case 'choice':
      return choice(row.description, row.values);
    case 'image':
      return imageName(row.description);
    case 'time':
      return timestamp(row.description);
    case 'memory':
      return memoryQuantity(row.description);
    case 'disk':
      return diskQuantity(row.name, row.description);
    default:
      return STRUCTURED[row.name as keyof Structured];
  }
}

export const PORTS_NEED_NAT: CelRule = {
  rule: "!has(self.ports) || self.ports.size() == 0 || !has(self.network) || !has(self.network.mode) || self.network.mode == 'NAT'",
  message: 'ports may be set only with network mode NAT',
  fieldPath: '.ports',
};
export const ONE_USER_DATA: CelRule = {
  rule: '!(has(self.userData) && has(self.userDataSecretRef))',
  message: 'at most one of userData and userDataSecretRef may be set',
};
