/** Images with the memory of real guests, and commands in these guests. */
import { join } from 'node:path';
import type { BaseImage, MemoryFiles } from '../../agent/disks/disk.ts';
import type { MachineFolder, VmLaunchPlan } from '../../agent/drivers/driver.ts';
import type { QemuDriver } from '../../agent/drivers/qemu/driver.ts';
import { BOOT_DEADLINE_MILLISECONDS, type Host } from './qemuguest.ts';

export type WarmImage = BaseImage & { memory: MemoryFiles };

/** Returns the plan for a guest with another name and MAC address. */
export function namedPlan(plan: VmLaunchPlan, name: string, macAddress: string): VmLaunchPlan {
  const { vm } = plan.guest;
  const named = { ...vm, vm: { ...vm.vm, name }, hardware: { ...vm.hardware, macAddress } };
  return { ...plan, guest: { ...plan.guest, vm: named }, network: { ...plan.network, macAddress } };
}

/** Saves the disk and the memory of a running machine in the host's folder. */
export async function saveWithMemory(
  { driver, directory }: Pick<Host, 'driver' | 'directory'>,
  folder: MachineFolder,
  name: string,
): Promise<WarmImage> {
  const at = (end: string): string => join(directory, `${name}.${end}`);
  const { memory, virtualSizeBytes } = await driver.copyDisk(folder, {
    target: at('raw'),
    memory: { ram: at('ram'), state: at('state') },
    signal: new AbortController().signal,
    onProgress: () => undefined,
  });
  if (memory === undefined) {
    throw new Error('the memory was not saved');
  }
  return { path: at('raw'), digest: 'sha256:unused', format: 'raw', virtualSizeBytes, memory };
}

/** Runs a script in the guest by its guest agent. Returns what the script printed, without space at its ends. */
export async function inGuest(driver: QemuDriver, folder: MachineFolder, script: string): Promise<string> {
  const { stdout } = await driver.execute(folder, {
    path: '/bin/sh',
    arguments: ['-c', script],
    reserve: () => true,
    signal: AbortSignal.timeout(BOOT_DEADLINE_MILLISECONDS),
  });
  return Buffer.concat(stdout).toString().trim();
}
