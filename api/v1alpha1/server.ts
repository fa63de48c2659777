/** Server: the power of one physical server, which can be a host of machines. */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import {
  AGE_COLUMN,
  type ApiObject,
  column,
  conditionColumn,
  type KindContent,
  selectable,
  wide,
} from './kind.ts';
import { choice, documented, integer, objectName, oneOf, report, text, timestamp } from './schema.ts';

/** Largest number of addresses of one Server. */
const ADDRESSES_LIMIT = 16;
/** Longest text of an IP address: `ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255` has 45 characters. */
const ADDRESS_LENGTH = 45;
/** Longest URL. Web servers commonly accept no longer one. */
const URL_LENGTH = 2_048;
/** Longest time in seconds for which a power action waits for the end of VMs: a week. */
const WAIT_SECONDS_LIMIT = 604_800;
/** Time in seconds for which a power action waits for the end of VMs if the Server does not set it. */
export const WAIT_SECONDS = 3_600;
/** Port of IPMI over LAN, from the IPMI specification 2.0, section 13.1.2. */
export const IPMI_PORT = 623;
/** Cipher suites of IPMI that both authenticate and encrypt, without MD5. The first is the default: suite 17 uses SHA-256, suite 3 SHA-1. */
export const CIPHER_SUITES = [17, 3] as const;

/** Pattern of a text without control characters, so that it stays on one line. */
const ONE_LINE = /^[^\p{Cc}]*$/u;

function line(description: string) {
  return text(description, 253, ONE_LINE);
}

export const POWER_ACTIONS = ['On', 'Off', 'Reboot'] as const;
export type PowerAction = (typeof POWER_ACTIONS)[number];

function url(description: string, schemes: 'https' | 'https?') {
  return text(description, URL_LENGTH, new RegExp(`^${schemes}://[^\\s@]+$`));
}

const redfishSchema = z
  .object({
    endpoint: url(
      'URL of the controller, for example https://10.0.0.5. It cannot contain credentials.',
      'https',
    ),
    systemPath: text(
      'Path of the ComputerSystem. It can be absent if the controller has exactly one system.',
      URL_LENGTH,
      /^\/redfish\/v1\/[^\s?#]+$/,
    ).optional(),
    authority: text(
      'Certificates, as PEM text, of the authorities that can sign the certificate of the controller. The default is the public authorities.',
      65_536,
      /-----BEGIN CERTIFICATE-----/,
    ).optional(),
    insecureSkipVerify: z
      .boolean()
      .meta({
        description:
          'Whether to accept every certificate. Anybody between Berth and the controller can then read its password.',
      })
      .optional(),
  })
  .meta({ description: 'A controller with the Redfish API of the DMTF.' });

const ipmiSchema = z
  .object({
    address: text(
      'IP address or DNS name of the controller.',
      253,
      /^[0-9A-Za-z]([-.:0-9A-Za-z]*[0-9A-Za-z])?$/,
    ),
    port: integer('UDP port. The default is 623.', 1, 65_535).optional(),
    cipherSuite: z
      .int()
      .min(0)
      .max(255)
      .meta(
        documented('Cipher suite of the session: 17 (default) or 3.', {
          rule: `self in [${CIPHER_SUITES.join(', ')}]`,
          message: `must be ${CIPHER_SUITES.join(' or ')}`,
        }),
      )
      .optional(),
  })
  .meta({ description: 'A controller with IPMI 2.0 over LAN (RMCP+).' });

/** The names end in URL, because YAML reads the keys `on` and `off` as booleans. */
const webhookSchema = z
  .object({
    onURL: url('URL that switches the server on. Berth sends a POST.', 'https?'),
    offURL: url('URL that switches the server off. Berth sends a POST.', 'https?'),
    rebootURL: url(
      'URL that reboots the server. Berth sends a POST. If it is absent, Berth switches the server off and on.',
      'https?',
    ).optional(),
    statusURL: url('URL of the power state. Berth sends a GET.', 'https?'),
    pattern: text(
      'Regular expression (RE2) for the answer of the status URL. Its first group must contain on, true or 1, or off, false or 0, in any letter case. An answer that does not match is an error.',
      512,
    ),
  })
  .meta({ description: 'A controller with URLs, for example a smart plug or a program of your own.' });

const controllers = {
  redfish: redfishSchema.optional(),
  ipmi: ipmiSchema.optional(),
  webhook: webhookSchema.optional(),
};

const controllerSchema = z
  .object({
    ...controllers,
    secretName: objectName(
      'Name of a Secret in berth-system of the type kubernetes.io/basic-auth, with the keys username and password. IPMI needs it. Berth sends the password of a webhook only over https://.',
    ).optional(),
  })
  .meta(documented('Controller of the power of the server.', oneOf(Object.keys(controllers))));
export type ServerController = z.infer<typeof controllerSchema>;

const policySchema = z
  .object({
    whenOccupied: choice(
      'Effect of Off and Reboot if VMs run on the server: Refuse (default), Force, which stops them without warning, or Wait.',
      ['Refuse', 'Force', 'Wait'],
    ).optional(),
    waitSeconds: integer(
      'Longest time in seconds for which Wait waits until the VMs have ended by themselves. The default is 3600.',
      0,
      WAIT_SECONDS_LIMIT,
    ).optional(),
  })
  .meta({ description: 'Rules for Off and Reboot while VMs run on the server.' });

const serverSpecSchema = z
  .object({
    displayName: line('Name of the server for people. The default is the name of the object.').optional(),
    addresses: z
      .array(text('An IPv4 or IPv6 address.', ADDRESS_LENGTH))
      .min(1)
      .max(ADDRESSES_LIMIT)
      .meta({
        ...documented(
          'IP addresses of the server. No two Servers can have the same address.',
          { rule: 'self.all(a, isIP(a))', message: 'every address must be an IPv4 or IPv6 address' },
          {
            rule: '!self.all(a, isIP(a)) || self.all(a, self.exists_one(b, ip(a) == ip(b)))',
            message: 'no address may be listed twice',
          },
        ),
        'x-kubernetes-list-type': 'atomic',
      }),
    type: line('Type of the server, as text for people.').optional(),
    location: line('Location of the server, as text for people.').optional(),
    status: line('Administrative status of the server, as text for people.').optional(),
    creationDate: timestamp('Time from which the server is available to you.').optional(),
    cancelDate: timestamp('Time when the server was or will be given back.').optional(),
    controller: controllerSchema,
    nodeName: text('Name of the Node of the host that runs on the server.', 253).optional(),
    policy: policySchema.optional(),
    powerAction: z
      .object({
        action: choice('The action.', POWER_ACTIONS),
        requestedAt: timestamp(
          'Time of the request. An action is done once for each value, if the value is later than all earlier ones.',
        ),
      })
      .meta({ description: 'A power action.' })
      .optional(),
  })
  .meta(documented('Desired server.'));
export type ServerSpec = z.infer<typeof serverSpecSchema>;

/** Fields of a request for a power action, both before and after the operator has begun it. */
const requestFields = {
  id: report('Identifier of the request.', 64),
  action: choice('The action.', POWER_ACTIONS),
  requestedAt: timestamp('Time of the request.'),
  by: report('User or policy that requested the action.', 512),
};

const powerRequestSchema = z.object(requestFields);
export type PowerRequest = z.infer<typeof powerRequestSchema>;

const lastActionSchema = z.object({
  ...requestFields,
  result: choice('Waiting, Running, Succeeded, Refused or Failed.', [
    'Waiting',
    'Running',
    'Succeeded',
    'Refused',
    'Failed',
  ]),
  message: report('Details of the result, as text for people.', 1_024),
  startedAt: timestamp('Time when Berth began the action.'),
  call: z
    .object({
      action: choice('The command.', POWER_ACTIONS),
      begunAt: timestamp('Time when Berth began to send the command.'),
      acceptedAt: timestamp('Time when the controller accepted the command.').optional(),
      attempts: integer('Number of times that Berth sent the command.', 1, 2),
    })
    .meta({
      description:
        'The last command for the controller. Berth writes it before it sends the command, so that no command is sent twice after a crash.',
    })
    .optional(),
  acceptedAt: timestamp('Time when the controller accepted the first command.').optional(),
  completedAt: timestamp('Time when the action ended.').optional(),
});
export type LastAction = z.infer<typeof lastActionSchema>;

const serverHostSchema = z
  .object({
    cordonedAt: timestamp('Time when Berth cordoned the Node because of a power action.').optional(),
    offAt: timestamp('Time when Berth began to switch off the host.').optional(),
    onAt: timestamp('Time when the controller confirmed that the server is on again.').optional(),
    bootID: report('Boot ID of the host before it was switched off.', 64).optional(),
  })
  .meta({
    description: 'The host of the server, from the beginning of Off or Reboot until it reports again.',
  });
export type ServerHost = z.infer<typeof serverHostSchema>;

export const POWER_STATES = ['On', 'Off', 'Rebooting', 'Error'] as const;
export type PowerState = (typeof POWER_STATES)[number];

export const serverStatusSchema = z
  .object({
    ...commonStatus(),
    power: choice('Power of the server: On, Off, Rebooting or Error.', POWER_STATES).optional(),
    request: powerRequestSchema
      .meta({ description: 'Last power action that the HTTP API or the operator requested.' })
      .optional(),
    lastAction: lastActionSchema.meta({ description: 'Last power action that Berth began.' }).optional(),
    lastRequestedAt: timestamp('Latest spec.powerAction.requestedAt on which Berth has acted.').optional(),
    host: serverHostSchema.optional(),
  })
  .meta({ description: 'Last observed state of the server.' });
export type ServerStatus = z.infer<typeof serverStatusSchema>;
export type Server = ApiObject<ServerSpec, ServerStatus>;

export const SERVER_KIND: KindContent = {
  shortNames: ['srv'],
  description: 'The power of one physical server, which can carry a host of machines.',
  spec: serverSpecSchema,
  status: serverStatusSchema,
  rules: [
    {
      rule: '!isIP(self.metadata.name)',
      message:
        'metadata.name must not be an IP address, because requests name a server by its name or address',
      fieldPath: '.metadata.name',
    },
    {
      rule: '!has(self.status) || !has(self.status.host) || (has(self.spec.nodeName) == has(oldSelf.spec.nodeName) && (!has(self.spec.nodeName) || self.spec.nodeName == oldSelf.spec.nodeName))',
      message:
        'nodeName cannot change while a power action of the host is under way, or before the host reports again',
      fieldPath: '.spec.nodeName',
    },
  ],
  columns: [
    selectable(column('Power', '.status.power', 'Power of the server.')),
    conditionColumn('Ready', 'Ready', 'status'),
    selectable(column('Node', '.spec.nodeName', 'Node of the host on the server.')),
    column('Type', '.spec.type', 'Type of the server.'),
    column('Location', '.spec.location', 'Location of the server.'),
    AGE_COLUMN,
    wide(column('Addresses', '.spec.addresses', 'IP addresses of the server.')),
    wide(column('Action', '.status.lastAction.action', 'Last power action.')),
    wide(column('Result', '.status.lastAction.result', 'Result of the last power action.')),
    wide(conditionColumn('Message', 'Ready', 'message')),
  ],
};
