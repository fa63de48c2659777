/** Defines the agent's interface to hypervisors. Each hypervisor has one driver. Each machine has one folder, named by its Pod's uid. */
import type { Duplex } from 'node:stream';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import type { GuestFacts, Machine } from '../../api/v1alpha1/machine.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { BaseImage } from '../disks/disk.ts';
import type { ConsoleLog } from '../console/store.ts';
import type { RunAs } from '../../base/exec.ts';
import type { GuestNetwork, NamespaceNetwork } from '../network/network.ts';
import type { SeedFiles } from '../seed/files.ts';

/** Folder of a machine: `<data directory>/machines/<pod uid>`. */
export interface MachineFolder {
  path: string;
  uid: string;
}

/** Guest that is a virtual machine. */
export interface VmGuest {
  vm: Machine;
  /**
   * Wanted size of the disk in bytes. A smaller disk is grown before the start; a larger disk is not shrunk. If undefined, the disk has
   * the size of its image.
   */
  diskSizeBytes: number | undefined;
  /** Path of an ISO image. The guest gets it as a read-only drive. The firmware boots from it if the disk does not boot. */
  iso: string | undefined;
}

/** Guest that is an Android emulator. */
export interface EmulatorGuest {
  emulator: EmulatorMachine;
}

/** All values that determine the disk of a machine. */
export interface MachinePlan<Guest = VmGuest | EmulatorGuest> {
  guest: Guest;
  /** Linux user of this machine alone, as which its hypervisor runs; undefined if the agent is not root. */
  runAs?: RunAs | undefined;
}

interface GuestSize {
  cpu: number;
  memoryBytes: number;
}

/** All values that determine the process of a VM's machine. */
export interface VmLaunchPlan extends MachinePlan<VmGuest>, GuestSize {
  network: GuestNetwork;
  /** Files of the machine's seed. Undefined if the machine has none. A resume does not read it, but uses the files of its start. */
  seed?: SeedFiles | undefined;
  /** Address and port of this host on which the screen is served, and the file with its password, relative to the machine's folder. */
  vnc?: { address: string; port: number; passwordFile: string } | undefined;
}

/** All values that determine the process of an emulator. */
export interface EmulatorLaunchPlan extends MachinePlan<EmulatorGuest>, GuestSize {
  network: NamespaceNetwork;
}

/** All values that determine the disk of a VM's machine. */
export type VmPlan = MachinePlan<VmGuest>;

export type LaunchPlan = VmLaunchPlan | EmulatorLaunchPlan;

/**
 * A machine of this host, with values from its folder. If the agent's record of the machine is lost, the values are only in the
 * folder.
 */
export interface FoundMachine extends MachineFolder {
  /** Linux user of the machine's process. */
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
   * The hypervisor runs. `guestStarted` means that the hypervisor reported running virtual CPUs; the guest's system may not work yet.
   * `paused` means that the virtual CPUs stand still until {@link Driver.unpause}. The cause is {@link Driver.pause}, or a write of
   * the guest while the host's disk was full. `display` is absent if the VM asks for no display, or before the driver knows its state.
   */
  | { kind: 'running'; pid: number; guestStarted: boolean; paused: boolean; display?: DisplayState }
  | { kind: 'suspended' }
  /**
   * The machine ended without a request. `message` has the last lines of the hypervisor's log. The machine stays in this state until
   * its next start.
   */
  | { kind: 'exited'; reason: ExitReason; message: string };

/** Whether the guest has the display that its VM asks for. `message` is a sentence for people. */
export type DisplayState =
  | { ready: true; reason: 'DisplaySet'; message: string }
  | { ready: false; reason: 'NoDPI' | 'ScreenCropped'; message: string };

export type ExitReason = 'GuestShutdown' | 'Crashed';

export interface Accelerator {
  architecture: 'amd64' | 'arm64';
  /** Name of the accelerator: `kvm`, `hvf` or `tcg` (emulation). */
  accelerator: string;
}

export interface CopyOptions {
  target: string;
  signal: AbortSignal;
  /** Called with 0 when the moment that the copy shows has passed: the copy will not contain later writes of the guest. */
  onProgress: (percent: number) => void;
}

export interface DiskCopy {
  /**
   * State of the copied disk. `Stopped` means that the machine did not run. `FileSystem` means that the guest had frozen its file
   * systems. `Crash` means a state as after a loss of power. This includes a machine that crashed, and a suspended machine, whose
   * memory is not in the copy.
   */
  consistency: 'FileSystem' | 'Crash' | 'Stopped';
  virtualSizeBytes: number;
}

/** Refusal of a stream to a machine. The message is a sentence for the person who wants the stream. */
export class StreamRefused extends Error {
  override readonly name = 'StreamRefused';
}

/** Question to a guest agent: whether it answers, and if `facts` is true, also for facts about the guest. */
export interface GuestQuestion {
  facts: boolean;
  signal: AbortSignal;
}

/** Answer to a question to a guest agent. */
export type GuestAnswer =
  /** The guest agent answers. `facts` is undefined if the caller did not ask for facts. */
  | { kind: 'answers'; facts: GuestFacts | undefined }
  | { kind: 'silent' }
  /** The question was not asked, because others use the guest agent, or because the guest is paused. */
  | { kind: 'busy' };

/** Command that the guest agent runs in a guest. */
export interface GuestCommand {
  /** Program: an absolute path, or a name that the guest searches in its `PATH`. */
  path: string;
  arguments: readonly string[];
  /** Standard input, at most 1 MiB. */
  input?: Buffer;
  /** Ends the wait for the command. The command continues in the guest. */
  signal: AbortSignal;
}

export interface GuestCommandResult {
  /** Exit code of the command, or 128 plus the number of the signal that ended the command. */
  exitCode: number;
  stdout: Buffer;
  stderr: Buffer;
  /** Whether the output is incomplete. It is cut at nearly 4 MiB for each stream. */
  truncated: boolean;
}

/** TCP port of the host's loopback address that leads to a port of a guest. */
export interface PortForward {
  port: number;
  /** Removes the forward. Connections through the port stay open until one of their ends closes them. Never rejects. */
  close(): Promise<void>;
}

/** System images for emulators on this host, by {@link systemImageName}, or the reason why the host runs no emulators. */
export type EmulatorOffer =
  | { kind: 'offered'; systemImages: readonly string[] }
  | { kind: 'none'; message: string };

/**
 * A driver of one hypervisor. Calls for one machine must not overlap, because the agent does one step of a machine at a time.
 * If the agent dies during a call, the next agent may repeat the call.
 */
export interface Driver {
  readonly name: string;
  /**
   * Creates the machine's folder and disk. The disk is a clone of `base`, which takes no longer for a large base. Without `base` the
   * disk is blank and has `diskSizeBytes`. If that is undefined too, the machine has no disk.
   */
  create(folder: MachineFolder, plan: MachinePlan, base: BaseImage | undefined): Promise<void>;
  /**
   * Starts the machine. Resolves when its hypervisor runs and answers. After an error no process is left. @throws ReasonedError when
   * the machine does not start.
   */
  start(folder: MachineFolder, plan: LaunchPlan): Promise<void>;
  /**
   * Ends a machine. Asks the guest agent first, if there is one, to shut the guest down. Presses the guest's power button if the guest
   * still runs. If the process still runs after the grace period, the driver ends it. The signal `hurry` ends the grace period early,
   * because a Pod's grace can be shortened. No process is left when the promise resolves. A suspended machine loses its suspended
   * memory. A paused machine has no grace, because its guest does not react to the power button.
   */
  stop(folder: MachineFolder, options: { graceMilliseconds: number; hurry?: AbortSignal }): Promise<void>;
  /** Pauses the guest of a running machine. The guest stays paused even if the agent restarts. A copy of its disk under way fails. */
  pause(folder: MachineFolder): Promise<void>;
  /** Continues a paused guest from the point at which it was stopped. */
  unpause(folder: MachineFolder): Promise<void>;
  /** Suspends a machine to disk: writes its memory and the state of its devices into the machine's folder, and ends its process. */
  suspend(folder: MachineFolder): Promise<void>;
  /**
   * Continues a machine after {@link suspend}, with the CPU and memory size that it had then. After an error the machine is still
   * suspended. @throws ReasonedError when the machine does not resume.
   */
  resume(folder: MachineFolder, plan: LaunchPlan): Promise<void>;
  /** Creates the disk of a stopped machine again, as {@link create} does. */
  revert(folder: MachineFolder, plan: MachinePlan, base: BaseImage | undefined): Promise<void>;
  /** Returns an upper limit of the bytes that {@link copyDisk} would write if it were called now. */
  copyBytes(folder: MachineFolder): Promise<number>;
  /**
   * Copies the machine's whole disk, as it is at one moment, into a raw file with holes. `target` is the file's absolute path, on any
   * file system. The guest continues meanwhile. The file is not flushed, and it is removed when the promise rejects.
   *
   * Other calls may come during a copy. A second copy, create, start, unpause, resume and revert wait until the copy ends. Stop, pause
   * and suspend of a running machine, delete and close make the copy fail, and wait until it has ended.
   *
   * @throws the signal's reason when the signal aborted.
   * @throws ReasonedError `NoMachine` or `NoDisk` when there is nothing to copy; `Interrupted` when the machine stopped, was suspended
   * or ended meanwhile; `CopyFailed` in all other cases.
   */
  copyDisk(folder: MachineFolder, options: CopyOptions): Promise<DiskCopy>;
  /**
   * Removes the files and the user of a machine that has failed for good and has no process. Its log stays. Absent in drivers whose
   * machines keep their disks after a failure.
   */
  discard?(folder: MachineFolder): Promise<void>;
  /** Ends the machine's process without grace and removes all files of the machine. */
  delete(folder: MachineFolder): Promise<void>;
  inspect(folder: MachineFolder): Promise<MachineState>;
  /** Returns every machine of this driver on this host, also machines that an earlier agent created. */
  list(): Promise<FoundMachine[]>;
  /** Registers a handler, called with a machine's uid when its state may have changed without a step of the agent. */
  onChange(handler: (uid: string) => void): void;
  console(folder: MachineFolder): ConsoleLog;
  /**
   * Connects to the serial console of a running machine. The stream gives what the guest prints from now on, and takes what the guest
   * reads if `input` is true. A machine has any number of readers, but only one of them has input. The stream ends with the
   * machine's process. A reader who is too slow gets an error, because the guest must not wait for readers.
   *
   * @throws StreamRefused when the machine does not run, another stream has the input, or an agent without consoles for input started
   * the machine.
   */
  connectConsole(folder: MachineFolder, options: { input: boolean }): Promise<Duplex>;
  /** Connects to the VNC server of a running machine. @throws StreamRefused when the machine does not run or has no screen. */
  connectScreen(folder: MachineFolder): Promise<Duplex>;
  /**
   * Opens a port on the host's loopback address that leads to a TCP port of the guest, until the caller closes the forward. It is
   * for guests in a network inside the hypervisor, which have no address on the host.
   *
   * @throws StreamRefused when the machine does not run, its network is not inside the hypervisor, or it has too many forwards.
   */
  forwardPort(folder: MachineFolder, guestPort: number): Promise<PortForward>;
  /**
   * Asks the guest agent of a running machine. The call may come during other calls. All other uses of the guest agent go first. An
   * error means that no guest agent answered, and states the reason.
   */
  askGuest(folder: MachineFolder, question: GuestQuestion): Promise<GuestAnswer>;
  /**
   * Runs a command in the guest by its guest agent, and resolves when the command has ended. The output comes at the end, because a
   * guest agent has no streams. Several commands may run at once, also during other calls.
   *
   * @throws StreamRefused when the machine does not run, no guest agent answers, or the guest agent refuses the command; the signal's
   * reason when the signal aborted.
   */
  execute(folder: MachineFolder, command: GuestCommand): Promise<GuestCommandResult>;
  /** Closes connections and timers of this process; machines continue to run. */
  close(): Promise<void>;
}

/** A driver of VMs. A driver of emulators runs only guests of the host's own architecture. */
export interface DriverOfVMs extends Driver {
  /**
   * Returns the guest architectures that this host can run, with their accelerators. Each was tested with a small guest, within a
   * time limit. The results are saved until the host's next boot.
   */
  probe(): Promise<Accelerator[]>;
}

/** Reasons of a failed start. The error's message contains the last lines of the hypervisor's log. */
export type StartReason = Extract<
  Reason,
  'StartFailed' | 'OutOfMemory' | 'PortTaken' | 'DiskInvalid' | 'SystemImageMissing' | 'AccelerationMissing'
>;
