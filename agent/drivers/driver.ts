/** What the agent asks of a hypervisor. One driver per hypervisor; a machine is a folder, keyed by its Pod's uid. */
import type { Machine } from '../../api/v1alpha1/machine.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { BaseImage } from '../disks/disk.ts';
import type { ConsoleLog } from '../machines/console.ts';
import type { RunAs } from '../../base/exec.ts';
import type { GuestNetwork } from '../network/network.ts';

/** `<data directory>/machines/<pod uid>`. */
export interface MachineFolder {
  path: string;
  uid: string;
}

/** A virtual machine. Another kind of guest is another member of {@link MachinePlan.guest}, told apart by its first key. */
export interface VmGuest {
  vm: Machine;
  /** Wanted size of the disk; a smaller disk is grown before the start, never shrunk. undefined: the image's own. */
  diskSizeBytes: number | undefined;
  /** Path of an ISO image, attached as a read-only drive that is tried after the disk. */
  iso: string | undefined;
}

/** All that the disk of a machine follows from. */
export interface MachinePlan {
  guest: VmGuest;
  /** The machine's own user, which the hypervisor becomes; undefined where the agent is not root. */
  runAs?: RunAs | undefined;
}

/** All that a process of a machine follows from. */
export interface LaunchPlan extends MachinePlan {
  cpu: number;
  memoryBytes: number;
  network: GuestNetwork;
}

/** A machine of this host, with the facts that only its folder has when the agent's record of it is lost. */
export interface FoundMachine extends MachineFolder {
  /** The user of its process. */
  runAs: RunAs | undefined;
  /** Path of the image that its disk is a clone of. */
  base: string | undefined;
}

export type MachineState =
  /** No folder. */
  | { kind: 'absent' }
  /** A folder without a process: never started, or stopped on purpose. */
  | { kind: 'stopped' }
  /**
   * `guestStarted`: the virtual CPUs run (the hypervisor said so); what the guest does with them is its own. `paused`: they stand
   * still until {@link Driver.unpause}, by {@link Driver.pause} or because the hypervisor found the disk full.
   */
  | { kind: 'running'; pid: number; guestStarted: boolean; paused: boolean }
  | { kind: 'suspended' }
  /** Ended, and nobody had asked; `message` holds the hypervisor's last words. Stays until the next start. */
  | { kind: 'exited'; reason: ExitReason; message: string };

export type ExitReason = 'GuestShutdown' | 'Crashed';

export interface Accelerator {
  architecture: 'amd64' | 'arm64';
  /** `kvm`, `hvf` or `tcg` (emulation). */
  accelerator: string;
}

export interface CopyOptions {
  target: string;
  signal: AbortSignal;
  /** Called with 0 when the moment that the copy will show is over. */
  onProgress: (percent: number) => void;
}

export interface DiskCopy {
  /**
   * `Stopped`: the machine did not run. `FileSystem`: the guest held its file systems still. `Crash`: as after a loss of
   * power, which also holds for a suspended machine (what its memory held is not in the copy) and one that crashed.
   */
  consistency: 'FileSystem' | 'Crash' | 'Stopped';
  virtualSizeBytes: number;
}

/**
 * The calls for one machine must not overlap: the agent works on one machine one step at a time. All of them may be
 * repeated after an agent died in the middle of one.
 */
export interface Driver {
  readonly name: string;
  /** What this host can run. Each answer was found by starting a guest, within a time limit; remembered until the host's next boot. */
  probe(): Promise<Accelerator[]>;
  /** Makes the folder and the disk: a clone of `base`, at once whatever its size. Without `base` a blank disk of `diskSizeBytes`, or none. */
  create(folder: MachineFolder, plan: MachinePlan, base: BaseImage | undefined): Promise<void>;
  /** Resolves when the hypervisor runs and answers. @throws ReasonedError; then no process is left. */
  start(folder: MachineFolder, plan: LaunchPlan): Promise<void>;
  /**
   * Presses the power button, and after the grace, or once `hurry` aborts (a Pod's grace can be shortened), takes the
   * power away. No process is left when it resolves. A suspended machine loses what was suspended; a paused one has no
   * grace, since its guest hears no power button.
   */
  stop(folder: MachineFolder, options: { graceMilliseconds: number; hurry?: AbortSignal }): Promise<void>;
  /** The guest of a running machine stands still, also over a restart of the agent. A copy of its disk fails. */
  pause(folder: MachineFolder): Promise<void>;
  /** The guest goes on from where it stood still. */
  unpause(folder: MachineFolder): Promise<void>;
  /** To disk: memory and devices go into the folder, the process ends. */
  suspend(folder: MachineFolder): Promise<void>;
  /** Goes on from {@link suspend}, with the cpu and memory it had then. @throws ReasonedError; it stays suspended. */
  resume(folder: MachineFolder, plan: LaunchPlan): Promise<void>;
  /** A stopped machine's disk becomes as {@link create} made it. */
  revert(folder: MachineFolder, plan: MachinePlan, base: BaseImage | undefined): Promise<void>;
  /** How many bytes {@link copyDisk} writes at most, as things stand. */
  copyBytes(folder: MachineFolder): Promise<number>;
  /**
   * The machine's whole disk as a raw file with holes at `target`, an absolute path on any file system, as it was at one
   * moment; the guest runs on. The file is not flushed. It is removed when this rejects: with the signal's reason when that
   * aborted, with a ReasonedError else: `NoMachine` and `NoDisk` when there is nothing
   * to copy, `Interrupted` when the machine stopped, was suspended or ended meanwhile, `CopyFailed`.
   * May overlap with other calls: a second copy, create, start, resume and revert wait for its end; stop, pause and suspend of
   * a running machine, delete and close make it fail, and wait for that.
   */
  copyDisk(folder: MachineFolder, options: CopyOptions): Promise<DiskCopy>;
  /** Ends the process without grace and removes everything. */
  delete(folder: MachineFolder): Promise<void>;
  inspect(folder: MachineFolder): Promise<MachineState>;
  /** Every machine of this driver on this host, also those that an earlier agent made. */
  list(): Promise<FoundMachine[]>;
  /** Called with the uid when the state of a machine may have changed without the agent's doing. */
  onChange(handler: (uid: string) => void): void;
  console(folder: MachineFolder): ConsoleLog;
  /** Lets go of connections and timers of this process; machines run on. */
  close(): Promise<void>;
}

/** Reasons for which a machine does not start. The message of the error has the last words of its hypervisor. */
export type StartReason = Extract<Reason, 'StartFailed' | 'OutOfMemory' | 'PortTaken' | 'DiskInvalid'>;
