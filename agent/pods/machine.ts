/**
 * A machine of this host: its record, which outlives the agent (`records.ts`), and the facts that only this process knows. They decide
 * about process, disk and sockets, which the driver owns. This file is the ground of its folder and imports none of it.
 */
import { join } from 'node:path';
import type { Desired, Machine } from '../../api/v1alpha1/machine.ts';
import type { Reason, SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import type { MachineFolder, MachineState } from '../drivers/driver.ts';
import type { BaseImage } from '../disks/disk.ts';
import type { RunAs } from '../../base/exec.ts';
import type { NetworkHealth } from '../network/network.ts';

/** The part of the host that one machine takes. */
export interface Claim {
  slots: number;
  cpuMillis: number;
  memoryBytes: number;
  /** A share of the machine's disk, by the operator's `diskRequestRatio`. */
  diskBytes: number;
  /** `TCP/8822` */
  ports: string[];
}

/** The host's capacity for machines. `slots` is undefined until the operator has set them. */
export interface HostCapacity {
  slots: number | undefined;
  cpuMillis: number;
  memoryBytes: number;
  diskBytes: number;
}

/** How a machine ended that nobody asked to end. */
export interface MachineEnd {
  /** HostLost: together with the agent or the host. */
  how: 'GuestShutdown' | 'Crashed' | 'HostLost';
  /** The hypervisor's last words. */
  message: string;
  /** Milliseconds since the epoch. */
  at: number;
}

/** Why a machine will never run again. */
export interface MachineFailure {
  reason: SaidReason;
  message: string;
  exitCode: number;
  /** Milliseconds that the guest gets to end in order. */
  graceMilliseconds: number;
}

export interface MachineRecord {
  /** The Pod's. */
  uid: string;
  /** The Pod's `namespace/name`. */
  key: string;
  /** Name of the driver that made it, or is to make it. */
  driver: string;
  /** Absent for a folder found on the host that no record names. */
  machine: Machine | undefined;
  claim: Claim;
  /** The disk is complete. */
  created: boolean;
  base: BaseImage | undefined;
  isoPath: string | undefined;
  /** The machine's own user, from its making until nothing of it is left; undefined where the agent is not root. */
  runAs: RunAs | undefined;
  /** The hypervisor is meant to have a process. */
  running: boolean;
  /** It has run at least once. */
  everRan: boolean;
  /** The API server has taken a status that said Running: from then on losing the disk is losing data. */
  acknowledged: boolean;
  /** Process and network attachment are gone, and no start has been tried since. */
  released: boolean;
  /** RFC 3339; the present or last run. */
  startedAt: string | undefined;
  /** RFC 3339; when a failed or deleted machine was gone. */
  finishedAt: string | undefined;
  /** The end asked for took more than its grace. */
  killed: boolean;
  /** The size of the machine that runs or is suspended; it may be more or less than is claimed for the next start. */
  startedWith: { cpu: number; memoryBytes: number } | undefined;
  end: MachineEnd | undefined;
  /** Unasked ends in a row, for the back-off. */
  endsInARow: number;
  restarts: number;
  restartedAt: string | undefined;
  revertedAt: string | undefined;
  failure: MachineFailure | undefined;
}

export function newRecord(
  o: Pick<MachineRecord, 'uid' | 'key' | 'driver' | 'machine' | 'claim'>,
): MachineRecord {
  return {
    ...o,
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

/** A Pod's demands on its machine at one moment. */
export interface Wanted {
  /** Undefined when it is gone. */
  pod: Readonly<Pod> | undefined;
  /** Undefined when the Pod is gone or cannot be read: then nothing changes but the machine's end. */
  desired: Desired | undefined;
  /** Acknowledges `desired`. */
  desiredHash: string | undefined;
  /** The Pod is being deleted or is gone; the machine has until `deadline` (milliseconds since the epoch) to end in order. */
  deletion: { deadline: number } | undefined;
  /** `Pod.spec.activeDeadlineSeconds` ends here, in milliseconds since the epoch. */
  activeDeadline: number | undefined;
  /** `Pod.spec.terminationGracePeriodSeconds`. */
  graceMilliseconds: number;
}

/** People read it in the STATUS column and in the VM's phase. */
export type MachinePhase =
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

/** The next thing to do with a machine. */
export type Step =
  /** Everything is as wanted. */
  | { kind: 'settled' }
  | { kind: 'wait'; until: number | undefined; noRoomToSuspend?: string }
  /** Facts to remember; then plan again. */
  | { kind: 'note'; change: Partial<MachineRecord> }
  | { kind: 'fail'; failure: MachineFailure }
  /** Fetch the image and make the disk. */
  | { kind: 'create' }
  | { kind: 'start' }
  | { kind: 'stop'; graceMilliseconds: number }
  /** The guest stands still, for want of room on the host's disk, and goes on. */
  | { kind: 'pause' }
  | { kind: 'unpause' }
  | { kind: 'suspend' }
  | { kind: 'resume' }
  | { kind: 'revert' }
  /** End the process and give back its network, keep the disk. */
  | { kind: 'release'; graceMilliseconds: number }
  /** Delete the folder, disk included. */
  | { kind: 'remove' };

/** Steps that take long. */
export type OperationKind = Exclude<Step['kind'], 'settled' | 'wait' | 'note' | 'fail'>;

/** A step under way; a machine never has a second one beside it. */
export interface Operation extends Pick<Wanted, 'pod' | 'desired' | 'graceMilliseconds'> {
  readonly kind: OperationKind;
  phase: MachinePhase;
  progressPercent: number | undefined;
  /** Gives up the operation if that is possible, as with a download. */
  readonly abort: AbortController;
  /** Ends the grace of a stop. */
  readonly hurry: AbortController;
  /** When the grace of a stop ends by itself, in milliseconds since the epoch. */
  deadline: number | undefined;
  /** The step calls it when phase or progress has changed. */
  readonly changed: () => void;
}

/** A machine with its record: all that this process knows of it. */
export interface Runtime {
  readonly record: MachineRecord;
  readonly folder: MachineFolder;
  operation: Operation | undefined;
  /** Seen at the last look. */
  state: MachineState;
  /** The machine is said to run, and this process has not yet seen it do so. */
  unseen: boolean;
  /** Failures in a row of the present step, the earliest time for its next try, and the trouble to report until then. */
  attempts: number;
  notBefore: number;
  trouble: { reason: Reason | undefined; message: string } | undefined;
  /** The shortest grace seen so far in the Pod's deletion, and when it ends. */
  leaving: { graceSeconds: number; deadline: number } | undefined;
  /** Whether the guest answers as its VM asks; undefined while nobody has asked it. */
  readiness: { ready: boolean; message: string } | undefined;
  /** Undefined while the network has not been looked at. */
  network: NetworkHealth | undefined;
  /** The guest's. */
  address: string | undefined;
}

/** The owner of all machines of this host. */
export interface Runtimes {
  runtime(record: MachineRecord): Runtime;
}

/** `machinesDirectory` has a folder for each machine. */
export function newRuntime(record: MachineRecord, machinesDirectory: string): Runtime {
  return {
    record,
    folder: { path: join(machinesDirectory, record.uid), uid: record.uid },
    operation: undefined,
    state: { kind: 'absent' },
    unseen: record.running,
    attempts: 0,
    notBefore: 0,
    trouble: undefined,
    leaving: undefined,
    readiness: undefined,
    network: undefined,
    address: undefined,
  };
}

/** Devices, and the graphics card's memory. */
const SUSPENDED_DEVICES_BYTES = 64 * 1024 * 1024;
/** QEMU writes eight bytes with each page of 4 KiB; doubled. */
const SUSPENDED_SHARE = 1 / 256;

/** Bytes of the host's disk that the machine's memory takes at most while it is suspended. */
export function suspendedBytes({ startedWith, claim }: Readonly<MachineRecord>): number {
  const memoryBytes = startedWith?.memoryBytes ?? claim.memoryBytes;
  return Math.ceil(memoryBytes * (1 + SUSPENDED_SHARE)) + SUSPENDED_DEVICES_BYTES;
}

/** @throws TypeError when there is none: the planner asks for long steps only of machines that are described. */
export function needed<T>(value: T | undefined): T {
  if (value === undefined) {
    throw new TypeError('a machine without description cannot be worked on');
  }
  return value;
}
