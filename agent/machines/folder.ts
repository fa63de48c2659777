/** What lies where in a machine's folder, and its state file. */
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { writeWhole } from '../../base/files.ts';
import { keepReserve } from '../../base/reserve.ts';
import { isMissing } from '../../base/errors.ts';

/** Names in a machine's folder. Sockets are bound by the hypervisor relative to it: a socket's whole path may have 107 bytes only. */
export const FILES = {
  state: 'state.json',
  disk: 'disk.qcow2',
  /** The firmware's variables (UEFI). */
  variables: 'variables.fd',
  qmp: 'qmp.sock',
  guestAgent: 'ga.sock',
  vnc: 'vnc.sock',
  migration: 'migration.sock',
  /** What a task says; and the console of a machine that an agent without log writers started. */
  serial: 'serial.log',
  /** The bounded store that people read. */
  console: 'console',
  /** What the hypervisor of such a machine says. */
  formerLog: 'hypervisor.log',
  /** Process id of the log writer, until it has written all. */
  logging: 'logging',
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

/** The hypervisor, without rights of its own, must be able to reach sockets here; the parent folder keeps everybody else out. */
const MACHINE_FOLDER_MODE = 0o711;
const PARENT_MODE = 0o700;

export async function makeMachineFolder(root: string, folder: string): Promise<void> {
  await mkdir(root, { recursive: true, mode: PARENT_MODE });
  keepReserve(root);
  await mkdir(folder, { recursive: true, mode: MACHINE_FOLDER_MODE });
}
