/** Fields of a machine that a VM and a VMConfig share. Some schemas here are also used by other kinds. */
import * as z from 'zod';
import { type DisplayDpiMaximum, displayFields } from './display.ts';
import { sshAuthorizedKeysSchema } from './guestdata.ts';
import { IMAGE_NAME_LENGTH } from './reference.ts';
import { portsSchema } from './ports.ts';
import { diskQuantity, memoryQuantity } from './sizes.ts';
import {
  type CelRule,
  choice,
  documented,
  integer,
  namespaceName,
  objectName,
  oneOf,
  text,
} from './schema.ts';
import { TAG, TAG_LENGTH } from './tag.ts';

const IMAGE_NAME = /^[A-Za-z0-9][-A-Za-z0-9._:/@+]*$/;

/** A reference to an object in the same or another namespace. */
export const objectReferenceSchema = z.object({
  name: objectName('Name of the object.'),
  namespace: namespaceName(
    'Namespace of the referenced object. If omitted, Berth looks first in the namespace of the object with this field, then in platform-default. If you give any other namespace, you need the right to get the referenced object there.',
  ).optional(),
});

/** Returns the schema of an OCI reference, or of the name of an Image or ISO object. */
export function imageName(description: string) {
  return text(
    `${description} A text with \`/\`, \`:\` or \`@\` is an OCI reference. Any other text names an object in this namespace or in platform-default.`,
    IMAGE_NAME_LENGTH,
    IMAGE_NAME,
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

export const architectureSchema = choice('Architecture of the processor: amd64 or arm64.', [
  'amd64',
  'arm64',
]);
export const osSchema = choice('Operating system of the guest: MacOS, Linux or Windows.', [
  'MacOS',
  'Linux',
  'Windows',
]);

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
export const placementSchema = z
  .object(placementFields)
  .meta({ description: 'Rules that select a host for the machine.' });
export const vmPlacementSchema = z.object(placementFields).meta({
  description: 'Rules that select a host for the machine. Each omitted field has the value of the VMConfig.',
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
      'Type of the check. None: the VM is ready when the machine runs. GuestAgent: the VM is ready when the QEMU guest agent in the guest answers. Port: the VM is ready when a TCP port of the guest answers.',
      ['None', 'GuestAgent', 'Port'],
    ),
    port: integer('TCP port in the guest, for type Port.', 1, 65_535).optional(),
  })
  .meta(
    documented('Check that decides whether a running machine is Ready.', {
      rule: "has(self.port) == (self.type == 'Port')",
      message: 'readiness.port is required with type Port, and must not be set with any other type',
    }),
  );

/**
 * Returns the schemas of the fields that a VM can take from its VMConfig. No schema has a default, because the API server would store the
 * default in the VM. The value of the VMConfig would then have no effect.
 */
export function machineFields(dpiMaximum: DisplayDpiMaximum) {
  return {
    image: imageName('Image for the disk.').optional(),
    iso: imageName('ISO for booting.').optional(),
    imagePullSecrets: imagePullSecretsSchema.optional(),
    architecture: architectureSchema.optional(),
    os: osSchema.optional(),
    cpu: integer('Number of virtual processors.', 1, 256).optional(),
    memory: memoryQuantity().optional(),
    diskSize: diskQuantity('diskSize', 'Size of the disk. The size of the image when omitted.').optional(),
    ...displayFields(dpiMaximum),
    network: networkSchema.optional(),
    ports: portsSchema.optional(),
    vnc: vncSchema.optional(),
    readiness: readinessSchema.optional(),
    sshAuthorizedKeys: sshAuthorizedKeysSchema.optional(),
    hardwareIdentity: choice(
      'Consistent: each VM that is deployed with this name in this namespace gets the same hardware UUID, serial number and MAC address. Dynamic: each deployed VM gets new values.',
      ['Consistent', 'Dynamic'],
    ).optional(),
  };
}

export const PORTS_NEED_NAT: CelRule = {
  rule: "!has(self.ports) || self.ports.size() == 0 || !has(self.network) || !has(self.network.mode) || self.network.mode == 'NAT'",
  message: 'ports may be set only with network mode NAT',
  fieldPath: '.ports',
};
export const IMAGE_OR_ISO: CelRule = oneOf(['image', 'iso'], false);
