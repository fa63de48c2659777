/** Creates the files of a QEMU machine. */
import { join } from 'node:path';
import type { BaseImage } from '../../disks/disk.ts';
import type { MachineFolder, VmPlan } from '../driver.ts';
import { makeMachineFolder } from '../statefile.ts';
import { copySparse, giveDisk, makeDisk } from './disk.ts';
import type { Platform } from './platform.ts';
import { FILES, type MachineFile } from './state.ts';

export interface MachineMaterial {
  plan: VmPlan;
  base: BaseImage | undefined;
  platform: Platform;
}

/**
 * Creates the machine's folder with its disk and the variables of its firmware. Returns the content of the state file, which the caller
 * writes.
 */
export async function createFiles(
  root: string,
  folder: MachineFolder,
  { plan, base, platform }: MachineMaterial,
): Promise<MachineFile> {
  await makeMachineFolder(root, folder.path);
  const diskBytes = await makeDisk(folder, plan, base);
  if (platform.firmware !== undefined) {
    await copySparse(platform.firmware.variables, join(folder.path, FILES.variables));
  }
  if (plan.runAs !== undefined) {
    await giveDisk(folder.path, plan.runAs);
  }
  return {
    version: 1,
    architecture: platform.architecture,
    machineType: platform.machineType,
    intent: 'stop',
    live: false,
    suspended: false,
    ...(base === undefined ? {} : { base: { path: base.path, format: base.format } }),
    ...(diskBytes === undefined ? {} : { diskBytes }),
  };
}
