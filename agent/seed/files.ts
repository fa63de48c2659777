/**
 * Writes the files of a machine's seed (the data that a guest reads at its start) into the machine's folder. The hypervisor opens the files
 * there.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { writeWhole } from '../../base/files.ts';
import type { SeedDocuments } from './documents.ts';
import { isIgnition } from './format.ts';
import { isoImage } from './iso9660.ts';

/** Files of a seed. The names are relative to the machine's folder. */
export interface SeedFiles {
  /** ISO image with the documents, for cloud-init. */
  disk: string;
  /** Ignition config. Undefined if the user data is not an Ignition config. */
  ignition?: string | undefined;
}

const DISK = 'seed.iso';
const IGNITION = 'ignition.json';
/** Volume label by which cloud-init finds a seed disk. */
const LABEL = 'cidata';

/**
 * Returns whether a machine gets a seed disk. A machine can boot from an ISO alone, for example a rescue system. Such a machine gets a seed
 * disk only if it has user data, metadata or SSH keys for the guest.
 */
export function hasSeed(machine: Machine): boolean {
  const { image, userData, userDataSecretRef, guestMetadata, sshAuthorizedKeys } = machine;
  const isGiven = userData !== undefined || userDataSecretRef !== undefined || sshAuthorizedKeys.length > 0;
  return image !== undefined || isGiven || Object.keys(guestMetadata).length > 0;
}

/**
 * Writes the files of the seed. Only the agent's user can read these files. That is sufficient, because hypervisors start as this user, and
 * open the files before they change to another user.
 */
export async function writeSeedFiles(path: string, documents: SeedDocuments): Promise<SeedFiles> {
  await writeWhole(join(path, DISK), seedImage(documents));
  if (!isIgnition(documents.userData)) {
    await rm(join(path, IGNITION), { force: true });
    return { disk: DISK };
  }
  await writeWhole(join(path, IGNITION), documents.userData);
  return { disk: DISK, ignition: IGNITION };
}

/** Returns the image of the seed disk. The image always contains the file `user-data`, because cloud-init requires this file. */
function seedImage({ userData = '', metaData, vendorData }: SeedDocuments): Buffer {
  const texts = { 'meta-data': metaData, 'user-data': userData, 'vendor-data': vendorData };
  return isoImage(
    LABEL,
    Object.entries(texts).flatMap(([name, text]) =>
      text === undefined ? [] : [{ name, data: Buffer.from(text, 'utf8') }],
    ),
  );
}
