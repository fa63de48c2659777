/** Reasons for faults of VMs after which the work is tried again, and for refusals by hosts. */

const FAILURE = { VM: ['Ready', 'Stalled', 'Event'], Pod: ['terminated', 'Event'] } as const;

/** Faults after which Berth tries the work again. They pass by themselves, or somebody fixes them without creating the VM again. */
export const FAULTS = {
  Unschedulable: {
    seen: { VM: ['Scheduled', 'Event'] },
    class: 'passing',
    by: 'operator',
    says: 'No suitable host has room for the VM; the message counts the hosts by cause',
    todo: 'Add hosts, delete other VMs, or change the requests of the VM',
  },
  NotReady: {
    seen: { VM: ['Ready'] },
    class: 'passing',
    by: 'operator',
    says: 'The machine runs, but the guest is not ready yet',
    todo: 'If this continues, look at the console of the guest',
  },
  GuestNotReady: {
    seen: { Pod: ['Ready'] },
    class: 'passing',
    by: 'agent',
    says: 'The machine runs, but the check in spec.readiness fails',
    todo: 'If this continues, look at the console of the guest',
  },
  HostUnreachable: {
    seen: { VM: ['Ready'] },
    class: 'passing',
    by: 'operator',
    says: 'The host of the VM does not report; the machine may still run',
    todo: 'Look at the host and its agent; when the host returns, the VM becomes Running',
  },
  Faulty: {
    seen: { VM: ['NetworkReady'], Pod: ['berth.dev/Network'] },
    class: 'passing',
    by: 'agent',
    says: 'Packets of the VM are lost; the host keeps repairing its network',
    todo: 'Remove the rules that the message names',
  },
  Healthy: {
    seen: { VM: ['NetworkReady'], Pod: ['berth.dev/Network'], Node: ['berth.dev/NATReady'] },
    class: 'state',
    by: 'agent',
    says: 'Packets of the VM reach their target',
  },
  HostDiskFull: {
    seen: { VM: ['Ready', 'Event'], Pod: ['Ready', 'berth.dev/Disk', 'Event'] },
    class: 'mendable',
    by: 'agent and operator',
    says: 'The machine is paused, because the disk of its host is full',
    todo: 'Free room on the disk of the host; the machine then continues by itself',
  },
  NoRoomToSuspend: {
    seen: { VM: ['Reconciling', 'Event'], Pod: ['berth.dev/Disk'] },
    class: 'mendable',
    by: 'agent and operator',
    says: 'The machine is not suspended, because the disk of its host has no room for its memory',
    todo: 'Free room on the disk of the host; the machine is then suspended',
  },
  ResizeDeferred: {
    seen: { VM: ['RestartRequired'] },
    class: 'passing',
    by: 'operator',
    says: 'The new size of the VM waits for room on its host',
    todo: 'Free room on the host, or request a smaller size',
  },
  ResizeRefused: {
    seen: { VM: ['RestartRequired'] },
    class: 'mendable',
    by: 'operator',
    says: 'The API server or the host refused the new size; the machine keeps its old size',
    todo: 'Raise the quota that the message names, or request a smaller size',
  },
  Deferred: {
    seen: { Pod: ['PodResizePending'] },
    class: 'passing',
    by: 'agent',
    says: 'The host has no room for the new size of the machine now',
    todo: 'Free room on the host, or request a smaller size',
  },
  Infeasible: {
    seen: { Pod: ['PodResizePending'] },
    class: 'final',
    by: 'agent',
    says: 'The new size of the machine is larger than its host',
    todo: 'Request a smaller size',
  },
  PodNameTaken: {
    seen: { VM: ['Scheduled', 'Ready', 'Event'] },
    class: 'mendable',
    by: 'operator',
    says: 'Another Pod has the name of the VM',
    todo: 'Delete that Pod, or give the VM another name',
  },
  PodRefused: {
    seen: { VM: ['Scheduled', 'Ready', 'Event'] },
    class: 'mendable',
    by: 'operator',
    says: 'The API server refused the Pod of the VM; the message has its answer',
    todo: 'Raise the quota, or change the admission rule that the message names',
  },
  ConfigNotFound: {
    seen: { VM: ['Scheduled', 'Ready', 'Event'] },
    class: 'mendable',
    by: 'operator',
    says: 'The VMConfig that the VM names does not exist',
    todo: 'Create the VMConfig, or name another one',
  },
  IdentityMayBeDoubled: {
    seen: { VM: ['Event'] },
    class: 'mendable',
    by: 'operator',
    says: 'An earlier VM with the same MAC address may still run on a silent host',
    todo: 'Bring the silent host back, or switch it off',
  },
} as const;

/** Reasons for which a host refuses a machine that another host may accept. */
export const REFUSALS = {
  PortTaken: {
    seen: FAILURE,
    class: 'elsewhere',
    by: 'agent',
    says: 'A program on the host already listens on a port that the VM reserves',
    todo: 'If the port is free on no host, reserve another port',
  },
  PortNotReservable: {
    seen: FAILURE,
    class: 'elsewhere',
    by: 'agent and operator',
    says: 'The configuration of the host or the operator does not allow VMs to reserve this port',
    todo: 'Reserve another port, or change ports in the configuration',
  },
  OutOfSlot: {
    seen: FAILURE,
    class: 'elsewhere',
    by: 'agent',
    says: 'The host has no free slot for the machine',
    todo: 'If all hosts are full, add hosts',
  },
  OutOfcpu: {
    seen: FAILURE,
    class: 'elsewhere',
    by: 'agent',
    says: 'The host has too few processors free for the machine',
    todo: 'If all hosts are full, add hosts',
  },
  OutOfmemory: {
    seen: FAILURE,
    class: 'elsewhere',
    by: 'agent',
    says: 'The host has too little memory free for the machine',
    todo: 'If all hosts are full, add hosts',
  },
  OutOfDisk: {
    seen: FAILURE,
    class: 'elsewhere',
    by: 'agent',
    says: 'The host has too little disk free for the machine',
    todo: 'If all hosts are full, add hosts or remove images',
  },
} as const;
