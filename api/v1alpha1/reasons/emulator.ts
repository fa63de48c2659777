/** Reasons that only emulators and their hosts have. */

export const EMULATOR_REASONS = {
  VMNotRunning: {
    seen: { Emulator: ['Scheduled', 'Ready', 'Event'], Pod: ['waiting'] },
    class: 'state',
    by: 'agent and operator',
    says: 'The emulator must run on the host of its VM, and the VM is not running',
    todo: 'Start the VM. The emulator then starts automatically',
  },
  NoFreeSlot: {
    seen: { Emulator: ['Scheduled', 'Event'] },
    class: 'passing',
    by: 'operator',
    says: 'All slots of the host of the VM are in use',
    todo: 'Delete a VM, an emulator or a cache Job of this host, or wait until one of them ends',
  },
  HostWithoutEmulators: {
    seen: { Emulator: ['Scheduled', 'Ready', 'Event'] },
    class: 'mendable',
    by: 'operator',
    says: 'The host of the VM cannot run emulators. The condition’s message contains the reason from the host',
    todo: 'Set emulator.sdk in the configuration of the host’s agent, or place the VM on another host',
  },
  SystemImageMissing: {
    seen: { Emulator: ['Scheduled', 'Ready', 'Stalled', 'Event'], Pod: ['waiting'] },
    class: 'mendable',
    by: 'agent and operator',
    says: 'The SDK of the host has no system image of this platform and type',
    todo: 'Install the system image on the host. The emulator then starts automatically. Or create the emulator again with a system image that the message names',
  },
  AccelerationMissing: {
    seen: { Emulator: ['Ready', 'Stalled', 'Event'], Pod: ['terminated', 'Event'] },
    class: 'final',
    ofHost: true,
    by: 'agent',
    says: 'The emulator needs hardware virtualization, but its Linux user has no access to /dev/kvm on this host',
    todo: 'Give all users or the group kvm the right to read and write /dev/kvm, and create the emulator again',
  },
  ArchitectureNotAllowed: {
    seen: { Emulator: ['Scheduled', 'Ready', 'Event'] },
    class: 'mendable',
    by: 'operator',
    says: 'The operator places no emulators on hosts of this architecture',
    todo: 'Add the architecture to emulators.architectures in the configuration of the operator, or place the VM on another host',
  },
  EmulatorsOffered: {
    seen: { Node: ['berth.dev/Emulators'] },
    class: 'state',
    by: 'agent',
    says: 'The host runs emulators',
  },
  EmulatorsUnavailable: {
    seen: { Node: ['berth.dev/Emulators'] },
    class: 'mendable',
    by: 'agent',
    says: 'The host cannot run emulators. The condition’s message contains the reason',
    todo: 'To run emulators on the host, set emulator.sdk in the configuration of its agent',
  },
} as const;
