/** The folder of each machine of this host: `<data directory>/machines/<pod uid>`. Its driver decides what lies in it. */
import { mkdir } from 'node:fs/promises';
import { keepReserve } from '../../base/reserve.ts';

/** The hypervisor, without rights of its own, must be able to reach sockets here; the parent folder keeps everybody else out. */
const MACHINE_FOLDER_MODE = 0o711;
const PARENT_MODE = 0o700;

export async function makeMachineFolder(root: string, folder: string): Promise<void> {
  await mkdir(root, { recursive: true, mode: PARENT_MODE });
  keepReserve(root);
  await mkdir(folder, { recursive: true, mode: MACHINE_FOLDER_MODE });
}
