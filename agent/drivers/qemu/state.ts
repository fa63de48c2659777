/** The files in the folder of a QEMU machine, and its state file. */
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { isMissing } from '../../../base/errors.ts';
import { writeWhole } from '../../../base/files.ts';
import { Serial } from '../../../base/serial.ts';

/** Sockets are bound by the hypervisor relative to the folder: the whole path of a socket may have 107 bytes only. */
export const FILES = {
  state: 'state.json',
  disk: 'disk.qcow2',
  /** The firmware's variables (UEFI). */
  variables: 'variables.fd',
  qmp: 'qmp.sock',
  guestAgent: 'ga.sock',
  vnc: 'vnc.sock',
  migration: 'migration.sock',
  /** Memory and devices of a suspended machine. */
  memory: 'memory',
} as const;

const processSchema = z.object({ pid: z.number().int(), startTime: z.string(), bootId: z.string() });

const stateSchema = z.object({
  version: z.literal(1),
  architecture: z.enum(['amd64', 'arm64']),
  /** Kept for the machine's life: a guest must not meet another mainboard after an upgrade of the host. */
  machineType: z.string(),
  base: z.object({ path: z.string(), format: z.enum(['qcow2', 'raw']) }).optional(),
  /** Absent for a machine without a disk. */
  diskBytes: z.number().int().optional(),
  /** What the process was last started with; a resume must repeat it. */
  launched: z
    .object({
      cpu: z.number().int(),
      memoryBytes: z.number().int(),
      accelerator: z.string(),
      /** Absent: of an agent that had one user for all machines, or that was not root. */
      runAs: z.object({ uid: z.number().int(), gid: z.number().int() }).optional(),
    })
    .optional(),
  /** A start is under way or done, and nobody has asked for an end. */
  intent: z.enum(['run', 'stop', 'suspend']),
  /** Absent while a process is being made: a crash of the agent in between is found out by looking for the process. */
  process: processSchema.optional(),
  /** The process is being or was made and its end has not been seen. */
  live: z.boolean(),
  suspended: z.boolean(),
  /** The guest is to stand still; absent: it never was. */
  paused: z.boolean().optional(),
  end: z.object({ reason: z.enum(['GuestShutdown', 'Crashed']), message: z.string() }).optional(),
});
export type MachineFile = z.infer<typeof stateSchema>;

/** The state file, or undefined where there is none: no folder, or one whose making was not finished. */
export async function readMachineFile(folder: string): Promise<MachineFile | undefined> {
  let text: string;
  try {
    text = await readFile(join(folder, FILES.state), 'utf8');
  } catch (error) {
    if (isMissing(error)) {
      return undefined;
    }
    throw error;
  }
  return stateSchema.parse(JSON.parse(text));
}

export async function writeMachineFile(folder: string, state: MachineFile): Promise<void> {
  await writeWhole(join(folder, FILES.state), JSON.stringify(state));
}

/** Fields to set; undefined removes one. */
export type StateChange = { [Key in keyof MachineFile]?: MachineFile[Key] | undefined };

/** A machine's state file, changed by one at a time: steps asked for and events of the process meet here. */
export class StateFile {
  readonly #folder: string;
  readonly #serial = new Serial();

  constructor(folder: string) {
    this.#folder = folder;
  }

  async read(): Promise<MachineFile | undefined> {
    return await readMachineFile(this.#folder);
  }

  async replace(state: MachineFile): Promise<void> {
    await this.#serial.run(async () => await writeMachineFile(this.#folder, state));
  }

  async update(change: StateChange): Promise<MachineFile> {
    return await this.change(() => change);
  }

  /** Writes what `decide` makes of the present state; nothing when it wants no change. */
  async change(decide: (state: MachineFile) => StateChange): Promise<MachineFile> {
    return await this.#serial.run(async () => {
      const state = await readMachineFile(this.#folder);
      if (state === undefined) {
        throw new Error(`${this.#folder} has no state file`);
      }
      const change = decide(state);
      const next = { ...state, ...change } as MachineFile;
      if (Object.keys(change).length > 0) {
        await writeMachineFile(this.#folder, next);
      }
      return next;
    });
  }

  /** Removes the folder, when nobody writes to it. */
  async removeFolder(): Promise<void> {
    await this.#serial.run(async () => await rm(this.#folder, { recursive: true, force: true }));
  }
}
