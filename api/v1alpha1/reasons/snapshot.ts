/** Reasons of VMSnapshots, and of VMs that are reverted to them. */
export const SNAPSHOT_REASONS = {
  SnapshotTaken: {
    seen: { VMSnapshot: ['Ready', 'Event'], VM: ['Event'] },
    class: 'state',
    by: 'agent and operator',
    says: 'The host has the snapshot',
  },
  SnapshotSaving: {
    seen: { VMSnapshot: ['Ready', 'Reconciling'] },
    class: 'state',
    by: 'operator',
    says: 'The host of the VM has not taken the snapshot yet',
  },
  SnapshotNotTaken: {
    seen: { VMSnapshot: ['Ready', 'Stalled', 'Event'], VM: ['Event'] },
    class: 'final',
    by: 'agent and operator',
    says: 'The snapshot could not be taken',
    todo: 'Read the condition’s message, remove the cause, and create another VMSnapshot',
  },
  TooManySnapshots: {
    seen: { VMSnapshot: ['Ready', 'Stalled', 'Event'], VM: ['Event'] },
    class: 'final',
    by: 'agent and operator',
    says: 'The VM has its largest number of snapshots',
    todo: 'Delete a VMSnapshot of the VM, and create another one',
  },
  SnapshotNotFound: {
    seen: { VM: ['Ready', 'Reconciling'] },
    class: 'mendable',
    by: 'agent and operator',
    says: 'The VM is to be reverted to a snapshot that it does not have. Its disk stays as it is',
    todo: 'Set revertTo to a VMSnapshot of this VM, together with a new revertRequestedAt',
  },
  SnapshotNotReady: {
    seen: { VM: ['Ready', 'Reconciling'] },
    class: 'passing',
    by: 'operator',
    says: 'The VM is to be reverted to a snapshot that was not taken yet. Its disk stays as it is',
    todo: 'Wait until the VMSnapshot is Ready, or name another one',
  },
} as const;
