/** Images with the memory of real guests, and commands in these guests. */
import { join } from 'node:path';
import type { BaseImage, MemoryFiles } from '../../agent/disks/disk.ts';
import type { MachineFolder } from '../../agent/drivers/driver.ts';
import type { QemuDriver } from '../../agent/drivers/qemu/driver.ts';
import { BOOT_DEADLINE_MILLISECONDS, type Host } from './qemuguest.ts';

export type WarmImage = BaseImage & { memory: MemoryFiles };

/** Saves the disk and the memory of a running machine in the host's folder. */
export async function saveWithMemory(host: Host, folder: MachineFolder, name: string): Promise<WarmImage> {
  const at = (end: string): string => join(host.directory, `${name}.${end}`);
  const { memory, virtualSizeBytes } = await host.driver.copyDisk(folder, {
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
