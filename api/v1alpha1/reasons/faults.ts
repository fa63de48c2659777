/** Reasons of two types: faults of VMs after which Berth tries again, and refusals by hosts. */

const FAILURE = { VM: ['Ready', 'Stalled', 'Event'], Pod: ['terminated', 'Event'] } as const;

/** Faults after which Berth tries again. They pass by themselves, or somebody fixes them. The VM need not be created again. */
export const FAULTS = {
  Unschedulable: {
    seen: { Emulator: ['Scheduled', 'Event'], VM: ['Scheduled', 'Event'] },
    class: 'passing',
    by: 'operator',
    says: 'No suitable host has room for the VM or Emulator. The condition’s message contains the number of hosts for each cause',
    todo: 'Add hosts, delete other VMs, or change the requests of the VM',
  },
  NotReady: {
    seen: { Emulator: ['Ready'], VM: ['Ready'] },
    class: 'passing',
    by: 'operator',
    says: 'The machine runs, but its guest is not ready. For an emulator: ADB does not answer',
    todo: 'If the guest does not become ready, look at the console of the guest',
  },
  GuestNotReady: {
    seen: { Pod: ['Ready'] },
    class: 'passing',
    by: 'agent',
    says: 'The machine runs, but the check in spec.readiness fails',
    todo: 'If the guest does not become ready, look at the console of the guest',
  },
  SecretNotFound: {
    seen: { VM: ['UserDataReady', 'Ready'], Pod: ['berth.dev/UserData', 'waiting'] },
    class: 'mendable',
    by: 'agent',
    says: 'The Secret in spec.userDataSecretRef does not exist, or has no entry with the given key. The machine waits until the Secret and the entry exist',
    todo: 'Create the Secret with the type berth.dev/user-data, and an entry that has this key',
  },
  SecretNotRead: {
    seen: {
      VM: ['UserDataReady', 'Ready'],
      Image: ['Ready', 'Pushed', 'Event'],
      ImageCacheEntry: ['status.nodes'],
      Pod: ['berth.dev/UserData', 'waiting', 'terminated', 'Event'],
    },
    class: 'mendable',
    by: 'agent',
    says: 'The host could not read the Secret in the message from the API server: user data, a pull secret or the VNC password',
    todo: 'If the fault continues, check the connection of the host to the API server',
  },
  UserDataInvalid: {
    seen: { VM: ['UserDataReady', 'Ready'], Pod: ['berth.dev/UserData', 'waiting'] },
    class: 'mendable',
    by: 'agent',
    says: 'The value of the Secret in spec.userDataSecretRef is not text, or is too long',
    todo: 'Put UTF-8 text of at most 65536 bytes into the Secret',
  },
  UserDataSecretRefused: {
    seen: { VM: ['UserDataReady', 'Ready'], Pod: ['berth.dev/UserData', 'waiting'] },
    class: 'mendable',
    by: 'agent',
    says: 'The Secret in spec.userDataSecretRef has a type other than berth.dev/user-data. Guests get no other Secrets',
    todo: 'Delete the Secret, and create it with the type berth.dev/user-data. The type of a Secret cannot be changed',
  },
  HostUnreachable: {
    seen: { Emulator: ['Ready'], VM: ['Ready'] },
    class: 'passing',
    by: 'operator',
    says: 'The host of the VM does not report. Perhaps the machine is still running',
    todo: 'Look at the host and its agent. When the host reports again, the VM becomes Running',
  },
  Faulty: {
    seen: { VM: ['NetworkReady'], Pod: ['berth.dev/Network'] },
    class: 'passing',
    by: 'agent',
    says: 'Packets of the VM are lost. The host tries again and again to repair its network',
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
    todo: 'Free space on the disk of the host. The machine then continues automatically',
  },
  NoRoomToSuspend: {
    seen: { VM: ['Ready', 'Reconciling', 'Event'], Pod: ['berth.dev/Disk'] },
    class: 'mendable',
    by: 'agent and operator',
    says: 'The machine is not suspended, because the disk of its host has no space for the memory of the machine',
    todo: 'Delete files on the disk of the host. The machine is then suspended automatically',
  },
  SuspendFailed: {
    seen: { VM: ['Event'] },
    class: 'passing',
    by: 'agent',
    says: 'The host could not save the memory of the machine, so the machine still runs. The host tries again',
    todo: 'Read the message of the Event, and check the disk of the host',
  },
  ResizeDeferred: {
    seen: { VM: ['RestartRequired'] },
    class: 'passing',
    by: 'operator',
    says: 'The VM gets its new size when its host has enough free CPU and memory',
    todo: 'Free CPU and memory on the host, or request a smaller size',
  },
  ResizeRefused: {
    seen: { VM: ['RestartRequired'] },
    class: 'mendable',
    by: 'operator',
    says: 'The API server or the host refused the new size. The machine keeps its old size',
    todo: 'Raise the quota that the message names, or request a smaller size',
  },
  Deferred: {
    seen: { Pod: ['PodResizePending'] },
    class: 'passing',
    by: 'agent',
    says: 'At present, the host has too little free CPU or memory for the new size of the machine',
    todo: 'Free CPU and memory on the host, or request a smaller size',
  },
  Infeasible: {
    seen: { Pod: ['PodResizePending'] },
    class: 'final',
    by: 'agent',
    says: 'Even without other machines, the host has too little CPU or memory for the new size',
    todo: 'Request a smaller size',
  },
  PodNameTaken: {
    seen: { Emulator: ['Scheduled', 'Ready', 'Event'], VM: ['Scheduled', 'Ready', 'Event'] },
    class: 'mendable',
    by: 'operator',
    says: 'Another Pod has the name that the Pod of the VM or Emulator must have',
    todo: 'Delete that Pod, or give the VM or Emulator another name',
  },
  PodRefused: {
    seen: {
      Emulator: ['Scheduled', 'Ready', 'Event'],
      Image: ['Ready'],
      VM: ['Scheduled', 'Ready', 'Event'],
    },
    class: 'mendable',
    by: 'operator',
    says: 'The API server refused the Pod or a change of it, or its errors last. The message contains the answer of the API server',
    todo: 'Raise the quota, change the admission rule, or repair the webhook that the message names',
  },
  NoFreePort: {
    seen: { VM: ['Ready'], Emulator: ['Ready'], Pod: ['waiting'] },
    class: 'mendable',
    by: 'agent',
    says: 'The host has no free port in a range of its setting `ports`. The condition’s message names the range',
    todo: 'Delete VMs or Emulators on the host, or widen the range in the setting `ports` of its agent. Or set `network.automaticPorts` of VMs to false',
  },
  VNCSecretNotFound: {
    seen: { VM: ['Ready'], Pod: ['waiting'] },
    class: 'mendable',
    by: 'agent',
    says: 'The Secret with the VNC password does not exist yet, or it belongs to an earlier VM of the same name',
    todo: 'If the fault continues, and a Secret with the name in the message exists, delete this Secret',
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
    says: 'Perhaps an earlier VM with the same MAC address is still running on a host that does not report',
    todo: 'Repair the host that does not report, or switch it off',
  },
} as const;

/**
 * Places where a refusal by a host appears. The refusal of an Emulator also appears in `Scheduled` and `Ready`, because no other host can
 * take the Emulator.
 */
const REFUSED = { ...FAILURE, Emulator: ['Scheduled', 'Ready', 'Event'] } as const;

/** Reasons with which a host refuses a machine that another host might accept. */
export const REFUSALS = {
  PortTaken: {
    seen: { ...FAILURE, Pod: [...FAILURE.Pod, 'waiting', 'Ready'] },
    class: 'elsewhere',
    by: 'agent',
    says: 'A port that the VM reserves is not free: another machine or program uses it, or the host chose it for another VM',
    todo: 'Reserve a port that is free on a host, and that is outside the ranges from which agents choose ports',
  },
  PortNotReservable: {
    seen: FAILURE,
    class: 'elsewhere',
    by: 'agent and operator',
    says: 'The configuration of the host or the operator does not allow VMs to reserve this port',
    todo: 'Reserve another port, or change the setting `ports` in the configuration',
  },
  OutOfSlot: {
    seen: REFUSED,
    class: { VM: 'elsewhere', Emulator: 'passing' },
    ofHost: true,
    by: 'agent',
    says: 'The host has no free slot for the machine',
    todo: 'If all hosts are full, add hosts',
  },
  OutOfcpu: {
    seen: REFUSED,
    class: { VM: 'elsewhere', Emulator: 'passing' },
    ofHost: true,
    by: 'agent',
    says: 'The host has too few free processors for the machine',
    todo: 'If all hosts are full, add hosts',
  },
  OutOfmemory: {
    seen: REFUSED,
    class: { VM: 'elsewhere', Emulator: 'passing' },
    ofHost: true,
    by: 'agent',
    says: 'The host has too little free memory for the machine',
    todo: 'If all hosts are full, add hosts',
  },
  OutOfDisk: {
    seen: REFUSED,
    class: { VM: 'elsewhere', Emulator: 'passing' },
    ofHost: true,
    by: 'agent',
    says: 'The host has too little free disk space for the machine',
    todo: 'If all hosts are full, add hosts or remove images',
  },
} as const;
