/** VMSnapshots as the HTTP API and the `berth` command show and accept them. */
import * as z from 'zod';
import { LABEL, objectName, text } from '../v1alpha1/schema.ts';
import type { VMSnapshot } from '../v1alpha1/vmsnapshot.ts';
import { notReadyMessage } from './conditions.ts';
import { continueField } from './request.ts';

export const vmSnapshotItemSchema = z
  .object({
    name: z.string(),
    vm: z.string().meta({ description: 'VM to which the snapshot belongs.' }),
    status: z.string().meta({ description: 'Pending, Saving, Ready, Failed or Terminating.' }),
    takenAt: z.string().optional().meta({ description: 'Moment that the snapshot shows.' }),
    size: z.string().optional().meta({ description: 'Size of the disk, as a quantity.' }),
    storageSize: z
      .string()
      .optional()
      .meta({ description: 'Space on the host that only the snapshot needed when it was taken.' }),
    memorySize: z
      .string()
      .optional()
      .meta({ description: 'Size of the memory, as a quantity. Absent if only the disk is kept.' }),
    consistency: z.string().optional().meta({ description: 'State of the file systems in the snapshot.' }),
    message: z.string().optional().meta({ description: 'Reason why the snapshot is not Ready.' }),
  })
  .meta({ id: 'VMSnapshot', description: 'A snapshot of a VM with its state.' });
export type VMSnapshotItem = z.infer<typeof vmSnapshotItemSchema>;

export const vmSnapshotListSchema = z
  .object({ items: z.array(vmSnapshotItemSchema), continue: continueField })
  .meta({ id: 'VMSnapshotList', description: 'The snapshots of the VMs of a namespace.' });

export const vmSnapshotRequestSchema = z.object({
  name: objectName('Name of the snapshot.'),
  vm: text('Name of the VM whose disk is kept. The VM is in the same namespace.', 63, LABEL),
  memory: z.boolean().optional().meta({
    description:
      'Whether the memory of the running VM is kept, too. A VM that is reset to the snapshot then continues from this memory.',
  }),
});

export function vmSnapshotItem(snapshot: VMSnapshot): VMSnapshotItem {
  const { metadata, spec, status = {} } = snapshot;
  const { phase = 'Pending', takenAt, size, storageSize, memory, consistency } = status;
  return {
    name: metadata.name,
    vm: spec.vmName,
    status: metadata.deletionTimestamp === undefined ? phase : 'Terminating',
    takenAt,
    size,
    storageSize,
    memorySize: memory?.size,
    consistency,
    message: notReadyMessage(snapshot),
  };
}
