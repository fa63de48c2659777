/**
 * Implements the driver for the program `tart`, which runs macOS and Linux with the hypervisor of macOS on Apple silicon. All lasting data about
 * a machine is in its folder and in the folder of the program. The driver object has only timers.
 */
import { mkdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import type { Logger } from 'pino';
import { MACOS_ACCELERATOR, MACOS_DRIVER } from '../../../api/v1alpha1/names.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { Serial } from '../../../base/concurrency.ts';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import { listFolders } from '../../../base/files.ts';
import { type ConsoleLog, ConsoleStore } from '../../console/store.ts';
import type { BaseImage } from '../../disks/disk.ts';
import { allocatedBytes } from '../../disks/diskio.ts';
import { tellRelay } from '../../network/portrelay.ts';
import type { GuestFilter } from '../../network/softnet.ts';
import { MachineCgroups } from '../../processes/cgroup.ts';
import {
  type Accelerator,
  type CopyOptions,
  type DiskCopy,
  type DiskSnapshot,
  type DriverOfVMs,
  type FoundMachine,
  type GuestAnswer,
  type GuestCommand,
  type GuestCommandResult,
  type GuestQuestion,
  type InspectOptions,
  type MachineFolder,
  type MachineState,
  type PortForward,
  type Reserve,
  type StopOptions,
  StreamRefused,
  type VmLaunchPlan,
  type VmPlan,
  WarmStartRefused,
} from '../driver.ts';
import { requireLogWriter } from '../machineprocess.ts';
import { makeMachineFolder, stateOfFound, UNREADABLE } from '../statefile.ts';
import { memoryRefusal, TartCopies } from './copies.ts';
import { diskOf, ecidOf, installFiles, isInstalled, makeFiles, STATE_FILE, type TartState } from './files.ts';
import { needsEcid } from './identity.ts';
import { NO_SUSPENSION, type TartContext, TartMachine } from './machine.ts';
import { endInstallation, guestAddress, renewEcid, type TartProgram, tart } from './program.ts';

/** Largest number of guests with macOS on a host. The licence of macOS sets this limit, and its hypervisor keeps it. */
const MACOS_GUESTS = 2;
/** Mode of the folder of the program. It has the disks of all machines. */
const HOME_MODE = 0o700;
/** Guest port of the automatic port that is for the machine's screen. */
const SCREEN = 0;

export interface TartDriverOptions {
  /** Data directory, with the machines in `<dataDirectory>/machines`. The program has its own folder `<dataDirectory>/tart`. */
  dataDirectory: string;
  /** Path of the program. */
  program: string;
  /** Whether the program may serve screens. */
  screens: boolean;
  logger: Logger;
}

interface Held {
  machine: TartMachine;
  copies: TartCopies;
  console: ConsoleStore;
}

/** Returns the folder of the program `tart` in the data directory of an agent. */
export function homeOf(dataDirectory: string): string {
  return join(dataDirectory, 'tart');
}

export class TartDriver implements DriverOfVMs {
  readonly name = MACOS_DRIVER;
  readonly #root: string;
  readonly #program: TartProgram;
  readonly #context: TartContext;
  readonly #held = new Map<string, Held>();
  readonly #handlers: ((uid: string) => void)[] = [];
  /** Starts of guests with macOS, one at a time, so that two starts do not take the same place. */
  readonly #places = new Serial();
  /** Uids of machines on whose disks macOS is being installed. */
  readonly #installing = new Set<string>();

  constructor({ dataDirectory, program, screens, logger }: TartDriverOptions) {
    this.#root = join(dataDirectory, 'machines');
    this.#program = { path: program, home: homeOf(dataDirectory) };
    this.#context = {
      logger,
      cgroups: new MachineCgroups(logger),
      program: this.#program,
      screens,
      changed: (uid) => this.#handlers.forEach((handler) => handler(uid)),
      follow: (folder) => this.#of(folder).console.start(),
    };
  }

  async probe(): Promise<Accelerator[]> {
    await requireLogWriter();
    await mkdir(this.#program.home, { recursive: true, mode: HOME_MODE });
    await tart(this.#program, ['--version']);
    return [{ architecture: 'arm64', accelerator: MACOS_ACCELERATOR }];
  }

  async create(
    folder: MachineFolder,
    plan: VmPlan,
    base: BaseImage | undefined,
    signal?: AbortSignal,
  ): Promise<void> {
    if (plan.guest.vm.automaticPorts.some(({ guestPort }) => guestPort === SCREEN)) {
      throw new ReasonedError(
        'CreateFailed',
        'A host with the driver tart serves no screen on a port of its own. Leave out vnc.hostPort, and use the screen sharing of the guest (port 5900)',
      );
    }
    await makeMachineFolder(this.#root, folder.path);
    await this.#make(folder, plan, base, signal);
  }

  async start(folder: MachineFolder, plan: VmLaunchPlan, signal?: AbortSignal): Promise<void> {
    if ((await this.inspect(folder)).kind !== 'running') {
      await this.#begin(folder, async (machine) => await machine.start(plan, signal), signal);
    }
  }

  async resume(folder: MachineFolder, plan: VmLaunchPlan, signal?: AbortSignal): Promise<void> {
    await this.#begin(folder, async (machine) => await machine.resume(plan, signal), signal);
  }

  async stop(folder: MachineFolder, options: StopOptions): Promise<void> {
    const { machine } = this.#of(folder);
    if (options.ignoresReadErrors === true) {
      machine.state.ignoreReadErrors();
    }
    await machine.stop(options);
  }

  async suspend(folder: MachineFolder): Promise<void> {
    const { machine } = this.#of(folder);
    if ((await machine.state.read())?.os !== 'darwin') {
      throw new Error(NO_SUSPENSION);
    }
    await machine.suspend();
  }

  async pause(): Promise<void> {
    throw new Error(
      'The hypervisor of this host cannot pause a guest. Stop the VM, or free space on the host',
    );
  }

  async unpause(): Promise<void> {
    await Promise.reject(new Error('The hypervisor of this host has paused no guest'));
  }

  async revert(
    folder: MachineFolder,
    plan: VmPlan,
    base: BaseImage | undefined,
    snapshot?: string,
    signal?: AbortSignal,
  ): Promise<void> {
    if (snapshot !== undefined) {
      throw new ReasonedError('SnapshotNotFound', 'A host with the driver tart has no snapshots');
    }
    const { machine, copies } = this.#of(folder);
    const either = copies.interruptible(signal);
    await copies.exclusively(async () => {
      await machine.stop({ graceMilliseconds: 0 });
      await this.#make(folder, plan, base, either);
    }, either);
  }

  async delete(folder: MachineFolder): Promise<void> {
    const { machine, console, copies } = this.#of(folder);
    machine.state.ignoreReadErrors();
    await copies.interrupt('The machine was deleted');
    // After the death of an agent that reset the machine, there is an installation beside the old state file.
    await endInstallation(folder.uid);
    await machine.end();
    machine.close();
    console.close();
    this.#held.delete(folder.uid);
    await rm(machine.bundle, { recursive: true, force: true });
    // The machine's folder is removed last, because the agent repeats a failed removal only while this folder exists.
    await machine.state.removeFolder();
  }

  async inspect(folder: MachineFolder, options?: InspectOptions): Promise<MachineState> {
    const found = await undefinedIf(isMissing, stat(folder.path));
    return found === undefined ? { kind: 'absent' } : await this.#of(folder).machine.inspect(options);
  }

  async hasProcess(folder: MachineFolder): Promise<boolean> {
    return (await this.#of(folder).machine.process()) !== undefined;
  }

  async list(): Promise<FoundMachine[]> {
    const found: FoundMachine[] = [];
    for (const uid of await listFolders(this.#root)) {
      const path = join(this.#root, uid);
      if ((await undefinedIf(isMissing, stat(join(path, STATE_FILE)))) !== undefined) {
        const reading = this.#of({ uid, path }).machine.state.read();
        const state = await stateOfFound(reading, uid, this.#context.logger);
        found.push({ uid, path, runAs: undefined, base: state?.base });
      }
    }
    return found;
  }

  /** Returns the IPv4 address of the guest, and tells the relay of its ports. Undefined as long as the guest has none. */
  async address(uid: string): Promise<string | undefined> {
    const address = await guestAddress(this.#program, uid);
    // The machine may be deleted meanwhile.
    await undefinedIf(isMissing, tellRelay(join(this.#root, uid), address));
    return address;
  }

  /** Returns the filter for the packets of a guest that runs. Undefined if nothing is filtered, or if the state of the machine cannot be read. */
  async filter(uid: string): Promise<GuestFilter | undefined> {
    const { machine } = this.#of({ uid, path: join(this.#root, uid) });
    const state = await machine.state.readIfPossible();
    return state === UNREADABLE ? undefined : state?.filter;
  }

  onChange(handler: (uid: string) => void): void {
    this.#handlers.push(handler);
  }

  console(folder: MachineFolder): ConsoleLog {
    return this.#of(folder).console;
  }

  async startFromMemory(): Promise<void> {
    await Promise.reject(
      new WarmStartRefused(
        'NotSupported',
        'A host with the driver tart starts no VM from the memory of an image',
      ),
    );
  }

  async takeSnapshot(): Promise<DiskSnapshot> {
    throw new ReasonedError('SnapshotNotTaken', 'A host with the driver tart takes no snapshots');
  }

  async requireMemory(): Promise<void> {
    throw memoryRefusal();
  }

  async findSnapshot(): Promise<DiskSnapshot | undefined> {
    return await Promise.resolve(undefined);
  }

  async snapshotBytes(): Promise<number> {
    return await Promise.resolve(0);
  }

  async keepSnapshots(): Promise<void> {
    // There are no snapshots.
  }

  async mergeLayers(): Promise<boolean> {
    // There are no layers.
    return await Promise.resolve(true);
  }

  async copyBytes(folder: MachineFolder): Promise<number> {
    return await allocatedBytes(diskOf(this.#of(folder).machine.bundle));
  }

  async copyDisk(folder: MachineFolder, options: CopyOptions): Promise<DiskCopy> {
    const { machine, copies } = this.#of(folder);
    const inspect = async (): Promise<MachineState> => await this.inspect(folder);
    return await copies.run({ bundle: machine.bundle, inspect }, options);
  }

  async connectConsole(): Promise<Duplex> {
    throw refusal('has no console to connect to. Read its log with `kubectl logs`, or use SSH');
  }

  async connectScreen(folder: MachineFolder): Promise<Duplex> {
    return await this.#of(folder).machine.screen.connect();
  }

  async screenshot(folder: MachineFolder, reserve: Reserve): Promise<Buffer> {
    return await this.#of(folder).machine.screen.picture(reserve);
  }

  async forwardPort(): Promise<PortForward> {
    throw refusal('has no address yet. Try again when the guest has booted');
  }

  async askGuest(folder: MachineFolder, question: GuestQuestion): Promise<GuestAnswer> {
    const { machine } = this.#of(folder);
    const answer = await machine.guest.ask(question, (await machine.state.read())?.os);
    if (answer.kind === 'answers') {
      await machine.giveKeys(question.signal);
    }
    return answer;
  }

  async execute(folder: MachineFolder, command: GuestCommand): Promise<GuestCommandResult> {
    return await this.#of(folder).machine.guest.execute(command);
  }

  async close(): Promise<void> {
    for (const { machine, console, copies } of this.#held.values()) {
      await copies.interrupt('The agent is stopping');
      machine.close();
      console.close();
    }
    this.#held.clear();
    await Promise.resolve();
  }

  #of(folder: MachineFolder): Held {
    const known = this.#held.get(folder.uid);
    if (known !== undefined) {
      return known;
    }
    const made = {
      machine: new TartMachine(folder, this.#context),
      copies: new TartCopies(),
      console: new ConsoleStore(folder.path, { of: 'machine', logger: this.#context.logger }),
    };
    this.#held.set(folder.uid, made);
    return made;
  }

  async #make(
    folder: MachineFolder,
    plan: VmPlan,
    base: BaseImage | undefined,
    signal?: AbortSignal,
  ): Promise<void> {
    const { machine } = this.#of(folder);
    if (isInstalled(plan)) {
      return await machine.state.replace(await this.#install(folder, plan, base, signal));
    }
    const { bundle } = machine;
    const before = await machine.state.readIfPossible();
    const ecid = before === UNREADABLE ? undefined : before?.ecid;
    const made = await makeFiles(bundle, plan, base, ecid);
    if (ecid === undefined && needsEcid(made.os, plan.guest.vm)) {
      await renewEcid(this.#program, folder.uid);
      made.ecid = await ecidOf(bundle);
    }
    await machine.state.replace(made);
  }

  /** Starts a machine once no copy of its disk is under way. */
  async #begin(
    folder: MachineFolder,
    begin: (machine: TartMachine) => Promise<void>,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const { copies } = this.#of(folder);
    await copies.exclusively(async () => await this.#inPlace(folder, begin, signal), signal);
  }

  /**
   * Installs macOS on the disk of a machine. The installation runs as a guest with macOS.
   *
   * @throws ReasonedError `MacOSLimit` when there is no place.
   */
  async #install(
    folder: MachineFolder,
    plan: VmPlan,
    base: BaseImage | undefined,
    signal: AbortSignal | undefined,
  ): Promise<TartState> {
    const { uid } = folder;
    await this.#places.run(async () => {
      // The start of another guest can have taken so long that this installation is no longer wanted.
      signal?.throwIfAborted();
      await this.#requirePlace(uid);
      this.#installing.add(uid);
    });
    try {
      return await installFiles(this.#program, { uid, ...plan }, base, signal);
    } finally {
      this.#installing.delete(uid);
    }
  }

  /** Returns the number of other guests with macOS. @throws ReasonedError `MacOSLimit` when there are as many as there may be. */
  async #requirePlace(uid: string): Promise<number> {
    const others = await this.#countMacOS(uid);
    if (others >= MACOS_GUESTS) {
      throw new ReasonedError(
        'MacOSLimit',
        `This host runs ${others} guests with macOS, and may run no more`,
      );
    }
    return others;
  }

  /**
   * Starts a machine, if the host may run one more guest with macOS. Guests with Linux need no place.
   *
   * @throws ReasonedError `MacOSLimit` when there is no place; the signal's reason when it aborts before the machine runs.
   */
  async #inPlace(
    folder: MachineFolder,
    begin: (machine: TartMachine) => Promise<void>,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const { machine } = this.#of(folder);
    const state = await machine.state.read();
    if (state === undefined) {
      throw new ReasonedError('StartFailed', 'The machine was not created completely');
    }
    if (state.os !== 'darwin') {
      return await begin(machine);
    }
    await this.#places.run(async () => {
      // The start of another guest can have taken so long that this start is no longer wanted.
      signal?.throwIfAborted();
      const others = await this.#requirePlace(folder.uid);
      try {
        await begin(machine);
      } catch (error) {
        throw explainLimit(error, others);
      }
    });
  }

  /** Returns the number of guests with macOS that have a process or are being installed, without the machine `except`. */
  async #countMacOS(except: string): Promise<number> {
    const running = await Promise.all(
      (await this.list())
        .filter(({ uid }) => uid !== except)
        .map(async (folder) => {
          const { machine } = this.#of(folder);
          const state = await stateOfFound(machine.state.read(), folder.uid, this.#context.logger);
          // A machine whose state cannot be read counts, because it can have macOS.
          return state?.os !== 'linux' && (await machine.process()) !== undefined;
        }),
    );
    const installing = [...this.#installing].filter((uid) => uid !== except);
    return running.filter(Boolean).length + installing.length;
  }
}

/**
 * Explains the refusal of the hypervisor to run another guest with macOS, although the agent runs fewer than it may. The hypervisor can keep the
 * place of a guest that has ended, until the host boots again.
 */
function explainLimit(error: unknown, running: number): unknown {
  if (!(error instanceof ReasonedError) || error.reason !== 'MacOSLimit') {
    return error;
  }
  const cause = `The hypervisor of this host refuses another guest with macOS, although this agent runs only ${running} of ${MACOS_GUESTS}`;
  const advice =
    'Another program runs guests, or a place was not freed when a guest ended. Then restart the host';
  return new ReasonedError('MacOSLimit', `${cause}. ${advice}. ${error.message}`, { cause: error });
}

function refusal(what: string): StreamRefused {
  return new StreamRefused(`The VM runs on a host with the driver tart, which ${what}`);
}
