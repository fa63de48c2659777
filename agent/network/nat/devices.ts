/** Changes single network devices of this host. */
import { writeFile } from 'node:fs/promises';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import { ip } from '../commands.ts';
import { readLinks } from './observe.ts';

/**
 * Deletes a network device. The function also succeeds if the device is missing, because the kernel can have deleted it. For example, if a
 * network namespace contains one device of a veth pair, the kernel deletes both devices together with the namespace.
 */
export async function deleteDevice(device: string): Promise<void> {
  try {
    await ip([`link delete ${device}`]);
  } catch (error) {
    if ((await readLinks()).has(device)) {
      throw error;
    }
  }
}

/** Switches IPv6 off for a device. If the file of this switch is missing, the kernel has no IPv6, and the function does nothing. */
export async function disableIPv6(device: string): Promise<void> {
  await undefinedIf(isMissing, writeFile(`/proc/sys/net/ipv6/conf/${device}/disable_ipv6`, '1'));
}
