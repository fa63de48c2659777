/** The agent's interface to a hypervisor. Each hypervisor has one driver; a machine is a folder, keyed by its Pod's uid. */
import type { Machine } from '../../api/v1alpha1/machine.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { BaseImage } from '../disks/disk.ts';
import type { ConsoleLog } from '../console/store.ts';
import type { RunAs } from '../../base/exec.ts';
import type { GuestNetwork } from '../network/network.ts';

/** Folder of a machine: `<data directory>/machines/<pod uid>`. */
export interface MachineFolder {
  path: string;
  uid: string;
}

/** A virtual machine as the guest of a plan. The key `vm` tells this kind of guest from others that {@link MachinePlan.guest} may get. */
export interface VmGuest {
  vm: Machine;
  /**
   * Wanted size of the disk. A smaller disk is grown before the start and never shrunk. If undefined, the disk has the size of
   * its image.
   */
  diskSizeBytes: number | undefined;
  /** Path of an ISO image. The guest gets it as a read-only drive, which the firmware tries after the disk. */
  iso: string | undefined;
}

/** All values that determine the disk of a machine. */
export interface MachinePlan {
  guest: VmGuest;
  /** User of this machine alone, which the hypervisor becomes; undefined if the agent is not root. */
  runAs?: RunAs | undefined;
}

/** All values that determine the process of a machine. */
export interface LaunchPlan extends MachinePlan {
  cpu: number;
  memoryBytes: number;
  network: GuestNetwork;
}

/**
 * A machine of this host, with facts from its folder. No other place has these facts if the agent's record of the machine is
 * lost.
 */
export interface FoundMachine extends MachineFolder {
  /** User of the machine's process. */
  runAs: RunAs | undefined;
  /** Path of the image from which the machine's disk was cloned. */
  base: string | undefined;
}

export type MachineState =
  /** The machine has no folder. */
  | { kind: 'absent' }
  /** The machine has a folder and no process. It was never started, or it was stopped on purpose. */
  | { kind: 'stopped' }
  /**
   * The hypervisor runs. `guestStarted` means that the hypervisor reported running virtual CPUs; the work of the guest is
   * unknown. `paused` means that the virtual CPUs stand still until {@link Driver.unpause}. The reason is {@link Driver.pause},
   * or a full disk that the hypervisor found.
   */
  | { kind: 'running'; pid: number; guestStarted: boolean; paused: boolean }
  | { kind: 'suspended' }
  /**
   * The machine ended, and no end was requested. `message` holds the hypervisor's last words. The state stays until the next
   * start.
   */
  | { kind: 'exited'; reason: ExitReason; message: string };

export type ExitReason = 'GuestShutdown' | 'Crashed';

export interface Accelerator {
  architecture: 'amd64' | 'arm64';
  /** Name of the accelerator: `kvm`, `hvf` or `tcg` (emulation). */
  accelerator: string;
}

export interface CopyOptions {
  target: string;
  signal: AbortSignal;
  /** Called with 0 when the moment that the copy shows is over. */
  onProgress: (percent: number) => void;
}

export interface DiskCopy {
  /**
   * State of the copied disk. `Stopped` means that the machine did not run. `FileSystem` means that the guest held its file
   * systems still. `Crash` means a state as after a loss of power. This includes a machine that crashed, and a suspended machine,
   * whose memory is not in the copy.
   */
  consistency: 'FileSystem' | 'Crash' | 'Stopped';
  virtualSizeBytes: number;
}

/**
 * A driver of one hypervisor. Calls for one machine must not overlap, because the agent does one step of a machine at a time.
 * Every call may be repeated after an agent died during it.
 */
export interface Driver {
  readonly name: string;
  /**
   * Returns the kinds of guests that this host can run. A guest was started for each answer, within a time limit. The answers are
   * remembered until the host's next boot.
   */
  probe(): Promise<Accelerator[]>;
  /**
   * Creates the folder and the disk. The disk is a clone of `base`, which takes no longer for a large base. Without `base` it is
   * a blank disk of `diskSizeBytes`. If that is undefined too, the machine has no disk.
   */
  create(folder: MachineFolder, plan: MachinePlan, base: BaseImage | undefined): Promise<void>;
  /**
   * Resolves when the hypervisor runs and answers. After an error no process is left. @throws ReasonedError when the machine does
   * not start.
   */
  start(folder: MachineFolder, plan: LaunchPlan): Promise<void>;
  /**
   * Presses the power button. After the grace the driver ends the process, or earlier when `hurry` aborts, because a Pod's grace
   * can be shortened. No process is left when the promise resolves. A suspended machine loses its suspended memory. A paused
   * machine has no grace, because its guest does not react to the power button.
   */
  stop(folder: MachineFolder, options: { graceMilliseconds: number; hurry?: AbortSignal }): Promise<void>;
  /** Pauses the guest of a running machine. The guest stands still also over a restart of the agent. A copy of its disk fails. */
  pause(folder: MachineFolder): Promise<void>;
  /** Continues a paused guest from the point at which it was stopped. */
  unpause(folder: MachineFolder): Promise<void>;
  /** Suspends a machine to disk: writes its memory and devices into the folder and ends the process. */
  suspend(folder: MachineFolder): Promise<void>;
  /**
   * Continues a machine after {@link suspend}, with the cpu and memory of that time. After an error the machine is still
   * suspended. @throws ReasonedError when the machine does not resume.
   */
  resume(folder: MachineFolder, plan: LaunchPlan): Promise<void>;
  /** Makes the disk of a stopped machine again, as {@link create} does. */
  revert(folder: MachineFolder, plan: MachinePlan, base: BaseImage | undefined): Promise<void>;
  /** Returns the number of bytes that {@link copyDisk} would write at most at present. */
  copyBytes(folder: MachineFolder): Promise<number>;
  /**
   * Copies the machine's whole disk, as it is at one moment, into a raw file with holes at `target`. This is an absolute path on
   * any file system. The guest continues meanwhile. The file is not flushed, and it is removed when the promise rejects.
   *
   * A call may overlap with other calls. A second copy, create, start, resume and revert wait for its end. Stop, pause and
   * suspend of a running machine, delete and close make the copy fail, and wait for its end.
   *
   * @throws the reason of the signal when that aborted, otherwise a ReasonedError: `NoMachine` or `NoDisk` when there is nothing
   * to copy, `Interrupted` when the machine stopped, was suspended or ended meanwhile, `CopyFailed` in all other cases.
   */
  copyDisk(folder: MachineFolder, options: CopyOptions): Promise<DiskCopy>;
  /** Ends the process without grace and removes all files. */
  delete(folder: MachineFolder): Promise<void>;
  inspect(folder: MachineFolder): Promise<MachineState>;
  /** Returns every machine of this driver on this host, also machines that an earlier agent created. */
  list(): Promise<FoundMachine[]>;
  /** Registers a handler. It is called with the uid when a machine's state may have changed without a step of the agent. */
  onChange(handler: (uid: string) => void): void;
  console(folder: MachineFolder): ConsoleLog;
  /** Closes connections and timers of this process; machines continue to run. */
  close(): Promise<void>;
}

/** Reasons of a failed start. The error's message contains the last words of the machine's hypervisor. */
export type StartReason = Extract<Reason, 'StartFailed' | 'OutOfMemory' | 'PortTaken' | 'DiskInvalid'>;
