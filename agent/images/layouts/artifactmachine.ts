/**
 * The machine of an image from an Apple host: a third layout in the configuration of the disk's artifact, below the key `dev.berth.machine`.
 * It has the configuration of the machine as text, and the variables of its firmware in chunks like the disk. Other hosts do not use it.
 */
import { readFile, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import * as z from 'zod';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import { type MachineFiles, TART_FILES } from '../../disks/disk.ts';

/** Key of the machine's layout in the configuration. */
export const MACHINE_KEY = 'dev.berth.machine';
/** Largest configuration of a machine in bytes. It has a few dozen fields, and those of Apple's machines take about 2 KiB. */
const CONFIG_BYTES = 64 * 1024;
/** Largest variables of the firmware in bytes. Apple's machines have about 33 MiB. */
const VARIABLES_BYTES = 256 * 1024 * 1024;

/** Fields of the layout beside its chunks. */
export const MACHINE_FIELDS = {
  version: z.literal(1),
  /** Configuration of the machine, as JSON. */
  config: z.string().max(CONFIG_BYTES),
  /** Size of the firmware's variables in bytes. */
  variablesBytes: z.number().int().positive().max(VARIABLES_BYTES),
};

/** Returns the paths of the files of a machine beside its disk. `folder` is the folder of the disk. */
export function machineIn(folder: string): MachineFiles {
  return { config: join(folder, TART_FILES.config), variables: join(folder, TART_FILES.variables) };
}

/** Returns the files of a machine beside a disk. The result is undefined if there are none. */
export async function machineBeside(disk: string): Promise<MachineFiles | undefined> {
  const files = machineIn(dirname(disk));
  const found = await undefinedIf(isMissing, stat(files.config));
  return found && files;
}

/**
 * Reads what an artifact has of a machine beside its chunks.
 *
 * @throws ReasonedError `ImageInvalid` when the files are larger than those of a machine.
 */
export async function readMachine({
  config,
  variables,
}: MachineFiles): Promise<{ version: 1; config: string; variablesBytes: number }> {
  const [text, { size }] = await Promise.all([readFile(config, 'utf8'), stat(variables)]);
  if (Buffer.byteLength(text) > CONFIG_BYTES || size > VARIABLES_BYTES) {
    throw new ReasonedError(
      'ImageInvalid',
      `The configuration of the machine has ${Buffer.byteLength(text)} bytes, and its firmware ${size}. The limits are ${CONFIG_BYTES} and ${VARIABLES_BYTES}`,
    );
  }
  return { version: 1, config: text, variablesBytes: size };
}

/** Writes the configuration of a machine beside its disk. `folder` is the folder of the disk. */
export async function writeMachineConfig(folder: string, config: string): Promise<void> {
  await writeFile(machineIn(folder).config, config, { mode: 0o600, flush: true });
}
