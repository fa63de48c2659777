/**
 * Declares the types of a machine on this host: its record, which is saved on disk (`records.ts`), and the state that only this process
 * knows. The driver manages the machine's process, disk and sockets. This file imports no other file of `agent/pods`, because those
 * files import it.
 */
import { join } from 'node:path';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import {
  type Desired,
  displayOf,
  type GuestFacts,
  type Machine,
  type MachinePort,
} from '../../api/v1alpha1/machine.ts';
import type { WarmStartReason } from '../../api/v1alpha1/names.ts';
import type { VMPhase } from '../../api/v1alpha1/phases.ts';
import type { HostPort } from '../../api/v1alpha1/ports.ts';
import type { Reason, SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { RunAs } from '../../base/exec.ts';
import type { Pod } from '../../kube/core.ts';
import type { BaseImage } from '../disks/disk.ts';
import type { DiskSnapshot, MachineFolder, MachineState } from '../drivers/driver.ts';
import type { NetworkHealth } from '../network/network.ts';

/** Amounts of the host's resources that one machine reserves. */
export interface MachineClaim {
  slots: number;
  /** Guests with macOS. Undefined if the machine has none. */
  macosGuests?: number;
  cpuMillis: number;
  memoryBytes: number;
  /** Bytes of the host's disk: the size of the machine's disk multiplied by the operator's `diskRequestRatio`. */
  diskBytes: number;
  /** Reserved ports of the host. */
  ports: HostPort[];
}

/** Capacity of the host for machines. `slots` is undefined until the operator has set the number. */
export interface HostCapacity {
  slots: number | undefined;
  /** Largest number of guests with macOS. Undefined if the host runs none. */
  macosGuests?: number | undefined;
  cpuMillis: number;
  memoryBytes: number;
  diskBytes: number;
}

/** Unrequested end of a machine. */
export interface MachineEnd {
  /** Kind of end. `HostLost` means that the machine ended together with the host or the agent. */
  how: 'GuestShutdown' | 'Crashed' | 'HostLost';
  /** Last message of the hypervisor. */
  message: string;
  /** Time of the end in milliseconds since the epoch. */
  at: number;
}

/** Size with which a machine was started. */
export interface StartedSize {
  cpu: number;
  memoryBytes: number;
  /** Disk size in bytes. Undefined if the machine has no disk. */
  diskSizeBytes?: number;
}

/** Failure after which a machine never runs again. */
export interface MachineFailure {
  reason: SaidReason;
  message: string;
  exitCode: number;
  /** Time in milliseconds that the guest has for an orderly shutdown. */
  graceMilliseconds: number;
}

/** Whether a machine started from the memory of its image. The message is a sentence about why not. */
export interface WarmStart {
  reason: WarmStartReason;
  message?: string;
}

/** A snapshot that the host has taken, or the reason why it could not. */
export interface SnapshotRecord {
  uid: string;
  taken?: DiskSnapshot;
  failure?: { reason: Reason; message: string };
}

/** A merge of the layers that removed and failed snapshots have left. */
export interface MergeDue {
  /** Number of attempts that were begun and not completed. The merges that a step of the machine has ended do not count. */
  attempts: number;
  /** Time of the next attempt, in milliseconds since the epoch. */
  notBefore: number;
  /** Whether the rest can only be merged while the machine has no process. */
  untilOff?: true;
  /** Why the last attempt has failed. */
  failure?: string;
}

export interface MachineRecord {
  /** Uid of the machine: the uid of the Pod for which it was created. */
  uid: string;
  /** Uid of the Pod that has the machine now, if it is another one. */
  podUid?: string;
  /** Key of the Pod: `namespace/name`. */
  key: string;
  /** Name of the driver that has created the machine or will create it. */
  driver: string;
  /** Document from the Pod's annotation `berth.dev/machine`. Undefined if the agent found the machine on the host without that document. */
  machine: Machine | undefined;
  /** Document of an emulator. Emulators have no field `machine`. Undefined for VMs. */
  emulator?: EmulatorMachine;
  /** Whether Android of an emulator has booted in its present or last run. Undefined for VMs. */
  booted?: boolean;
  claim: MachineClaim;
  /** Host ports that the agent chose for the `automaticPorts` of the machine, in the same order; empty until the agent has chosen them. */
  automaticPorts: MachinePort[];
  /** Whether the machine's disk was created completely. */
  created: boolean;
  base: BaseImage | undefined;
  isoPath: string | undefined;
  /** The machine's own Linux user, kept from creation until the machine is removed. Undefined if the agent is not root. */
  runAs: RunAs | undefined;
  /** Whether the machine should have a process of the hypervisor. */
  running: boolean;
  /** Whether the machine has run at least once. */
  everRan: boolean;
  /** Whether the disk is as its image or its snapshot has it, because no guest has run on it. */
  fresh?: boolean;
  /** Whether the fresh disk is that of a snapshot with memory. */
  hasSnapshotMemory?: boolean;
  /** How the guest on the present disk began. Undefined until then, and if the image has no memory. */
  warmStart?: WarmStart | undefined;
  /**
   * Whether the API server has accepted a Pod status that shows the machine as running. From then on, the disk of the machine can contain
   * users' data.
   */
  acknowledged: boolean;
  /** Whether the machine has no process and no network attachment. The field becomes false when a start is attempted. */
  released: boolean;
  /** Start of the present or last run, in RFC 3339. */
  startedAt: string | undefined;
  /** Time at which the process of a failed or deleted machine had ended and its network was released, in RFC 3339. */
  finishedAt: string | undefined;
  /** Whether the machine was ended by force: its grace period was 0, or was over before the guest had shut down. */
  killed: boolean;
  /** Size of a machine that runs or is suspended. This size can differ from `claim`, which has the size for the next start. */
  startedWith: StartedSize | undefined;
  /** Text that tells why the guest may ignore the user data of the last start. Undefined if nothing is wrong with it. */
  seedNotice?: string | undefined;
  end: MachineEnd | undefined;
  /** Number of unrequested ends of the machine in a row. The back-off between starts depends on this number. */
  endsInARow: number;
  restarts: number;
  /** Number of times that the machine was stopped, see `stops.ts`. Undefined until the first stop. */
  stops?: number;
  restartedAt: string | undefined;
  revertedAt: string | undefined;
  /** Snapshots of the disk, in the order in which they were requested. Undefined until the first one. */
  snapshots?: readonly SnapshotRecord[];
  /** The merge of layers that is left to do. Undefined if there is none. */
  mergeDue?: MergeDue | undefined;
  failure: MachineFailure | undefined;
}

/**
 * Document that describes a machine. For a VM, `machine` is defined. For an emulator, `emulator` is defined. Both fields are undefined if
 * the agent found the machine on the host without its document.
 */
export type MachineDocument = Pick<MachineRecord, 'machine' | 'emulator'>;

export function newRecord(
  o: Pick<MachineRecord, 'uid' | 'key' | 'driver' | 'claim'> & MachineDocument,
): MachineRecord {
  return {
    ...o,
    automaticPorts: [],
    created: false,
    base: undefined,
    isoPath: undefined,
    runAs: undefined,
    running: false,
    everRan: false,
    acknowledged: false,
    released: true,
    startedAt: undefined,
    finishedAt: undefined,
    killed: false,
    startedWith: undefined,
    end: undefined,
    endsInARow: 0,
    restarts: 0,
    restartedAt: undefined,
    revertedAt: undefined,
    failure: undefined,
  };
}

/** The state that a Pod wants for its machine at one moment. */
export interface WantedMachine {
  /** The Pod that wants this state. Undefined if the Pod no longer exists. */
  pod: Readonly<Pod> | undefined;
  /**
   * Content of the annotation `berth.dev/desired`. Undefined if the Pod no longer exists or its annotations are unreadable. While the field
   * is undefined, the machine stays as it is until it ends or is deleted.
   */
  desired: Desired | undefined;
  /** Hash of `desired`. The Pod's status contains the hash when the machine is as `desired` demands. */
  desiredHash: string | undefined;
  /** Set if the Pod is being deleted or no longer exists. `deadline` is the end of the grace period, in milliseconds since the epoch. */
  deletion: { deadline: number } | undefined;
  /** End of the time that `Pod.spec.activeDeadlineSeconds` allows, in milliseconds since the epoch. */
  activeDeadline: number | undefined;
  /** Value of `Pod.spec.terminationGracePeriodSeconds`, in milliseconds, and at most 24.8 days. */
  graceMilliseconds: number;
}

/**
 * Phase of a machine: any phase of a VM, except the phases before a host handles the VM's Pod. The VM's `status.phase` shows the same
 * phase.
 */
export type MachinePhase = Exclude<VMPhase, 'Pending' | 'Scheduled'>;

/** Next action for a machine. */
export type MachineStep =
  /** The machine is in its wanted state, so nothing must be done. */
  | { kind: 'reached' }
  | { kind: 'wait'; until: number | undefined; noRoomToSuspend?: string }
  /** Save a change of the machine's record, then plan again. */
  | { kind: 'note'; change: Partial<MachineRecord> }
  | { kind: 'fail'; failure: MachineFailure }
  /** Fetch the image and create the disk. */
  | { kind: 'create' }
  | { kind: 'start' }
  /** End the machine. With `isDiscarded`, nothing of its disk is needed any more, so a hypervisor that hangs is killed soon. */
  | { kind: 'stop'; graceMilliseconds: number; isDiscarded?: true }
  /** Pause the guest because the host's disk has too little free space. `unpause` lets the guest continue. */
  | { kind: 'pause' }
  | { kind: 'unpause' }
  | { kind: 'suspend' }
  | { kind: 'resume' }
  | { kind: 'revert' }
  /** Take the next snapshot of the disk. */
  | { kind: 'snapshot' }
  /** Remove the snapshots that the VM has no longer. */
  | { kind: 'dropSnapshots' }
  /** End the machine's process and release its network, but keep its disk. */
  | { kind: 'release'; graceMilliseconds: number }
  /** Delete the folder of the machine, including the disk. */
  | { kind: 'remove' };

/** Kinds of steps that take long and run in the background. */
export type OperationKind = Exclude<MachineStep['kind'], 'reached' | 'wait' | 'note' | 'fail'>;

/** A machine's long step that is under way. A machine has at most one operation at a time. */
export interface MachineOperation extends Pick<WantedMachine, 'pod' | 'desired' | 'graceMilliseconds'> {
  readonly kind: OperationKind;
  phase: MachinePhase;
  progressPercent: number | undefined;
  /** Mean speed of the pull so far; undefined before and after the pull. */
  bytesPerSecond: number | undefined;
  /** Cancels the operation if it can be cancelled, for example a download. */
  readonly abort: AbortController;
  /** Ends the guest's grace period early. Only operations that stop a guest use this controller. */
  readonly hurry: AbortController;
  /** Tells that nothing of the machine is needed any more: its deletion waits no longer for the guest. */
  readonly discard: AbortController;
  /** Regular end of the guest's grace period, in milliseconds since the epoch. Undefined for operations that do not stop a guest. */
  deadline: number | undefined;
  /** Called by the step after its phase or progress has changed. */
  readonly changed: () => void;
}

/** State of a machine in this process: its saved record, and values that are not saved. */
export interface Runtime {
  readonly record: MachineRecord;
  readonly folder: MachineFolder;
  operation: MachineOperation | undefined;
  /** Ends the merge of layers that is under way. It can take minutes, and the machine is inspected meanwhile. Undefined if there is none. */
  merge: AbortController | undefined;
  /** State at the last inspection. `unreadable`: the machine's state file cannot be read; `message` names the file and the fault. */
  state: MachineState | { kind: 'unreadable'; message: string };
  /** Whether the record says that the machine runs, but this process of the agent has not yet seen the machine run. */
  unseen: boolean;
  /**
   * Set if the last step failed. `attempts` is the number of failures of this step in a row. The next try waits until `notBefore`, a time
   * of the clock `performance.now()`.
   */
  failed: { kind: OperationKind; attempts: number; notBefore: number } | undefined;
  /** Cause of the last failed step. The Pod's status shows this cause until a step succeeds. */
  trouble: { reason: Reason | undefined; message: string } | undefined;
  /** Shortest grace period of the Pod's deletion so far, in seconds, and the end of this period, in milliseconds since the epoch. */
  leaving: { graceSeconds: number; deadline: number } | undefined;
  /** Result of the VM's readiness check; undefined before the first result. */
  readiness: { ready: boolean; message: string } | undefined;
  /** State of the guest agent in this run of the machine, and its last facts; undefined if the guest agent has not answered yet. */
  guest: { connected: boolean; facts: GuestFacts | undefined } | undefined;
  /** Health of the machine's network; undefined before the first check. */
  network: NetworkHealth | undefined;
  /** IPv4 address of the guest. */
  address: string | undefined;
}

/** Gives access to the {@link Runtime} of each machine of this host. */
export interface Runtimes {
  runtime(record: MachineRecord): Runtime;
}

/** Returns the initial state of a machine. `machinesDirectory` contains one folder for each machine. */
export function newRuntime(record: MachineRecord, machinesDirectory: string): Runtime {
  return {
    record,
    folder: { path: join(machinesDirectory, record.uid), uid: record.uid },
    operation: undefined,
    merge: undefined,
    state: { kind: 'absent' },
    unseen: record.running,
    failed: undefined,
    trouble: undefined,
    leaving: undefined,
    readiness: undefined,
    guest: undefined,
    network: undefined,
    address: undefined,
  };
}

/** Disk space, in bytes, that the saved state of a suspended machine's devices needs. */
const SUSPENDED_DEVICES_BYTES = 64 * 1024 * 1024;
/** Disk space, in bytes, for the memory of a suspended machine's graphics card. It is QEMU's default limit `max_hostmem`. */
const SUSPENDED_SCREEN_BYTES = 256 * 1024 * 1024;
/**
 * Overhead of suspended memory, as a share of the memory. QEMU adds eight bytes to each page of 4 KiB. To be safe, this share is twice as
 * large.
 */
const SUSPENDED_SHARE = 1 / 256;

/** Returns an upper limit for the bytes of the host's disk that the suspended state of a machine uses. */
export function suspendedBytes({ startedWith, claim, machine }: Readonly<MachineRecord>): number {
  const memoryBytes = startedWith?.memoryBytes ?? claim.memoryBytes;
  const hasScreen = machine !== undefined && (machine.vnc.enabled || displayOf(machine) !== undefined);
  const devices = SUSPENDED_DEVICES_BYTES + (hasScreen ? SUSPENDED_SCREEN_BYTES : 0);
  return Math.ceil(memoryBytes * (1 + SUSPENDED_SHARE)) + devices;
}

/**
 * Returns a value from a machine's document. Long steps are planned only for machines with a document, so the check should never fail.
 * @throws TypeError when the value is undefined.
 */
export function needed<T>(value: T | undefined): T {
  if (value === undefined) {
    throw new TypeError('The machine has no description, so this step is not possible');
  }
  return value;
}
