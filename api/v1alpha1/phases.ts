/** The phases of a VM: the one table behind the field `status.phase`, the docs and the diagram of a VM's life. */

interface PhaseDefinition {
  /** One sentence for people. */
  readonly meaning: string;
  /** Phases that usually follow. Failed and Terminating may follow any phase. */
  readonly next: readonly VMPhase[];
}

export type VMPhase =
  | 'Pending'
  | 'Scheduled'
  | 'Pulling'
  | 'Cloning'
  | 'Starting'
  | 'Running'
  | 'Stopping'
  | 'Stopped'
  | 'Suspending'
  | 'Suspended'
  | 'Resuming'
  | 'Failed'
  | 'Terminating';

export const VM_PHASES: Readonly<Record<VMPhase, PhaseDefinition>> = {
  Pending: {
    meaning: 'The VM waits for a host. The condition `Scheduled` gives the reason.',
    next: ['Scheduled'],
  },
  Scheduled: {
    meaning: 'A host was chosen. Its agent has not begun the work yet.',
    next: ['Pulling', 'Cloning', 'Pending'],
  },
  Pulling: { meaning: 'The host fetches the image.', next: ['Cloning'] },
  Cloning: { meaning: 'The host makes the disk of the VM from the image.', next: ['Starting', 'Stopped'] },
  Starting: { meaning: 'The hypervisor starts the machine.', next: ['Running'] },
  Running: {
    meaning: 'The machine runs. The condition `Ready` follows `readiness`.',
    next: ['Stopping', 'Suspending', 'Stopped', 'Starting'],
  },
  Stopping: { meaning: 'The machine shuts down.', next: ['Stopped', 'Starting'] },
  Stopped: {
    meaning:
      'The machine is off and keeps its disk. Somebody asked for it, or the guest shut down by itself.',
    next: ['Starting'],
  },
  Suspending: { meaning: 'The host writes the memory of the machine to its disk.', next: ['Suspended'] },
  Suspended: { meaning: 'The memory is on disk and the machine is off.', next: ['Resuming', 'Stopped'] },
  Resuming: { meaning: 'The machine continues from the saved memory.', next: ['Running'] },
  Failed: {
    meaning: 'The VM ended for good. `status.failure` gives the reason. After `HostLost` the VM can return.',
    next: ['Running'],
  },
  Terminating: { meaning: 'The VM is being deleted.', next: [] },
};
