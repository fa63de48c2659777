/** Checks that the machines in the data directory belong to the configured Node. */
import { X509Certificate } from 'node:crypto';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { isMissing, undefinedIfSync } from '../base/errors.ts';
import { identityFiles, nodeNameIn, readPair } from './identity/certificates.ts';

interface Owner {
  nodeName: string;
  dataDirectory: string;
}

/**
 * Returns a message if the data directory has machines of another Node. Their Pods are bound to that Node, so this agent would not see the
 * Pods, and would remove the machines with their disks. The owner's name is read from the stored client certificate.
 */
export function ownerMistakes({ nodeName, dataDirectory }: Owner): string[] {
  const owner = storedName(dataDirectory);
  if (owner === undefined || owner === nodeName || !hasMachines(dataDirectory)) {
    return [];
  }
  return [
    `nodeName: ${dataDirectory} has machines of Node ${owner}. As Node ${nodeName}, the agent would remove them with their disks. Keep the name, delete the VMs of these machines first, or set another dataDirectory`,
  ];
}

function storedName(dataDirectory: string): string | undefined {
  const pair = readPair(identityFiles(dataDirectory).client);
  return pair && nodeNameIn(new X509Certificate(pair.certificate));
}

function hasMachines(dataDirectory: string): boolean {
  const files = undefinedIfSync(isMissing, () => readdirSync(join(dataDirectory, 'pods'))) ?? [];
  return files.some((name) => name.endsWith('.json'));
}
