/** Reads the credentials of the cluster's own image storage. */
import { readFileSync } from 'node:fs';
import type { Logger } from 'pino';
import { codeOf, isOfSystem } from '../../../base/errors.ts';
import { Keyring, listFaults } from './credentials.ts';
import type { CredentialFault } from './dockerconfig.ts';

/**
 * Returns the credentials of the files that the settings of registries name. A file that cannot be read gives no credentials for its own
 * registry, and does not stop the use of others.
 */
export function readStorageKeyring(
  registries: readonly { host: string; credentialsFile?: string | undefined }[],
  logger: Logger,
): Keyring {
  const texts: string[] = [];
  const names: string[] = [];
  const faults: CredentialFault[] = [];
  for (const { host, credentialsFile } of registries) {
    if (credentialsFile === undefined) {
      continue;
    }
    const name = `The credentialsFile of ${host} (images.registries)`;
    try {
      texts.push(readFileSync(credentialsFile, 'utf8'));
      names.push(name);
    } catch (error) {
      if (!isOfSystem(error)) {
        throw error;
      }
      faults.push({ reason: undefined, message: `${name} cannot be read: ${codeOf(error)}` });
    }
  }
  const keyring = Keyring.parse(texts, undefined, { names, faults });
  if (keyring.faults.length > 0) {
    logger.warn({ faults: listFaults(keyring.faults) }, 'Credentials of the image storage are not used');
  }
  return keyring;
}
