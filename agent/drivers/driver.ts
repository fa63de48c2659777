/** The agent's interface to hypervisors. Each kind of hypervisor has one driver. Each machine has one folder, named by its Pod's uid. */
import type { Duplex } from 'node:stream';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import type { GuestFacts, Machine } from '../../api/v1alpha1/machine.ts';
import type { RunAs } from '../../base/exec.ts';
import type { ConsoleLog } from '../console/store.ts';
import type { BaseImage, MachineFiles, MemoryFiles } from '../disks/disk.ts';
import type { GuestNetwork, NamespaceNetwork } from '../network/network.ts';
import type { SeedFiles } from '../seed/seed.ts';
import { join } from 'node:path';

/** Name of the folder of {@link memoryWorkFolder}. */
export const MEMORY_WORK = 'image-memory';

/** State of a machine whose hypervisor runs. */
export interface RunningState {
  kind: 'running';
  pid: number;
  /**
   * Whether the virtual CPUs run, as far as the driver knows. The operating system of the guest has perhaps not booted yet.
   */
  guestStarted: boolean;
  /**
   * Whether the virtual CPUs are stopped until the driver's `unpause`. The cause is a call of `pause`, or a write of the guest that failed
   * because the host's disk is full.
   */
  paused: boolean;
  /** Absent if the VM asks for no display, or if the driver does not know the display's state yet. */
  display?: DisplayState;
  /** Absent if the hypervisor gives each guest exactly the identity of its VM. */
  identity?: IdentityState;
  /** Absent if the VM has no SSH keys, or if its guest reads them from its seed. */
  keys?: KeysState;
  /** Why the guest cannot be suspended, as a sentence for people. Absent if it can. */
  cannotSuspend?: string;
  /**
   * Accelerator with which the process was started. It can differ from the present accelerators of the host. Absent if the driver does not
   * know it.
   */
  accelerator?: string;
  /** True if the guest was started from the memory of its image. Absent otherwise. */
  fromMemory?: true;
}

/** Whether the guest has the display that its VM asks for. `message` is a sentence for people. */
export type DisplayState =
  | { ready: true; reason: 'DisplaySet'; message: string }
  | { ready: false; reason: 'NoDPI' | 'ScreenCropped'; message: string };

/** Whether the guest has the identity that its VM asks for. `message` is a sentence for people. */
export type IdentityState =
  | { ready: true; reason: 'IdentityNew'; message: string }
  | { ready: false; reason: 'IdentityOfImage' | 'IdentityOfHypervisor'; message: string };

/** Whether the guest has the SSH keys of its VM, if its guest agent has to give them to it. `message` is a sentence for people. */
export type KeysState =
  | { ready: true; reason: 'KeysGiven'; message: string }
  | { ready: false; reason: 'KeysNotGiven'; message: string };

/** Folder of a machine: `<data directory>/machines/<pod uid>`. */
export interface MachineFolder {
  path: string;
  uid: string;
}

/** Guest that is a virtual machine. */
export interface VmGuest {
  vm: Machine;
  /**
   * Wanted size of the disk in bytes. A smaller disk is grown before the start, and a missing disk is made. A larger disk is not shrunk. If
   * undefined, the disk has the size of its image.
   */
  diskSizeBytes: number | undefined;
  /** ISO image, which the guest gets as a read-only drive. The firmware boots from this drive if the disk does not boot. */
  iso: Pick<BaseImage, 'path' | 'format'> | undefined;
}

/** Guest that is an Android emulator. */
export interface EmulatorGuest {
  emulator: EmulatorMachine;
}

/** All values that determine the disk of a machine. */
export interface MachinePlan<Guest = VmGuest | EmulatorGuest> {
  guest: Guest;
  /** Linux user of the machine's hypervisor. No other machine has this user. Undefined if the agent is not root. */
  runAs?: RunAs | undefined;
}

interface GuestSize {
  cpu: number;
  memoryBytes: number;
}

/** All values that determine the process of a VM's machine. */
export interface VmLaunchPlan extends MachinePlan<VmGuest>, GuestSize {
  network: GuestNetwork;
  /**
   * Files of the machine's seed (its data for cloud-init or Ignition). Undefined if the machine has no seed. A resume ignores this field
   * and uses the files of the machine's last start.
   */
  seed?: SeedFiles | undefined;
  /** Address and port at which this host serves the screen. `passwordFile` is a path relative to the machine's folder. */
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
 * A machine of this host, with values that the driver reads from the machine's folder. If the agent's record of the machine is lost, only
 * the folder has these values.
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
  /** The machine has a folder, but no process. The machine was never started, or the agent stopped it. */
  | { kind: 'stopped' }
  | RunningState
  | { kind: 'suspended' }
  /**
   * The machine ended, but the agent did not request the end. `message` contains the last lines of the hypervisor's log. The machine stays
   * in this state until the agent starts or stops it.
   */
  | { kind: 'exited'; reason: ExitReason; message: string };

export type ExitReason = 'GuestShutdown' | 'Crashed';

export type Architecture = 'amd64' | 'arm64';

export interface Accelerator {
  architecture: Architecture;
  /** Name of the accelerator: `kvm`, `hvf` or `tcg` (emulation). */
  accelerator: string;
}

export interface StopOptions {
  graceMilliseconds: number;
  /** Signal that ends the grace period early, for example when a user shortens the grace period of the Pod. */
  hurry?: AbortSignal;
  /** Signal that nothing of the machine is needed any more, so that a program that hangs is killed soon. */
  discard?: AbortSignal;
  /**
   * If true, the process ends even if the system cannot read the machine's state file. By default, the stop then fails, because a later
   * attempt can perhaps read the file. A state file with damaged content never prevents the stop.
   */
  ignoresReadErrors?: boolean;
}

export interface InspectOptions {
  /** Whether nothing of the machine is needed any more. */
  isDiscarded: boolean;
}

/** Returns the folder in which a driver works on the memory of a running machine. The memory of a snapshot leaves it when it is complete. */
export function memoryWorkFolder({ path }: MachineFolder): string {
  return join(path, MEMORY_WORK);
}

export interface CopyOptions {
  target: string;
  /** Paths of the files for the memory of a running machine. If absent, only the disk is copied. */
  memory?: Pick<MemoryFiles, 'ram' | 'state'>;
  /** Paths for the files that the machine has beside its disk. A driver whose machines have none ignores them. */
  machine?: MachineFiles;
  /** Uid of the snapshot whose disk is copied. If absent, the present disk is copied. */
  snapshot?: string | undefined;
  signal: AbortSignal;
  /** Called with a sentence at the beginning of each part of the work on the memory. */
  onStep?: (what: string) => void;
  /** Called with the progress in percent, first with 0. After this first call, the guest's writes no longer change the copy. */
  onProgress: (percent: number) => void;
}

export interface DiskCopy {
  /**
   * State of the copied disk. `Stopped` means that the machine did not run. `FileSystem` means that the guest had frozen its file systems.
   * `Crash` means that the disk is in the same state as after a loss of power. A copy of a crashed machine has the value `Crash`. A copy of
   * a suspended machine has this value too, because the copy does not contain the machine's memory.
   */
  consistency: 'FileSystem' | 'Crash' | 'Stopped';
  virtualSizeBytes: number;
  /** Set if the memory was copied. Disk and memory are of the same moment. */
  memory?: MemoryFiles;
  /** Set if the machine has files beside its disk. */
  machine?: MachineFiles;
}

/** A snapshot of a machine's disk, and perhaps of its memory. It stays with the machine. */
export interface DiskSnapshot {
  /** RFC 3339 time of the moment that the snapshot shows. */
  takenAt: string;
  consistency: DiskCopy['consistency'];
  sizeBytes: number;
  /** Bytes on the disk of the host that only the snapshot needed when it was taken. */
  storageBytes: number;
  /** Size of the saved memory, and the number of processors. Absent if the snapshot has only the disk. */
  memory?: { cpu: number; bytes: number };
}

/** Why a machine does not start from the memory of its image. */
export type WarmStartObstacle = 'SizeDiffers' | 'KeyDiffers' | 'NotSupported' | 'RenewalFailed';

/** Error for a machine that does not start from memory. The message is a sentence for the owner of the VM. */
export class WarmStartRefused extends Error {
  override readonly name = 'WarmStartRefused';
  readonly reason: WarmStartObstacle;

  constructor(reason: WarmStartObstacle, message: string) {
    super(message);
    this.reason = reason;
  }
}

/** Error for a refused stream or command. The message is a sentence for the user who requested the stream or command. */
export class StreamRefused extends Error {
  override readonly name = 'StreamRefused';
}

/** Messages of {@link StreamRefused} that all drivers have. */
export const NOT_RUNNING = 'The machine is not running';
export const NO_SCREEN = 'This machine has no screen. Set vnc.enabled to true, and restart the machine';
export const PICTURE_BUSY = 'Another picture of this screen is being made; try again';

/** Question that checks whether a guest agent answers. If `facts` is true, the question also asks for facts about the guest. */
export interface GuestQuestion {
  facts: boolean;
  signal: AbortSignal;
}

/** Result of a {@link GuestQuestion}. */
export type GuestAnswer =
  /** The guest agent answers. `facts` is undefined if the caller did not ask for facts. */
  | { kind: 'answers'; facts: GuestFacts | undefined }
  | { kind: 'silent' }
  /** There is no answer, because other work uses the guest agent, the guest is paused, or the question was interrupted. */
  | { kind: 'busy' };

/** Command that the guest agent runs in a guest. */
export interface GuestCommand {
  /** Program: an absolute path, or a name that the guest looks up in its `PATH`. */
  path: string;
  arguments: readonly string[];
  /** Standard input, at most 1 MiB. */
  input?: Buffer;
  /** Reserves memory for further bytes of output. Returns false if no memory is left for them. The output is then cut. */
  reserve: (bytes: number) => boolean;
  /** If this signal aborts, the caller no longer waits for the command, but the command continues in the guest. */
  signal: AbortSignal;
}

export type Reserve = GuestCommand['reserve'];
export interface GuestCommandResult {
  /** Exit code of the command, or 128 plus the number of the signal that ended the command. */
  exitCode: number;
  stdout: readonly Buffer[];
  stderr: readonly Buffer[];
  /** Whether the output is incomplete. The output of each stream is cut at nearly 4 MiB, or when no memory is left for it. */
  truncated: boolean;
}

/** A forward passes TCP connections from a host port on the loopback address to a guest port. `port` is the host port. */
export interface PortForward {
  port: number;
  /** Removes the forward. Connections through the forward stay open until the caller or the guest closes them. Never rejects. */
  close(): Promise<void>;
}

/** Names of this host's system images for emulators (see {@link systemImageName}), or the reason why the host runs no emulators. */
export type EmulatorOffer =
  | { kind: 'offered'; systemImages: readonly string[] }
  | { kind: 'none'; message: string };

/**
 * A driver of one hypervisor. Calls for one machine must not overlap, unless a function below allows this. If the agent dies during a call,
 * the agent can repeat the call after its restart.
 */
export interface Driver {
  readonly name: string;
  /**
   * Creates the machine's folder and disk. The disk is a clone of `base`. The time for a clone does not depend on the size of `base`.
   * Without `base`, the disk is blank and has the size `diskSizeBytes`. If `diskSizeBytes` is undefined too, the machine has no disk. If the
   * image of the VM is an IPSW, the driver installs macOS on the disk, which takes long. The signal ends this installation early.
   */
  create(
    folder: MachineFolder,
    plan: MachinePlan,
    base: BaseImage | undefined,
    signal?: AbortSignal,
  ): Promise<void>;
  /**
   * Starts the machine. Resolves when its hypervisor answers. After an error no process is left. The signal can end the start early.
   *
   * @throws ReasonedError on a failure; the signal's reason when the signal has ended the start.
   */
  start(folder: MachineFolder, plan: LaunchPlan, signal?: AbortSignal): Promise<void>;
  /**
   * Ends a machine. First asks the guest agent, if any, to shut the guest down. If the guest continues to run, the driver presses the
   * guest's power button. Ends the process if it still runs after the grace period, even if the machine's state file is damaged. A
   * suspended machine loses its saved memory. A paused machine has no grace period, because its guest ignores the power button.
   */
  stop(folder: MachineFolder, options: StopOptions): Promise<void>;
  /**
   * Pauses the guest of a running machine. The guest stays paused even if the agent restarts. If a copy of the machine's disk is under way,
   * the copy fails.
   */
  pause(folder: MachineFolder): Promise<void>;
  /** Continues a paused guest from the point at which it was paused. */
  unpause(folder: MachineFolder, signal?: AbortSignal): Promise<void>;
  /** Ends the machine's process without a grace period, and removes all files of the machine, even if its state file is unreadable. */
  delete(folder: MachineFolder): Promise<void>;
  /**
   * Returns the state of the machine. First completes or cancels a step that the agent had begun when it died. If the machine is discarded,
   * a program that hangs delays the inspection only shortly.
   *
   * @throws UnreadableFileError when the machine's state file cannot be read.
   */
  inspect(folder: MachineFolder, options?: InspectOptions): Promise<MachineState>;
  /** Returns every machine of this driver on this host. The list includes machines that the agent created before its restart. */
  list(): Promise<FoundMachine[]>;
  /**
   * Registers a handler. The driver calls it with a machine's uid if the machine's state might have changed without a call to the driver.
   */
  onChange(handler: (uid: string) => void): void;
  console(folder: MachineFolder): ConsoleLog;
  /** Closes the agent's connections to machines, and its timers. The machines continue to run. */
  close(): Promise<void>;
}

/** A driver of VMs. Emulators have none of its additional functions. */
export interface DriverOfVMs extends Driver {
  /**
   * Returns the guest architectures that this host can run, and their accelerators. Tries each accelerator with a small guest. Saves the
   * results. They are valid until the host boots again, or the hypervisor or the agent's rights change. After a failure of an accelerator,
   * they are valid for at most an hour.
   */
  probe(): Promise<Accelerator[]>;
  /**
   * Returns whether the machine has a live process. This function changes nothing, so it may run at the same time as other functions of the
   * driver.
   */
  hasProcess(folder: MachineFolder): Promise<boolean>;
  /** Suspends a machine to disk: writes its memory and the state of its devices into the machine's folder, and ends its process. */
  suspend(folder: MachineFolder): Promise<void>;
  /**
   * Continues a machine after {@link suspend}, with the number of CPUs and the memory size from before the suspension. After an error, the
   * machine stays suspended. @throws ReasonedError when the machine does not resume.
   */
  resume(folder: MachineFolder, plan: LaunchPlan, signal?: AbortSignal): Promise<void>;
  /**
   * Starts a machine that has not run since its disk was made or reset, from the memory that belongs to the disk. It is that of the snapshot
   * to which the disk was reset, or else `memory`, that of the disk's image. The guest continues where it was saved, and is renewed. A guest
   * of an image also gets an identity of its own. Resolves when all this is done. Until then, the guest has no network.
   *
   * @throws WarmStartRefused when the memory does not fit the machine, or the guest did not get its identity. The machine is then as before
   * the call.
   */
  startFromMemory(
    folder: MachineFolder,
    plan: VmLaunchPlan,
    memory: MemoryFiles | undefined,
    signal?: AbortSignal,
  ): Promise<void>;
  /**
   * Replaces the disk of a machine with a new disk, as {@link create} makes it, or with the content of the snapshot with the uid `snapshot`.
   * Ends the machine's process, if any. Snapshots stay. A machine whose new disk was not completed needs another revert.
   *
   * @throws the signal's reason when it ends the wait for a copy, or the installation of an operating system.
   * @throws ReasonedError `SnapshotNotFound` when the machine has no such snapshot. Nothing has changed then.
   */
  revert(
    folder: MachineFolder,
    plan: MachinePlan,
    base: BaseImage | undefined,
    snapshot?: string,
    signal?: AbortSignal,
  ): Promise<void>;
  /**
   * Keeps the disk of a machine as it is at one moment. The guest continues, and its later writes do not change the snapshot. If there is
   * a snapshot with this uid already, nothing is done. The promise resolves with the facts of the snapshot. Other calls can overlap as with
   * {@link copyDisk}.
   *
   * With `memory`, the snapshot also has the memory of the running machine. The guest is paused until its memory is in a file.
   *
   * @throws ReasonedError when no snapshot was taken; the signal's reason when it aborted.
   */
  takeSnapshot(
    folder: MachineFolder,
    uid: string,
    signal: AbortSignal,
    options?: { memory: boolean },
  ): Promise<DiskSnapshot>;
  /**
   * Checks whether {@link takeSnapshot} and {@link copyDisk} could keep the memory of the machine now. Waits for copies that are under way,
   * and changes nothing. Call this function before room is made for a memory, because a request that is refused must take no room from others.
   *
   * @throws ReasonedError `MemoryNotSaved` with the reason why not; the signal's reason when it aborted.
   */
  requireMemory(folder: MachineFolder, signal: AbortSignal): Promise<void>;
  /** Returns the facts of the snapshot with this uid; undefined if the machine does not have it. */
  findSnapshot(folder: MachineFolder, uid: string): Promise<DiskSnapshot | undefined>;
  /**
   * Returns how many bytes the snapshots of the machine take on the disk of the host. The file to which the guest writes now does not count. The
   * result is 0 for a damaged machine, so that it hinders no other one.
   */
  snapshotBytes(folder: MachineFolder): Promise<number>;
  /** Removes all snapshots of the machine but those with these uids. */
  keepSnapshots(folder: MachineFolder, uids: ReadonlySet<string>, signal?: AbortSignal): Promise<void>;
  /**
   * Merges layers under the disk that removed and failed snapshots have left, so that they do not add up. Copies their content, which can take
   * minutes, also while the guest runs. Other calls can overlap as with {@link copyDisk}. Snapshots and the disk stay whole after an error,
   * and the next call merges what is left. Returns false if layers are left that can only be merged while the machine has no process.
   *
   * @throws ReasonedError `DiskFull` when there is no room for a merge, `Interrupted` when the machine was stopped, paused or suspended
   * meanwhile; the signal's reason when it aborted.
   */
  mergeLayers(folder: MachineFolder, signal: AbortSignal): Promise<boolean>;
  /**
   * Returns an upper limit for the number of bytes that {@link copyDisk} would write if it were called now. With `snapshot`, the limit is
   * for the disk of the snapshot with this uid.
   *
   * @throws ReasonedError `SnapshotNotFound` when the machine has no such snapshot.
   */
  copyBytes(folder: MachineFolder, snapshot?: string): Promise<number>;
  /**
   * Copies the machine's whole disk, as it is at one moment, into a raw file with holes. `target` is the file's absolute path, on any file
   * system. The guest continues meanwhile. The file is not flushed, and it is removed when the promise rejects.
   *
   * The agent can call other functions during a copy. `create`, `start`, `unpause`, `resume`, `revert` and a second copy wait until the
   * first copy ends. The signal of `start`, `unpause`, `resume` and `revert` can end this wait. The promise then rejects with the
   * signal's reason, and the machine is unchanged. `delete` and `close` make the copy fail, and wait until it has ended. If the machine runs,
   * `stop`, `pause` and `suspend` also make the copy fail.
   *
   * @throws the signal's reason when the signal aborted.
   * @throws ReasonedError `NoMachine` or `NoDisk` when there is nothing to copy; `Interrupted` when the machine stopped, was suspended
   * or ended meanwhile; `CopyFailed` in all other cases.
   */
  copyDisk(folder: MachineFolder, options: CopyOptions): Promise<DiskCopy>;
  /**
   * Connects to the serial console of a running machine. The stream gives the guest's output from now on. If `input` is true, the stream
   * also takes input for the guest. A machine can have any number of streams, but only one of them can take input. A stream ends when the
   * machine's process ends. If a reader is too slow, its stream ends with an error, because the guest must not wait for readers.
   *
   * @throws StreamRefused when the machine does not run, another stream takes input, or an early release of the agent started the machine
   * without input for its console.
   */
  connectConsole(folder: MachineFolder, options: { input: boolean }): Promise<Duplex>;
  /** Connects to the VNC server of a running machine. @throws StreamRefused when the machine does not run or has no screen. */
  connectScreen(folder: MachineFolder): Promise<Duplex>;
  /**
   * Returns a picture of the screen of a running machine, as PNG. `reserve` is called before the picture is in memory.
   *
   * @throws StreamRefused when the machine does not run or has no screen, when another picture of it is being made, or when no memory is left.
   */
  screenshot(folder: MachineFolder, reserve: Reserve): Promise<Buffer>;
  /**
   * Opens a TCP port of the host on the loopback address, and forwards its connections to the TCP port `guestPort` of the guest. The host
   * port stays open until the caller closes the forward. The function is for guests whose network is inside the hypervisor, because such
   * guests have no address on the host.
   *
   * @throws StreamRefused when the machine does not run, the machine's network is not inside the hypervisor, or the machine has too many
   * forwards.
   */
  forwardPort(folder: MachineFolder, guestPort: number): Promise<PortForward>;
  /**
   * Asks the guest agent of a running machine a question. Calls of this function may overlap with other calls. Other work with the guest
   * agent has priority. If the guest has no guest agent, the result is `silent`. The promise rejects when the hypervisor does not answer,
   * or the guest agent stops answering during the question.
   */
  askGuest(folder: MachineFolder, question: GuestQuestion): Promise<GuestAnswer>;
  /**
   * Runs a command in the guest through its guest agent, and resolves when the command has ended. The output comes at the end, because a
   * guest agent has no streams. Calls of this function may overlap with each other and with other calls.
   *
   * @throws StreamRefused when the machine does not run, no guest agent answers, or the guest agent refuses the command; the signal's
   * reason when the signal aborted.
   */
  execute(folder: MachineFolder, command: GuestCommand): Promise<GuestCommandResult>;
}
