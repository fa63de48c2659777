/**
 * Folder of each machine of this host: `<data directory>/machines/<pod uid>`. The machine's driver decides which files are in it.
 */
import { mkdir } from 'node:fs/promises';
import { keepReserve } from '../../base/reserve.ts';

/**
 * Mode that lets the hypervisor, which has no rights of its own, reach sockets in the folder. The parent folder keeps all other
 * users out.
 */
const MACHINE_FOLDER_MODE = 0o711;
const PARENT_MODE = 0o700;

export async function makeMachineFolder(root: string, folder: string): Promise<void> {
  await mkdir(root, { recursive: true, mode: PARENT_MODE });
  keepReserve(root);
  await mkdir(folder, { recursive: true, mode: MACHINE_FOLDER_MODE });
}
