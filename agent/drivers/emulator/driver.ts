/**
 * Implements the driver for Android emulators. All lasting data about a machine is in its folder; the driver object has only the
 * watches of processes and the stores of logs.
 */
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import type { Logger } from 'pino';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { ConsoleLog } from '../../console/store.ts';
import type { OwnRoot } from '../../processes/ownroot.ts';
import {
  type Accelerator,
  type DiskCopy,
  type Driver,
  type EmulatorGuest,
  type EmulatorLaunchPlan,
  type EmulatorOffer,
  type FoundMachine,
  type GuestAnswer,
  type GuestCommandResult,
  type MachineFolder,
  type MachinePlan,
  type MachineState,
  type PortForward,
  StreamRefused,
} from '../driver.ts';
import { NO_COMMAND, NO_CONSOLE, NO_DISK_COPY, NO_FORWARD, NO_SCREEN, NO_SUSPEND } from './refusals.ts';

export interface EmulatorDriverOptions {
  /** Data directory, with the machines in `<dataDirectory>/machines`. */
  dataDirectory: string;
  /** Folder of the Android SDK on this host. Undefined if the configuration names none; the host then offers no emulators. */
  sdk: string | undefined;
  /** Path of the emulator's program. Undefined means `emulator/emulator` in the SDK. */
  program: string | undefined;
  logger: Logger;
  /** Root directory for the processes of machines that must outlive the agent's container. */
  ownRoot?: OwnRoot | undefined;
}

export class EmulatorDriver implements Driver {
  readonly name = 'emulator';
  readonly #root: string;
  readonly #options: EmulatorDriverOptions;
  readonly #handlers: ((uid: string) => void)[] = [];

  constructor(options: EmulatorDriverOptions) {
    this.#options = options;
    this.#root = join(options.dataDirectory, 'machines');
  }

  /** Returns the system images of this host, or the reason why it runs no emulators. It reads the SDK's folders at each call. */
  async offer(): Promise<EmulatorOffer> {
    const { sdk } = this.#options;
    return {
      kind: 'none',
      message: sdk === undefined ? 'No SDK is set' : 'This release runs no emulators yet',
    };
  }

  async probe(): Promise<Accelerator[]> {
    return [];
  }

  async create(_folder: MachineFolder, _plan: MachinePlan<EmulatorGuest>): Promise<void> {
    throw new ReasonedError('CreateFailed', `This release creates no emulators in ${this.#root} yet`);
  }

  async start(_folder: MachineFolder, _plan: EmulatorLaunchPlan): Promise<void> {
    throw new ReasonedError('StartFailed', 'This release starts no emulators yet');
  }

  async stop(
    _folder: MachineFolder,
    _options: { graceMilliseconds: number; hurry?: AbortSignal },
  ): Promise<void> {
    // This release has no emulators.
  }

  async pause(_folder: MachineFolder): Promise<void> {
    // This release has no emulators.
  }

  async unpause(_folder: MachineFolder): Promise<void> {
    // This release has no emulators.
  }

  async suspend(): Promise<void> {
    throw new ReasonedError('StartFailed', NO_SUSPEND);
  }

  async resume(): Promise<void> {
    throw new ReasonedError('StartFailed', NO_SUSPEND);
  }

  async revert(): Promise<void> {
    throw new ReasonedError('CreateFailed', NO_SUSPEND);
  }

  async copyBytes(): Promise<number> {
    return 0;
  }

  async copyDisk(): Promise<DiskCopy> {
    throw new ReasonedError('NoDisk', NO_DISK_COPY);
  }

  async delete(_folder: MachineFolder): Promise<void> {
    // This release has no emulators.
  }

  async inspect(_folder: MachineFolder): Promise<MachineState> {
    return { kind: 'absent' };
  }

  async list(): Promise<FoundMachine[]> {
    return [];
  }

  onChange(handler: (uid: string) => void): void {
    this.#handlers.push(handler);
  }

  console(_folder: MachineFolder): ConsoleLog {
    return {
      async *read() {
        // This release has no emulators.
      },
    };
  }

  async connectConsole(): Promise<Duplex> {
    throw new StreamRefused(NO_CONSOLE);
  }

  async connectScreen(): Promise<Duplex> {
    throw new StreamRefused(NO_SCREEN);
  }

  async forwardPort(): Promise<PortForward> {
    throw new StreamRefused(NO_FORWARD);
  }

  async askGuest(): Promise<GuestAnswer> {
    return { kind: 'silent' };
  }

  async execute(): Promise<GuestCommandResult> {
    throw new StreamRefused(NO_COMMAND);
  }

  async close(): Promise<void> {
    this.#handlers.length = 0;
  }
}
