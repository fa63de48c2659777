/** The state file of an emulator's machine. Only root can write in the machine's folder itself, so only the agent can write the file. */
import { randomBytes } from 'node:crypto';
import * as z from 'zod';
import { endSchema, processSchema, runAsSchema, StateFile } from '../statefile.ts';

/** Name of the state file. The name differs from the name of QEMU's state file, so that each driver finds only its own machines. */
export const STATE_FILE = 'emulator.json';

const stateSchema = z.object({
  version: z.literal(1),
  platform: z.string(),
  imageType: z.string(),
  /** Token of the emulator's console. */
  token: z.string(),
  /** Linux user of the machine. Absent if the agent is not root. */
  runAs: runAsSchema.optional(),
  /** Network namespace of the last start. */
  namespace: z.string().optional(),
  /** Position in the log `serial` at which the output of the last start begins. */
  logStart: z.number().int().min(0),
  /** The state that the agent wants for the machine. `run` means that the agent has begun a start, and has requested no end since then. */
  intent: z.enum(['run', 'stop']),
  /** Identity of the machine's process. Absent while the process is being started, and while there is no process. */
  process: processSchema.optional(),
  /**
   * Whether the machine has a process, as far as the agent knows. True from the beginning of a start until the agent has noticed the end of
   * the process.
   */
  live: z.boolean(),
  /** Whether the processes must be paused. */
  paused: z.boolean(),
  end: endSchema.optional(),
});
export type EmulatorState = z.infer<typeof stateSchema>;

const TOKEN_BYTES = 12;

export function newState(described: Pick<EmulatorState, 'platform' | 'imageType' | 'runAs'>): EmulatorState {
  const token = randomBytes(TOKEN_BYTES).toString('base64url');
  return { version: 1, ...described, token, logStart: 0, intent: 'stop', live: false, paused: false };
}

export function stateFile(folder: string): StateFile<EmulatorState> {
  return new StateFile(folder, { name: STATE_FILE, schema: stateSchema });
}
