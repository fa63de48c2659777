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
    says: 'The VM has its largest number of snapshots, or its disk its largest number of layers',
    todo: 'Delete a VMSnapshot of the VM, and create another one',
  },
  SnapshotLost: {
    seen: { VMSnapshot: ['Ready', 'Stalled', 'Event'], VM: ['Ready', 'Reconciling'] },
    class: 'final',
    by: 'operator',
    says: 'The snapshot was taken, but the VM has lost its host or its disk. The snapshot was lost with it',
    todo: 'Delete the VMSnapshot. If its host comes back with the machine, it is Ready again',
  },
  SnapshotNotFound: {
    seen: { VM: ['Ready', 'Reconciling'], Image: ['Ready', 'Event'], Pod: ['terminated'] },
    class: 'mendable',
    by: 'agent and operator',
    says: 'The VM does not have the snapshot. Its disk stays as it is',
    todo: 'Name a VMSnapshot of this VM. revertTo can change only together with a new revertRequestedAt',
  },
  SnapshotNotReady: {
    seen: { VM: ['Ready', 'Reconciling'], Image: ['Ready', 'Event'] },
    class: 'passing',
    by: 'operator',
    says: 'The snapshot was not taken yet. The disk of the VM stays as it is',
    todo: 'Wait until the VMSnapshot is Ready, or name another one',
  },
} as const;
