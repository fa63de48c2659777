/** Finds out whether the user of a machine has the right to use the processor's virtualization. */
import { constants } from 'node:fs';
import { open, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { isOfSystem, undefinedIf } from '../../../base/errors.ts';

const DEVICE = '/dev/kvm';
const READ_AND_WRITE = { all: 0o006, group: 0o060 };

/**
 * Returns the Linux groups (gid) that a machine's user needs to open the device `/dev/kvm`; at most one. Returns undefined if the user cannot open the device, or
 * the device does not work. The emulator opens the device as the machine's user, so the rights of root are not enough.
 */
export async function accelerationGroups(hostRoot: string, isRoot: boolean): Promise<number[] | undefined> {
  const path = join(hostRoot, DEVICE);
  const handle = await undefinedIf(isOfSystem, open(path, constants.O_RDWR | constants.O_NONBLOCK));
  if (handle === undefined) {
    return undefined;
  }
  await handle.close();
  return isRoot ? groupsFor(await stat(path)) : [];
}

/**
 * Returns the groups that a user other than root needs to read and write a file. The list is empty if all users may read and write the
 * file. Returns undefined if no usable group gives these rights.
 */
export function groupsFor({ mode, gid }: { mode: number; gid: number }): number[] | undefined {
  if ((mode & READ_AND_WRITE.all) === READ_AND_WRITE.all) {
    return [];
  }
  // The group of root is not usable, because a process in this group could read other files of the host.
  return (mode & READ_AND_WRITE.group) === READ_AND_WRITE.group && gid !== 0 ? [gid] : undefined;
}
