/** Changes single network devices of this host. */
import { writeFile } from 'node:fs/promises';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import { ip } from '../commands.ts';
import { readLinks } from './observe.ts';

/**
 * Deletes a device. The function also succeeds if the device is missing. For example, when the kernel deletes a network namespace with one
 * device of a veth pair, it deletes the other device too.
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

/** Switches IPv6 off for a device. A missing file means that the kernel has no IPv6. */
export async function disableIPv6(device: string): Promise<void> {
  await undefinedIf(isMissing, writeFile(`/proc/sys/net/ipv6/conf/${device}/disable_ipv6`, '1'));
}
