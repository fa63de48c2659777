/**
 * What the agent must remember of each machine beyond its own life: one small file per Pod uid. The hypervisor's
 * process, disk and sockets are the driver's; here are the facts that decide what may happen to them.
 */
import type { Machine } from '../../api/v1alpha1/machine.ts';
import type { BaseImage } from '../disks/disk.ts';
import type { RunAs } from '../machines/users.ts';
import type { Claim } from './admission.ts';

/** A guest that still runs ends in order, as with a Pod that is deleted. */
const DAMAGED_GRACE_MILLISECONDS = 30_000;

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
  reason: string;
  message: string;
  exitCode: number;
  /** Milliseconds that the guest gets to end in order. */
  graceMilliseconds: number;
}

/** The agent can neither go on with a machine that it knows nothing of, nor throw its disk away. */
export function recordDamaged(path: string, message: string): MachineFailure {
  return {
    reason: 'RecordDamaged',
    message: `The agent's record of this machine cannot be read (${path}: ${message}). Its disk stays on the host until the VM is deleted`,
    exitCode: 1,
    graceMilliseconds: DAMAGED_GRACE_MILLISECONDS,
  };
}

/** The control plane gave the Pod up: its slot and ports may be another's already. */
export const ENDED_FROM_OUTSIDE: MachineFailure = {
  reason: 'PodEnded',
  message: 'the Pod was ended from outside',
  exitCode: 137,
  graceMilliseconds: 0,
};

export interface MachineRecord {
  uid: string;
  /** The Pod's `namespace/name`. */
  key: string;
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
  /** Of the machine that runs or is suspended; it may be more or less than is claimed for the next start. */
  startedWith: { cpu: number; memoryBytes: number } | undefined;
  end: MachineEnd | undefined;
  /** Unasked ends in a row, for the back-off. */
  endsInARow: number;
  restarts: number;
  restartedAt: string | undefined;
  revertedAt: string | undefined;
  failure: MachineFailure | undefined;
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

export function newRecord(o: {
  uid: string;
  key: string;
  machine: Machine | undefined;
  claim: Claim;
}): MachineRecord {
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

/** The planner asks for these steps only of machines that are described. */
export function needed<T>(value: T | undefined): T {
  if (value === undefined) {
    throw new TypeError('a machine without description cannot be worked on');
  }
  return value;
}
