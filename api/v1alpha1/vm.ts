/** VM: one virtual machine on one host. */
import * as z from 'zod';
import type { DisplayDpiMaximum } from './display.ts';
import { guestMetadataSchema, userDataSchema, userDataSecretSchema } from './guestdata.ts';
import {
  AGE_COLUMN,
  column,
  conditionColumn,
  type KindContent,
  nameRule,
  PHASE_COLUMN,
  wide,
} from './kind.ts';
import type { ApiObject } from './metadata.ts';
import { atLeast } from './sizes.ts';
import { type CelRule, choice, documented, immutable, integer, text, timestamp } from './schema.ts';
import {
  IMAGE_OR_ISO,
  machineFields,
  objectReferenceSchema,
  PORTS_NEED_NAT,
  vmPlacementSchema,
} from './template.ts';
import { type VMStatus, vmStatusSchema } from './vmstatus.ts';

const SECONDS_PER_DAY = 86_400;
const MAXIMUM_SECONDS = 2_147_483_647;

function vmFields(dpiMaximum: DisplayDpiMaximum) {
  return {
    configRef: objectReferenceSchema
      .meta({
        description:
          'VMConfig with values for fields that this VM leaves out. The operator reads the VMConfig only when the VM is deployed. A VMConfig in this namespace has precedence over one in platform-default.',
      })
      .optional(),
    ...machineFields(dpiMaximum),
    placement: vmPlacementSchema.optional(),
    powerState: choice('Desired state of the machine: Running (the default), Stopped or Suspended.', [
      'Running',
      'Stopped',
      'Suspended',
    ]).optional(),
    restartPolicy: choice(
      'Whether the machine starts again when the guest ends by itself: Never (the default), OnFailure or Always.',
      ['Never', 'OnFailure', 'Always'],
    ).optional(),
    restartRequestedAt: timestamp('Each change of this time restarts the machine once.').optional(),
    revertRequestedAt: timestamp('Each change of this time resets the disk to its image once.').optional(),
    serialNumber: text(
      'Serial number of the machine: 8 to 12 letters, digits and dashes.',
      12,
      /^[-A-Za-z0-9]{8,12}$/,
    ).optional(),
    guestMetadata: guestMetadataSchema.optional(),
    userData: userDataSchema.optional(),
    userDataSecretRef: userDataSecretSchema.optional(),
    deployTimeoutSeconds: integer(
      'Time limit for the deployment in seconds, from the choice of a host until the phase Running. 600 when omitted.',
      1,
      SECONDS_PER_DAY,
    ).optional(),
    activeDeadlineSeconds: integer(
      'Time limit in seconds, counted from the first run of the machine. After this time, the VM fails and its machine is removed.',
      1,
      MAXIMUM_SECONDS,
    ).optional(),
    ttlSecondsAfterFinished: integer(
      'Seconds from the end or failure of the VM until it is deleted.',
      0,
      MAXIMUM_SECONDS,
    ).optional(),
  };
}

const MUTABLE = new Set([
  'cpu',
  'memory',
  'diskSize',
  'powerState',
  'restartPolicy',
  'restartRequestedAt',
  'revertRequestedAt',
  'activeDeadlineSeconds',
  'ttlSecondsAfterFinished',
]);

const HAS_SOURCE: CelRule = {
  rule: 'has(self.image) || has(self.iso) || has(self.configRef)',
  message: 'at least one of image, iso and configRef must be set',
  reason: 'FieldValueRequired',
};
const ONE_USER_DATA: CelRule = {
  rule: '!(has(self.userData) && has(self.userDataSecretRef))',
  message: 'at most one of userData and userDataSecretRef may be set',
};
/**
 * CEL rule: the disk of a VM can only grow. The rule belongs to `spec`, because a rule of the field `diskSize` would not be enough. With
 * such a rule, a user could remove the field and later set a smaller size.
 */
const DISK_GROWS: CelRule = {
  rule: `!has(oldSelf.diskSize) || (has(self.diskSize) && ${atLeast('self.diskSize', 'oldSelf.diskSize')})`,
  message: 'diskSize must not be reduced or removed',
  messageExpression: "'diskSize must not be reduced or removed; it was ' + string(oldSelf.diskSize)",
  reason: 'FieldValueForbidden',
  fieldPath: '.diskSize',
};

/** Returns the schema of a VM's spec. `dpiMaximum` is the largest allowed DPI of the display. */
function vmSpec(dpiMaximum: DisplayDpiMaximum) {
  const fields = vmFields(dpiMaximum);
  const fixed = Object.keys(fields).filter((field) => !MUTABLE.has(field));
  return z
    .object(fields)
    .meta(
      documented(
        'Desired machine. These fields can be changed: cpu, memory, diskSize, powerState, restartPolicy, restartRequestedAt, revertRequestedAt, activeDeadlineSeconds and ttlSecondsAfterFinished.',
        HAS_SOURCE,
        IMAGE_OR_ISO,
        PORTS_NEED_NAT,
        ONE_USER_DATA,
        DISK_GROWS,
        ...immutable(...fixed),
      ),
    );
}

export type VMSpec = z.infer<ReturnType<typeof vmSpec>>;
export type VM = ApiObject<VMSpec, VMStatus>;

/** Returns the VM kind. `dpiMaximum` is the largest allowed DPI of the display. */
export function vmKind(dpiMaximum: DisplayDpiMaximum): KindContent {
  return {
    shortNames: ['vm'],
    description: 'A virtual machine. It is placed on one host and runs there until it is deleted.',
    spec: vmSpec(dpiMaximum),
    status: vmStatusSchema,
    rules: [nameRule(63, { dots: false })],
    columns: [
      PHASE_COLUMN,
      column('Progress', '.status.progress', 'Progress of the image pull in percent.'),
      conditionColumn('Ready', 'Ready', 'status'),
      conditionColumn('Reason', 'Ready', 'reason'),
      column('Node', '.status.nodeName', 'Host of the machine.'),
      column(
        'Address',
        '.status.hostAddress',
        'Address of the host, at which clients reach the ports of the machine.',
      ),
      AGE_COLUMN,
      wide(column('Image', '.status.image.name', 'Short name of the image.')),
      wide(column('Accelerator', '.status.accelerator', 'Accelerator of the machine.')),
      wide(
        column(
          'SSH',
          '.status.endpoints[?(@.purpose=="ssh")].hostPort',
          'Port of the host that leads to SSH in the guest.',
          'integer',
        ),
      ),
      wide(column('CPU', '.status.resources.cpu', 'Number of processors, with defaults applied.', 'integer')),
      wide(column('Memory', '.status.resources.memory', 'Memory, with defaults applied.')),
      wide(conditionColumn('Scheduling', 'Scheduled', 'message')),
      wide(conditionColumn('Message', 'Ready', 'message')),
    ],
  };
}
