/** VMSnapshot: the disk of a VM as it was at one moment, and its memory on request. */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import {
  AGE_COLUMN,
  type ApiObject,
  column,
  conditionColumn,
  type KindContent,
  PHASE_COLUMN,
  selectable,
  wide,
} from './kind.ts';
import { count, documented, immutable, LABEL, report, text, timestamp } from './schema.ts';

const vmSnapshotSpecSchema = z
  .object({
    vmName: text(
      'Name of the VM whose disk is kept. The VM is in the same namespace. The snapshot is deleted together with the VM. Immutable.',
      63,
      LABEL,
    ),
    memory: z
      .boolean()
      .meta({
        description:
          'Whether the memory of the running VM is kept, too. A VM that is reset to the snapshot then continues from this memory instead of booting. Immutable.',
      })
      .optional(),
  })
  .meta(documented('Desired snapshot.', ...immutable('vmName', 'memory')));
export type VMSnapshotSpec = z.infer<typeof vmSnapshotSpecSchema>;

export const vmSnapshotStatusSchema = z
  .object({
    ...commonStatus(),
    phase: report(
      'Phase of the snapshot: Pending, Saving, Ready or Failed. It is for people. Programs read the conditions instead.',
      64,
    ).optional(),
    vmUID: report(
      'Uid of the VM to which the snapshot belongs. It never changes, so a later VM of the same name does not get the snapshot.',
      64,
    ).optional(),
    takenAt: timestamp('Moment that the snapshot shows.').optional(),
    consistency: report(
      'State of the file systems in the snapshot. FileSystem: the guest agent froze them. Stopped: the VM was off. Crash: they are as after a power cut.',
      64,
    ).optional(),
    size: report('Size of the disk, as a quantity.', 32).optional(),
    storageSize: report(
      'Space on the disk of the host that only the snapshot needed when it was taken, as a quantity.',
      32,
    ).optional(),
    memory: z
      .object({
        size: report(
          'Size of the memory, as a quantity. The VM must have this size to continue from it.',
          32,
        ),
        cpu: count('Number of virtual processors. The VM must have as many to continue from the memory.'),
      })
      .meta({ description: 'Memory of the VM at that moment. Absent if only the disk is kept.' })
      .optional(),
    failure: z
      .object({
        reason: report('Reason of the failure, as one word that programs can read.', 1024),
        message: report('Description of the failure.', 32_768),
        time: timestamp('Time when the operator recorded the failure.'),
      })
      .meta({ description: 'Reason why the snapshot was not taken. This field never changes.' })
      .optional(),
  })
  .meta({ description: 'Last observed state of the snapshot, written by the operator.' });
export type VMSnapshotStatus = z.infer<typeof vmSnapshotStatusSchema>;
export type VMSnapshot = ApiObject<VMSnapshotSpec, VMSnapshotStatus>;

export const VM_SNAPSHOT_KIND: KindContent = {
  shortNames: ['vmsnap'],
  description: 'The disk of a VM as it was at one moment. The VM can be reset to it.',
  spec: vmSnapshotSpecSchema,
  status: vmSnapshotStatusSchema,
  rules: [],
  columns: [
    selectable(column('VM', '.spec.vmName', 'VM of the snapshot.')),
    PHASE_COLUMN,
    conditionColumn('Ready', 'Ready', 'status'),
    column('Taken', '.status.takenAt', 'Moment that the snapshot shows.', 'date'),
    AGE_COLUMN,
    wide(column('Size', '.status.size', 'Size of the disk.')),
    wide(column('Storage', '.status.storageSize', 'Space on the host for the snapshot.')),
    wide(column('Memory', '.status.memory.size', 'Size of the memory, if it is kept.')),
    wide(column('Consistency', '.status.consistency', 'State of the file systems in the snapshot.')),
    wide(conditionColumn('Message', 'Ready', 'message')),
  ],
};
