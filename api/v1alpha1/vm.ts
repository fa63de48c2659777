/** VM: one virtual machine on one host. */
import * as z from 'zod';
import { type DisplayDpiMaximum, VM_FIELD_ROWS } from './fields.ts';
import {
  AGE_COLUMN,
  type ApiObject,
  column,
  conditionColumn,
  type KindContent,
  nameRule,
  PHASE_COLUMN,
  selectable,
  wide,
} from './kind.ts';
import { atLeast, type CelRule, documented, immutable, isSame } from './schema.ts';
import { ONE_USER_DATA, PORTS_NEED_NAT, vmShape } from './template.ts';
import { type VMStatus, vmStatusSchema } from './vmstatus.ts';

export const HAS_SOURCE: CelRule = {
  rule: 'has(self.image) || has(self.iso) || has(self.configRef)',
  message: 'at least one of image, iso and configRef must be set',
  reason: 'FieldValueRequired',
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

/** CEL rule: nobody can shorten the life of a VM. Users who may change a VM but not delete it could otherwise delete it in this way. */
const LIFE_ENDS_LATER: CelRule = {
  rule: '!has(oldSelf.aliveUntil) || !has(self.aliveUntil) || self.aliveUntil >= oldSelf.aliveUntil',
  message: 'aliveUntil can only be moved later or removed',
  reason: 'FieldValueForbidden',
  fieldPath: '.aliveUntil',
};

/**
 * CEL rules: `revertTo` belongs to one request for a revert. Without the second rule, the removal of the name alone could turn a waiting
 * revert to a snapshot into a revert to the image.
 */
const REVERT_NEEDS_REQUEST: CelRule = {
  rule: '!has(self.revertTo) || has(self.revertRequestedAt)',
  message: 'revertTo needs revertRequestedAt',
  fieldPath: '.revertTo',
};
const REVERT_TO_CHANGES_WITH_REQUEST: CelRule = {
  rule: `(${isSame('revertTo')}) || !(${isSame('revertRequestedAt')})`,
  message: 'revertTo can be set, changed or removed only together with a new revertRequestedAt',
  reason: 'FieldValueForbidden',
  fieldPath: '.revertTo',
};

/** Returns the schema of a VM's spec. `dpiMaximum` is the largest allowed DPI of the display. */
function vmSpec(dpiMaximum: DisplayDpiMaximum) {
  const fixed = VM_FIELD_ROWS.filter(({ isMutable }) => !isMutable).map(({ name }) => name);
  return z
    .object(vmShape(dpiMaximum))
    .meta(
      documented(
        `Desired machine. These fields can be changed: ${mutableNames()}.`,
        HAS_SOURCE,
        PORTS_NEED_NAT,
        ONE_USER_DATA,
        DISK_GROWS,
        LIFE_ENDS_LATER,
        REVERT_NEEDS_REQUEST,
        REVERT_TO_CHANGES_WITH_REQUEST,
        ...immutable(...fixed),
      ),
    );
}

function mutableNames(): string {
  const names = VM_FIELD_ROWS.filter(({ isMutable }) => isMutable).map(({ name }) => name);
  return `${names.slice(0, -1).join(', ')} and ${names.at(-1)}`;
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
      selectable(column('Node', '.status.nodeName', 'Host of the machine.')),
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
      wide(column('CPU', '.status.resources.cpu', 'Number of processors of the machine.', 'integer')),
      wide(column('Memory', '.status.resources.memory', 'Memory of the machine.')),
      wide(conditionColumn('Message', 'Ready', 'message')),
    ],
  };
}
