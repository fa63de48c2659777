/**
 * Makes and removes the files of an emulator's machine, and reads and writes its state file. The machine's folder and its folder of AVDs
 * belong to root. All other folders inside these two folders belong to the machine's user, who can put anything there. For example, a link
 * could lead the agent, which is root, to a file outside. So the agent follows no path deeper into the user's folders: it creates and removes
 * only their direct entries. The agent does so only while no process of the user lives.
 */
import { randomBytes } from 'node:crypto';
import { lchown, mkdir, open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import type { EmulatorMachine } from '../../../api/v1alpha1/emulatormachine.ts';
import type { RunAs } from '../../../base/exec.ts';
import { removeTrees } from '../../../base/files.ts';
import { readEntries } from '../../disks/diskio.ts';
import { endSchema, processSchema, runAsSchema, StateFile } from '../statefile.ts';
import { AVD_NAME, avdFiles, AVDS, FOLDERS } from './arguments.ts';
import type { Architecture } from '../driver.ts';

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

/**
 * Path at which the machine's folder is mounted in the emulator's own mount namespace. The emulator cannot use the real path of the folder,
 * because only root may enter the parent folder. The path of the mount is short, because the path of a socket can have at most 107 bytes.
 */
export const MACHINE_PLACE = '/run/berth-machine';

const OWN_MODE = 0o700;
/** Mode of the folder of AVDs. With this mode, the machine's user can read the description of its AVD, but cannot replace it. */
const AVDS_MODE = 0o755;
const INI_MODE = 0o644;
/**
 * Largest number of lock files that are removed before a start. An emulator makes one lock file for each of its disks, and two other lock
 * files.
 */
const LOCKS_LIMIT = 64;
/**
 * Largest number of entries among which lock files are searched. An emulator normally has fewer than a hundred entries there. A hostile
 * emulator can make millions, and their names would fill the memory of the agent.
 */
const ENTRIES_LIMIT = 2_000;
const TOKEN_FILE = '.emulator_console_auth_token';

/**
 * Removes the AVD and the folders of the machine's user if they exist, and creates them again. @throws ReasonedError `CreateFailed` when
 * Berth does not know the emulator's device.
 */
export async function makeFiles(
  folder: string,
  emulator: EmulatorMachine & { architecture: Architecture },
  runAs: RunAs | undefined,
): Promise<void> {
  const { ini, config } = avdFiles(emulator, join(MACHINE_PLACE, AVDS));
  await removeFiles(folder);
  const avds = join(folder, AVDS);
  const disks = join(avds, `${AVD_NAME}.avd`);
  await mkdir(avds, { mode: AVDS_MODE });
  // Without `flush`, the two files could be empty after a loss of power, and the emulator would never start again.
  await writeFile(join(avds, `${AVD_NAME}.ini`), ini, { mode: INI_MODE, flush: true });
  await mkdir(disks, { mode: OWN_MODE });
  await writeFile(join(disks, 'config.ini'), config, { mode: 0o600, flush: true });
  await own(join(disks, 'config.ini'), runAs);
  await own(disks, runAs);
  for (const name of Object.values(FOLDERS)) {
    await mkdir(join(folder, name), { mode: OWN_MODE });
    await own(join(folder, name), runAs);
  }
}

/**
 * Removes the lock files of an earlier emulator process, and writes the token of the console. Call this function only while no process of
 * the machine lives.
 */
export async function prepareStart(folder: string, token: string, runAs: RunAs | undefined): Promise<void> {
  const disks = join(folder, AVDS, `${AVD_NAME}.avd`);
  const names = (await readEntries(disks, ENTRIES_LIMIT)).map(({ name }) => name);
  const locks = names.filter((name) => name.endsWith('.lock')).slice(0, LOCKS_LIMIT);
  await removeTrees(locks.map((name) => join(disks, name)));
  const path = join(folder, FOLDERS.home, TOKEN_FILE);
  await removeTrees([path]);
  // With the flag `x`, the call fails if the path exists. So the agent never writes through a link that the machine's user has made.
  const file = await open(path, 'wx', 0o600);
  try {
    await file.writeFile(token);
    await (runAs && file.chown(runAs.uid, runAs.gid));
  } finally {
    await file.close();
  }
}

/**
 * Removes all files that belong to the emulator. The state file stays, because the agent repeats a failed removal only while this file
 * exists.
 */
export async function removeFiles(folder: string): Promise<void> {
  await removeTrees([...Object.values(FOLDERS), AVDS].map((name) => join(folder, name)));
}

async function own(path: string, runAs: RunAs | undefined): Promise<void> {
  if (runAs !== undefined) {
    await lchown(path, runAs.uid, runAs.gid);
  }
}
