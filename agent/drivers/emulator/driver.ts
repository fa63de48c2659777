/**
 * Implements the driver for Android emulators. All lasting data about a machine is in the machine's folder. In memory, the driver only has
 * objects that watch processes and store console output.
 */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { type EmulatorMachine, systemImageName } from '../../../api/v1alpha1/emulatormachine.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { hasCode, isMissing, undefinedIf, undefinedIfSync } from '../../../base/errors.ts';
import type { RunAs } from '../../../base/exec.ts';
import { listFolders } from '../../../base/files.ts';
import { type ConsoleLog, ConsoleStore } from '../../console/store.ts';
import { MachineCgroups } from '../../processes/cgroup.ts';
import type { OwnRoot } from '../../processes/ownroot.ts';
import { processUser } from '../../processes/users.ts';
import type {
  Architecture,
  EmulatorGuest,
  EmulatorLaunchPlan,
  EmulatorOffer,
  ExitReason,
  FoundMachine,
  MachineFolder,
  MachinePlan,
  MachineState,
  RunningState,
  StopOptions,
} from '../driver.ts';
import type { DriverOfEmulators } from '../hostdrivers.ts';
import { type ExitStatus, MachineProcess, type ProcessContext, ProcessWatch } from '../machineprocess.ts';
import { makeMachineFolder, stateOfFound, UNREADABLE } from '../statefile.ts';
import {
  type EmulatorState,
  makeFiles,
  newState,
  prepareStart,
  removeFiles,
  STATE_FILE,
  stateFile,
} from './files.ts';
import { accelerationGroups, NATIVE, programOf, scan, type SdkOptions } from './sdk.ts';
import { logEnd } from '../../console/input.ts';
import { isAlive, type ProcessIdentity, waitForExit } from '../../processes/process.ts';
import { processMark } from './arguments.ts';
import { connectInside, ConsoleClient, killByConsole } from './console.ts';
import { emulatorLog, type EmulatorStart, launchEmulator, ProcessGroup, START_REASONS } from './processes.ts';

/** Largest number of system images that a message names. */
const NAMED_IMAGES = 8;

export interface EmulatorDriverOptions {
  /** Data directory, with the machines in `<dataDirectory>/machines`. */
  dataDirectory: string;
  /** Folder of the Android SDK on this host. If the configuration names no SDK, the field is undefined and the host offers no emulators. */
  sdk: string | undefined;
  /** Path of the emulator's program on this host. If undefined, the driver uses the program `emulator/emulator` in the SDK. */
  program: string | undefined;
  /** Architecture of guests. The default is the architecture of this host. */
  architecture?: Architecture | undefined;
  logger: Logger;
  /**
   * Root directory for processes that must outlive the agent's container; undefined if the agent does not run in a container. This driver
   * only checks whether the option is set. Even if it is set, emulators run in the host's own file system, because the SDK is there.
   */
  ownRoot?: OwnRoot | undefined;
}

interface Held {
  process: EmulatorProcess;
  console: ConsoleStore;
}

export class EmulatorDriver implements DriverOfEmulators {
  readonly name = 'emulator';
  readonly #root: string;
  readonly #sdk: SdkOptions;
  readonly #context: ProcessContext;
  readonly #held = new Map<string, Held>();
  readonly #handlers: ((uid: string) => void)[] = [];

  constructor(options: EmulatorDriverOptions) {
    const { dataDirectory, sdk, program, logger, ownRoot, architecture = NATIVE } = options;
    this.#root = join(dataDirectory, 'machines');
    const isRoot = process.getuid?.() === 0;
    const hostRoot = ownRoot === undefined ? '' : '/proc/1/root';
    this.#sdk = { sdk, program, architecture, isRoot, hostRoot };
    this.#context = {
      logger,
      cgroups: new MachineCgroups(logger),
      changed: (uid) => this.#handlers.forEach((handler) => handler(uid)),
      follow: (folder) => this.#of(folder).console.start(),
    };
  }

  async offer(): Promise<EmulatorOffer> {
    return await scan(this.#sdk);
  }

  async create(folder: MachineFolder, plan: MachinePlan<EmulatorGuest>): Promise<void> {
    const { emulator } = plan.guest;
    await this.#requireImage(emulator);
    const runAs = this.#userOf(plan);
    await makeMachineFolder(this.#root, folder.path);
    await makeFiles(folder.path, { ...emulator, architecture: this.#sdk.architecture }, runAs);
    await this.#of(folder).process.state.replace(newState({ ...emulator, runAs }));
  }

  async start(folder: MachineFolder, plan: EmulatorLaunchPlan): Promise<void> {
    const { process } = this.#of(folder);
    if ((await process.inspect()).kind === 'running') {
      return;
    }
    if ((await process.state.read()) === undefined) {
      throw new ReasonedError('StartFailed', 'The machine was not created completely');
    }
    await this.#requireImage(plan.guest.emulator);
    const { sdk = '', hostRoot } = this.#sdk;
    await process.start({
      plan: { ...plan, runAs: this.#userOf(plan) },
      program: programOf(this.#sdk),
      sdk,
      accelerationGroups: await this.#accelerationGroups(),
      isContained: hostRoot !== '',
    });
  }

  async stop(folder: MachineFolder, options: StopOptions): Promise<void> {
    await this.#of(folder).process.stop(options);
  }

  async pause(folder: MachineFolder): Promise<void> {
    await this.#of(folder).process.setPaused(true);
  }

  async unpause(folder: MachineFolder): Promise<void> {
    await this.#of(folder).process.setPaused(false);
  }

  async discard(folder: MachineFolder): Promise<void> {
    const { state } = this.#of(folder).process;
    await removeFiles(folder.path);
    // Another machine can now get the Linux user of this machine. So the user is removed from this machine's state file. Otherwise a
    // restarted agent would read there that this machine still has the user.
    const known = await state.readIfPossible();
    if (known !== UNREADABLE && known?.runAs !== undefined) {
      await state.update({ runAs: undefined });
    }
  }

  async delete(folder: MachineFolder): Promise<void> {
    const { process, console } = this.#of(folder);
    process.state.ignoreReadErrors();
    await process.end();
    process.close();
    console.close();
    this.#held.delete(folder.uid);
    await removeFiles(folder.path);
    // The machine's folder is removed last, because the agent repeats a failed removal only while this folder exists.
    await process.state.removeFolder();
  }

  async inspect(folder: MachineFolder): Promise<MachineState> {
    const found = await undefinedIf(isMissing, stat(folder.path));
    return found === undefined ? { kind: 'absent' } : await this.#of(folder).process.inspect();
  }

  async list(): Promise<FoundMachine[]> {
    const found: FoundMachine[] = [];
    for (const uid of await listFolders(this.#root)) {
      const path = join(this.#root, uid);
      if ((await undefinedIf(isMissing, stat(join(path, STATE_FILE)))) !== undefined) {
        const reading = this.#of({ uid, path }).process.state.read();
        const state = await stateOfFound(reading, uid, this.#context.logger);
        found.push({ uid, path, runAs: state?.runAs, base: undefined });
      }
    }
    return found;
  }

  onChange(handler: (uid: string) => void): void {
    this.#handlers.push(handler);
  }

  console(folder: MachineFolder): ConsoleLog {
    return this.#of(folder).console;
  }

  async close(): Promise<void> {
    for (const { process, console } of this.#held.values()) {
      process.close();
      console.close();
    }
    this.#held.clear();
  }

  #of(folder: MachineFolder): Held {
    const known = this.#held.get(folder.uid);
    if (known !== undefined) {
      return known;
    }
    const made = {
      process: new EmulatorProcess(folder, this.#context),
      console: new ConsoleStore(folder.path, { of: 'machine', logger: this.#context.logger }),
    };
    this.#held.set(folder.uid, made);
    return made;
  }

  async #requireImage(emulator: EmulatorMachine): Promise<void> {
    const offer = await this.offer();
    if (offer.kind === 'none') {
      throw new ReasonedError('SystemImageMissing', offer.message);
    }
    const name = systemImageName(emulator);
    if (!offer.systemImages.includes(name)) {
      const others = offer.systemImages.slice(0, NAMED_IMAGES).join(', ');
      const more = offer.systemImages.length > NAMED_IMAGES ? ' and others' : '';
      throw new ReasonedError(
        'SystemImageMissing',
        `This host has no system image ${name}. It has ${others}${more}`,
      );
    }
  }

  async #accelerationGroups(): Promise<number[] | undefined> {
    const { architecture, hostRoot, isRoot } = this.#sdk;
    return architecture === NATIVE ? await accelerationGroups(hostRoot, isRoot) : undefined;
  }

  #userOf({ runAs }: Pick<MachinePlan, 'runAs'>): RunAs | undefined {
    return processUser(this.#sdk.isRoot, runAs);
  }
}

/**
 * Time limit from the start of the emulator until its console answers. The console opens within seconds, long before the guest has booted.
 */
const START_TIMEOUT_MILLISECONDS = 60_000;
/**
 * Time that the agent waits for the emulator's end after the connection to the console has failed. An emulator that ends closes the
 * connection shortly before its process ends.
 */
const EXIT_NOTICE_MILLISECONDS = 500;
/** Time limit for the connection to the console of a running emulator. */
const CONNECT_SECONDS = 2;
/** Time between two checks of a machine that stops. Each check finds out whether the grace period has ended. It can end early. */
const STEP_MILLISECONDS = 100;

class EmulatorProcess extends MachineProcess<EmulatorState, ProcessWatch> {
  protected override readonly program = 'emulator';
  protected override readonly startReasons = START_REASONS;
  protected override readonly mark: readonly string[];
  readonly #context: ProcessContext;
  readonly #group: ProcessGroup;

  constructor(folder: MachineFolder, context: ProcessContext) {
    super(folder, stateFile(folder.path), context);
    this.mark = processMark(folder.uid);
    this.#context = context;
    this.#group = new ProcessGroup(folder, context.cgroups);
  }

  async start(start: EmulatorStart): Promise<void> {
    const { path } = this.folder;
    await this.#group.end(undefined);
    const { token } = await this.state.update({
      intent: 'run',
      live: true,
      paused: false,
      process: undefined,
      end: undefined,
      namespace: start.plan.network.path,
      runAs: start.plan.runAs,
      logStart: logEnd(path, 'serial'),
    });
    try {
      await prepareStart(path, token, start.plan.runAs);
      await this.#bringUp(start);
    } catch (error) {
      throw await this.failedStart(error);
    }
  }

  async stop(options: StopOptions): Promise<void> {
    if (options.ignoresReadErrors === true) {
      this.state.ignoreReadErrors();
    }
    const known = await this.state.readIfPossible();
    if (known === undefined) {
      return;
    }
    if (known === UNREADABLE) {
      return await this.end();
    }
    const { paused } = await this.state.update({ intent: 'stop' });
    const identity = await this.process();
    this.watched?.expectExit();
    // If the end of the process was noticed earlier, this stop waits until the end is recorded. Otherwise that work could continue after
    // this stop, and end the next process.
    await this.recorded();
    if (identity !== undefined && options.graceMilliseconds > 0 && !paused) {
      await this.#endInOrder(identity, known, options);
    }
    await this.end();
    await this.state.update({ live: false, paused: false, end: undefined, process: undefined });
  }

  /**
   * Pauses or continues all processes of the machine. The state file is written first. So if the agent dies during the step, the agent
   * completes the step after its restart.
   */
  async setPaused(paused: boolean): Promise<void> {
    await this.state.update({ paused });
    const identity = await this.process();
    if (identity !== undefined) {
      await this.#group.signal(identity, paused ? 'SIGSTOP' : 'SIGCONT');
    }
  }

  protected override newWatch(identity: ProcessIdentity, onExit: () => void): ProcessWatch {
    return new ProcessWatch(identity, onExit);
  }

  protected override async inspectLive(
    identity: ProcessIdentity,
    { paused }: EmulatorState,
  ): Promise<RunningState> {
    const isFound = this.watched?.identity.pid !== identity.pid;
    this.adopt(identity);
    if (isFound) {
      // The agent might have died after it wrote the state file and before it paused or continued the processes. So the restarted agent sends
      // the signal, even if the processes already got it.
      await this.#group.signal(identity, paused ? 'SIGSTOP' : 'SIGCONT');
    }
    return { kind: 'running', pid: identity.pid, guestStarted: !paused, paused };
  }

  /** Also ends the processes that have outlived the emulator. */
  protected override async kill(main: ProcessIdentity | undefined): Promise<void> {
    await this.#group.end(main);
  }

  protected override exitReason(status: ExitStatus | undefined): ExitReason {
    return status?.code === 0 ? 'GuestShutdown' : 'Crashed';
  }

  protected override async logLines(): Promise<string> {
    const { logStart = 0 } = (await this.state.read()) ?? {};
    return await emulatorLog(this.folder.path, logStart);
  }

  async #bringUp(start: EmulatorStart): Promise<void> {
    const { identity, exited } = await launchEmulator(this.folder, start, this.#context.cgroups);
    await this.state.update({ process: identity });
    const stream = connectInside(start.plan.network.path, START_TIMEOUT_MILLISECONDS / 1000);
    exited.then(
      () => stream.destroy(),
      () => undefined,
    );
    const console = new ConsoleClient(stream);
    try {
      await console.greeted(START_TIMEOUT_MILLISECONDS);
    } catch (error) {
      if (!(await waitForExit(identity, EXIT_NOTICE_MILLISECONDS))) {
        throw error;
      }
      await this.#group.end(identity);
      throw await this.startError(this.describeExit(await exited));
    } finally {
      console.close();
    }
    this.open(identity).watch(exited);
    this.#context.follow(this.folder, 'started');
  }

  /**
   * Asks the emulator to end, by a command to its console. If the console does not accept the command, the emulator gets SIGTERM instead.
   * The agent tries the console first, because the emulator's reaction to SIGTERM is not documented. Resolves when the emulator has ended
   * or the grace period is over.
   */
  async #endInOrder(
    identity: ProcessIdentity,
    { namespace = '', token }: EmulatorState,
    { graceMilliseconds, hurry }: StopOptions,
  ): Promise<void> {
    const over = AbortSignal.any([AbortSignal.timeout(graceMilliseconds), ...(hurry ? [hurry] : [])]);
    const stream = connectInside(namespace, CONNECT_SECONDS);
    const abandon = (): void => void stream.destroy();
    over.addEventListener('abort', abandon, { once: true });
    try {
      await killByConsole(stream, token);
    } catch (error) {
      const { uid } = this.folder;
      this.#context.logger.debug(
        { uid, err: error },
        'The console of an emulator did not accept the command "kill", so the agent sends SIGTERM',
      );
      await this.#terminate(identity);
    } finally {
      over.removeEventListener('abort', abandon);
    }
    while (!over.aborted && !(await waitForExit(identity, STEP_MILLISECONDS))) {
      // The loop waits for the end of the process in short steps, so that an abort of `hurry` ends the wait.
    }
  }

  async #terminate(identity: ProcessIdentity): Promise<void> {
    if (await isAlive(identity)) {
      undefinedIfSync(hasCode('ESRCH'), () => process.kill(identity.pid, 'SIGTERM'));
    }
  }
}
