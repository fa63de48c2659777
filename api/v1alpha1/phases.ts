/** The phases of a VM. `status.phase`, the operator's decisions, the docs and the diagram of the phases all use this table. */

/**
 * Stage of a VM's life. `deployment`: before the first run. `transition`: between two states. `settled`: a state in which the VM can stay.
 */
type Stage = 'deployment' | 'transition' | 'settled';

interface PhaseDefinition {
  readonly stage: Stage;
  /** Meaning of the phase, as text for people. */
  readonly meaning: string;
  /** Phases that usually follow this phase, each with its cause for the diagram. Failed and Terminating can follow any phase. */
  readonly next: Readonly<Partial<Record<VMPhase, string>>>;
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
    stage: 'deployment',
    meaning: 'The VM is waiting for a host. The condition `Scheduled` gives the reason.',
    next: { Scheduled: 'a host has room' },
  },
  Scheduled: {
    stage: 'deployment',
    meaning: 'A host was chosen. Its agent has not begun the work yet.',
    next: {
      Pulling: 'the host lacks the image',
      Cloning: 'the host has the image',
      Pending: 'the host refuses the VM',
    },
  },
  Pulling: {
    stage: 'deployment',
    meaning: 'The host is fetching the image.',
    next: { Cloning: 'the image is complete' },
  },
  Cloning: {
    stage: 'deployment',
    meaning: 'The host is making the disk of the VM from the image.',
    next: { Starting: 'the disk is made', Stopped: 'powerState Stopped' },
  },
  Starting: {
    stage: 'deployment',
    meaning: 'The hypervisor is starting the machine.',
    next: { Running: 'the machine runs' },
  },
  Running: {
    stage: 'settled',
    meaning: 'The machine runs. The condition `Ready` shows the result of the check in `readiness`.',
    next: {
      Stopping: 'powerState Stopped, restart or revert',
      Suspending: 'powerState Suspended',
      Stopped: 'the guest shut down',
      Starting: 'the guest ended, and restartPolicy starts it',
    },
  },
  Stopping: {
    stage: 'transition',
    meaning: 'The machine is shutting down.',
    next: { Stopped: 'the machine is off', Starting: 'restart or revert' },
  },
  Stopped: {
    stage: 'settled',
    meaning:
      'The machine is off and keeps its disk. A user stopped the machine, or the guest shut down by itself.',
    next: { Starting: 'powerState Running' },
  },
  Suspending: {
    stage: 'transition',
    meaning: 'The host is writing the memory of the machine to disk.',
    next: { Suspended: 'the memory is on disk' },
  },
  Suspended: {
    stage: 'settled',
    meaning: 'The memory of the machine is on disk, and the machine is off.',
    next: { Resuming: 'powerState Running', Stopped: 'powerState Stopped' },
  },
  Resuming: {
    stage: 'transition',
    meaning: 'The machine continues from the saved memory.',
    next: { Running: 'the machine continues' },
  },
  Failed: {
    stage: 'settled',
    meaning:
      'The VM has failed and is not started again. The condition `Ready` gives the reason. If the reason is `HostLost` and the host returns with the machine, the VM can become Running.',
    next: { Running: 'the lost host is back' },
  },
  Terminating: { stage: 'transition', meaning: 'The VM is being deleted.', next: {} },
};

/** Returns the names of the phases of a stage, in the order of {@link VM_PHASES}. */
export function phasesIn(stage: Stage): ReadonlySet<string> {
  const phases = Object.entries(VM_PHASES).filter(([, definition]) => definition.stage === stage);
  return new Set(phases.map(([name]) => name));
}
