/** The state file of a machine. Each driver has its own file name and schema. */
import { mkdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import * as z from 'zod';
import { isMissing, isOfSystem, messageWithoutPaths, undefinedIf } from '../../base/errors.ts';
import { keepReserve, writeWhole } from '../../base/files.ts';
import { Serial } from '../../base/concurrency.ts';

/**
 * Mode of a machine's folder. The hypervisor starts in this folder, and is not root. With this mode, the hypervisor can reach its sockets
 * in the folder. Other users cannot reach the folder, because only root may enter the parent folder.
 */
const MACHINE_FOLDER_MODE = 0o711;
const PARENT_MODE = 0o700;

export async function makeMachineFolder(root: string, folder: string): Promise<void> {
  await mkdir(root, { recursive: true, mode: PARENT_MODE });
  keepReserve(root);
  await mkdir(folder, { recursive: true, mode: MACHINE_FOLDER_MODE });
}

/** Error when a file of a machine cannot be read. */
export class UnreadableFileError extends Error {
  /** Whether the content of the file is wrong. If false, the system could not read the file, and a later try can succeed. */
  readonly isDamaged: boolean;

  constructor(path: string, cause: unknown) {
    super(`${path}: ${describeFault(cause)}`, { cause });
    this.isDamaged = !isOfSystem(cause);
  }
}

/** Describes in one line why a file could not be read, because a Pod's status shows the text. */
export function describeFault(error: unknown): string {
  if (error instanceof z.ZodError) {
    return error.issues.map(({ path, message }) => `${path.join('.') || 'file'}: ${message}`).join('; ');
  }
  return messageWithoutPaths(error);
}

/** Reads a JSON file. Returns undefined if the file is missing. @throws UnreadableFileError when the file cannot be read. */
export async function readParsed<T>(path: string, schema: z.ZodType<T>): Promise<T | undefined> {
  try {
    const text = await undefinedIf(isMissing, readFile(path, 'utf8'));
    return text === undefined ? undefined : schema.parse(JSON.parse(text));
  } catch (error) {
    throw new UnreadableFileError(path, error);
  }
}

/**
 * Returns the state of a machine that was found on the host; undefined if the machine's state file is missing or cannot be read. An error
 * is only logged, because every later step of this machine reports the same error again.
 */
export async function stateOfFound<State>(
  reading: Promise<State | undefined>,
  uid: string,
  logger: Logger,
): Promise<State | undefined> {
  try {
    return await reading;
  } catch (error) {
    logger.error({ err: error, uid }, 'The state of a machine cannot be read');
    return undefined;
  }
}

/**
 * Schemas of fields in the state files of all drivers: the Linux user of the process, the identity of the process, and how the process
 * ended.
 */
export const runAsSchema = z.object({ uid: z.number().int(), gid: z.number().int() });
export const processSchema = z.object({ pid: z.number().int(), startTime: z.string(), bootId: z.string() });
export const endSchema = z.object({ reason: z.enum(['GuestShutdown', 'Crashed']), message: z.string() });

/**
 * Result of {@link StateFile.readIfPossible} if the content of the state file is damaged. After {@link StateFile.ignoreReadErrors}, it is
 * also the result if the system cannot read the file.
 */
export const UNREADABLE = 'unreadable';

/** Fields to set. A field that is set to undefined is removed. */
export type StateChange<State> = { [Key in keyof State]?: State[Key] | undefined };

/** A machine's state file. Changes are made one at a time, because both the agent's steps and events of the process change the file. */
export class StateFile<State extends object> {
  readonly #folder: string;
  readonly #path: string;
  readonly #schema: z.ZodType<State>;
  readonly #serial = new Serial();
  #ignoresReadErrors = false;

  constructor(folder: string, { name, schema }: { name: string; schema: z.ZodType<State> }) {
    this.#folder = folder;
    this.#path = join(folder, name);
    this.#schema = schema;
  }

  /** Returns the state, or undefined if the file is missing. @throws UnreadableFileError when the file cannot be read. */
  async read(): Promise<State | undefined> {
    return await readParsed(this.#path, this.#schema);
  }

  /**
   * Like {@link read}, for steps that end or remove a machine. These steps must work even if the content of the file is damaged.
   *
   * @throws UnreadableFileError when the system cannot read the file at the moment. After {@link ignoreReadErrors}, nothing is thrown.
   */
  async readIfPossible(): Promise<State | typeof UNREADABLE | undefined> {
    try {
      return await this.read();
    } catch (error) {
      if (this.#ignoresReadErrors || (error instanceof UnreadableFileError && error.isDamaged)) {
        return UNREADABLE;
      }
      throw error;
    }
  }

  /** From now on, a file that the system cannot read counts as damaged. Call this function when the machine is being removed. */
  ignoreReadErrors(): void {
    this.#ignoresReadErrors = true;
  }

  async replace(state: State): Promise<void> {
    await this.#serial.run(async () => await this.#write(state));
  }

  async update(change: StateChange<State>): Promise<State> {
    return await this.change(() => change);
  }

  /**
   * Calls `decide` with the present state, and writes the change that `decide` returns. If the change is empty, nothing is written. Returns
   * the new state. @throws Error when the machine has no state file.
   */
  async change(decide: (state: State) => StateChange<State>): Promise<State> {
    return await this.#serial.run(async () => {
      const state = await this.read();
      if (state === undefined) {
        throw new Error(`The folder ${this.#folder} has no state file`);
      }
      const change = decide(state);
      const next = { ...state, ...change } as State;
      if (Object.keys(change).length > 0) {
        await this.#write(next);
      }
      return next;
    });
  }

  /** Removes the machine's folder after all earlier changes of the state file are stored. */
  async removeFolder(): Promise<void> {
    await this.#serial.run(async () => await rm(this.#folder, { recursive: true, force: true }));
  }

  async #write(state: State): Promise<void> {
    await writeWhole(this.#path, JSON.stringify(state));
  }
}
