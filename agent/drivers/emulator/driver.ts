/**
 * Implements the driver for Android emulators. All lasting data about a machine is in the machine's folder. In memory, the driver only has
 * objects that watch processes and store console output.
 */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { type EmulatorMachine, systemImageName } from '../../../api/v1alpha1/emulatormachine.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
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
  FoundMachine,
  MachineFolder,
  MachinePlan,
  MachineState,
  StopOptions,
} from '../driver.ts';
import type { DriverOfEmulators } from '../hostdrivers.ts';
import type { ProcessContext } from '../machineprocess.ts';
import { makeMachineFolder, stateOfFound, UNREADABLE } from '../statefile.ts';
import { makeFiles, newState, removeFiles, STATE_FILE } from './files.ts';
import { EmulatorProcess } from './machine.ts';
import { accelerationGroups, NATIVE, programOf, scan, type SdkOptions } from './sdk.ts';

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
