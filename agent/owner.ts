/** Checks that the machines in the data directory belong to the configured Node, and that the agent sees their Pods. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import * as z from 'zod';
import { parseDocument } from '../api/v1alpha1/machine.ts';
import { isMissing, undefinedIfSync } from '../base/errors.ts';
import { writeWholeSync } from '../base/files.ts';

/** Part of the record of a machine. */
const recordSchema = z.looseObject({ key: z.string() });

interface Owner {
  nodeName: string;
  /** The only namespace whose Pods the agent sees. */
  namespace?: string | undefined;
  dataDirectory: string;
}

/** Stores the name of the Node, so that the next start notices another name. */
export function rememberOwner({ nodeName, dataDirectory }: Owner): void {
  writeWholeSync(ownerFile(dataDirectory), nodeName);
}

/**
 * Returns a message if the data directory has machines whose Pods this agent would not see, because they are bound to another Node or are in
 * another namespace. The agent would remove these machines with their disks.
 */
export function ownerMistakes({ nodeName, namespace, dataDirectory }: Owner): string[] {
  const owner = storedName(dataDirectory) ?? nodeName;
  const machines = namespacesOfMachines(dataDirectory);
  const known = machines.filter((one) => one !== undefined);
  const others = [...new Set(known)].filter((one) => namespace !== undefined && one !== namespace);
  const remedy =
    'the agent would remove them with their disks. Keep the name, delete the VMs of these machines first, or set another dataDirectory';
  return [
    ...(machines.length > 0 && owner !== nodeName
      ? [`nodeName: ${dataDirectory} has machines of Node ${owner}. As Node ${nodeName}, ${remedy}`]
      : []),
    ...(others.length > 0
      ? [
          `namespace: ${dataDirectory} has machines of ${others.join(', ')}. For ${namespace} alone, ${remedy}`,
        ]
      : []),
  ];
}

/** Returns the name of the Node at the last start. */
function storedName(dataDirectory: string): string | undefined {
  return undefinedIfSync(isMissing, () => readFileSync(ownerFile(dataDirectory), 'utf8'));
}

function ownerFile(dataDirectory: string): string {
  return join(dataDirectory, 'node');
}

/** Returns the namespace of each machine. It is undefined for a machine whose record is unreadable. */
function namespacesOfMachines(dataDirectory: string): (string | undefined)[] {
  const folder = join(dataDirectory, 'pods');
  const files = undefinedIfSync(isMissing, () => readdirSync(folder)) ?? [];
  const records = files.filter((name) => name.endsWith('.json'));
  return records.map((name) => namespaceIn(readFileSync(join(folder, name), 'utf8')));
}

function namespaceIn(record: string): string | undefined {
  const { key } = recordSchema.safeParse(parseDocument(record)).data ?? {};
  return key?.split('/')[0];
}
