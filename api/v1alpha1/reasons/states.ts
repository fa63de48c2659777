/** Reasons that describe the state of a machine and are no faults. */

/** Places where a reason appears if a machine changes its state or rests. */
const PHASE = { VM: ['Ready', 'Reconciling'], Pod: ['waiting', 'Ready', 'berth.dev/Machine'] } as const;

export const STATES = {
  Pending: {
    seen: { VM: ['Ready', 'Reconciling'], Image: ['Ready', 'Reconciling'] },
    class: 'state',
    by: 'operator',
    says: 'The object waits for its Pod, its Job or a host',
  },
  Scheduled: {
    seen: { VM: ['Scheduled', 'Ready', 'Reconciling', 'Event'] },
    class: 'state',
    by: 'operator',
    says: 'The VM has a host',
  },
  NoPod: {
    seen: { VM: ['Scheduled'] },
    class: 'state',
    by: 'operator',
    says: 'The VM has no Pod, so nothing is known of its host',
  },
  WaitingForScheduler: {
    seen: { VM: ['Scheduled'] },
    class: 'state',
    by: 'operator',
    says: 'The scheduler has not looked at the Pod of the VM yet',
  },
  Pulling: {
    seen: { ...PHASE, Pod: [...PHASE.Pod, 'Event'], Image: ['Ready', 'Reconciling'] },
    class: 'state',
    by: 'agent and operator',
    says: 'A host fetches the image',
  },
  Cloning: {
    seen: PHASE,
    class: 'state',
    by: 'agent',
    says: 'The host makes the disk of the VM',
  },
  Starting: {
    seen: PHASE,
    class: 'state',
    by: 'agent',
    says: 'The host starts the machine, or waits until the machine before it has ended',
  },
  Running: {
    seen: { VM: ['Ready', 'Event'], Pod: ['berth.dev/Machine'] },
    class: 'state',
    by: 'agent and operator',
    says: 'The machine runs',
  },
  Stopping: { seen: PHASE, class: 'state', by: 'agent', says: 'The machine is being stopped' },
  Stopped: {
    seen: { VM: ['Ready', 'Event'], Pod: [...PHASE.Pod, 'Event'] },
    class: 'state',
    by: 'agent',
    says: 'The machine is off, and its disk is kept',
  },
  Suspending: {
    seen: PHASE,
    class: 'state',
    by: 'agent',
    says: 'The memory of the machine is being written to disk',
  },
  Suspended: {
    seen: { VM: ['Ready', 'Event'], Pod: [...PHASE.Pod, 'Event'] },
    class: 'state',
    by: 'agent',
    says: 'The memory of the machine is on disk, and the machine is off',
  },
  Resuming: {
    seen: PHASE,
    class: 'state',
    by: 'agent',
    says: 'The memory of the machine is being read from disk',
  },
  Terminating: {
    seen: { VM: ['Ready', 'Reconciling'], Pod: ['Ready', 'berth.dev/Machine'] },
    class: 'state',
    by: 'agent and operator',
    says: 'The VM is being deleted',
  },
  Terminated: {
    seen: { Pod: ['terminated'] },
    class: 'state',
    by: 'agent',
    says: 'The machine was stopped because its Pod was deleted',
  },
  GuestShutdown: {
    seen: { VM: ['Ready'], Pod: ['berth.dev/Machine', 'Event'] },
    class: 'state',
    by: 'agent',
    says: 'The guest powered itself off',
    todo: 'Set spec.restartRequestedAt to start it again; restartPolicy Always does so by itself',
  },
  Started: { seen: { Pod: ['Event'] }, class: 'state', by: 'agent', says: 'The machine runs' },
  Pulled: {
    seen: { Pod: ['Event'] },
    class: 'state',
    by: 'agent',
    says: 'The image is on the host',
  },
  Resumed: {
    seen: { Pod: ['Event'] },
    class: 'state',
    by: 'agent',
    says: 'The machine runs on from where it was suspended',
  },
  Reverted: {
    seen: { Pod: ['Event'] },
    class: 'state',
    by: 'agent',
    says: 'The disk is as it was when the machine was made',
  },
  Unpaused: {
    seen: { Pod: ['Event'] },
    class: 'state',
    by: 'agent',
    says: 'The disk of the host has room again, and the machine runs on',
  },
  HostDiskHasRoom: {
    seen: { VM: ['Event'] },
    class: 'state',
    by: 'operator',
    says: 'The disk of the host has room again',
  },
  Deployed: {
    seen: { VM: ['ImageReady'] },
    class: 'state',
    by: 'operator',
    says: 'The disk of the VM was made from its image',
  },
  NotReported: {
    seen: { VM: ['NetworkReady'] },
    class: 'state',
    by: 'operator',
    says: 'The host has not reported on the network of the VM yet',
  },
  Reported: {
    seen: { VM: ['NetworkReady'] },
    class: 'state',
    by: 'operator',
    says: 'The host reported on the network of the VM without a reason',
  },
  Connected: {
    seen: { VM: ['GuestAgentConnected'] },
    class: 'state',
    by: 'operator',
    says: 'The guest agent answers',
  },
  NotConnected: {
    seen: { VM: ['GuestAgentConnected'] },
    class: 'state',
    by: 'operator',
    says: 'The guest agent does not answer',
  },
  ResourcesChanged: {
    seen: { VM: ['RestartRequired'] },
    class: 'state',
    by: 'operator',
    says: 'The VM gets its new size at its next start',
    todo: 'Restart the VM when it suits you',
  },
  PodFailed: {
    seen: { Pod: ['Ready'] },
    class: 'state',
    by: 'agent',
    says: 'The Pod has ended; status.reason of the Pod says why',
  },
  Unused: {
    seen: { Pod: ['waiting'] },
    class: 'state',
    by: 'agent',
    says: 'The machine uses only the first container of its Pod',
  },
} as const;
