/**
 * Makes and stores the documents that a guest reads at its start: user data, metadata and vendor data in the form of cloud-init's NoCloud.
 * The documents are in the machine's folder, so that a start after a reboot of the host does not need the API server. They can contain
 * passwords, so messages must not contain any part of them.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { displayOf, type Machine, parseDocument } from '../../api/v1alpha1/machine.ts';
import { formatQuantity } from '../../api/v1alpha1/quantity.ts';
import type { STANDARD_METADATA } from '../../api/v1alpha1/guestdata.ts';
import { isMissing, undefinedIf } from '../../base/errors.ts';
import { writeWhole } from '../../base/files.ts';

const documentsSchema = z.object({
  /** User data: text that the VM's owner wrote for the guest, in the VM or in a Secret. Undefined if the VM has no user data. */
  userData: z.string().optional(),
  /** Text of the file `meta-data`: JSON, which is also valid YAML. */
  metaData: z.string(),
  /** Text of the file `vendor-data`. A setting in this file applies only if the user data does not have the same setting. */
  vendorData: z.string().optional(),
  /** Metadata values for the guest by key: the standard keys and the VM's `guestMetadata`. */
  values: z.record(z.string(), z.string()),
});
export type SeedDocuments = z.infer<typeof documentsSchema>;

/** Name of the file with the documents. Only the agent can read this file. */
const FILE = 'seed.json';

/**
 * Returns the documents of the machine's last start from the machine's folder `path`. The result is undefined if the file with the documents
 * does not exist or is invalid.
 */
export async function seedDocuments(path: string): Promise<SeedDocuments | undefined> {
  const text = await undefinedIf(isMissing, readFile(join(path, FILE), 'utf8'));
  return documentsSchema.safeParse(parseDocument(text)).data;
}

/** Saves the documents in the machine's folder `path`. A reader sees either all old documents or all new documents. */
export async function writeSeedDocuments(path: string, documents: SeedDocuments): Promise<void> {
  await writeWhole(join(path, FILE), JSON.stringify(documents));
}

/** Values for one start of a machine. The object `Machine` does not contain these values. */
export interface StartFacts {
  /** Name of the host. */
  host: string;
  cpu: number;
  memoryBytes: number;
  userData: string | undefined;
}

/** Makes the documents for one start of a machine. */
export function makeDocuments(machine: Machine, facts: StartFacts): SeedDocuments {
  const keys = machine.sshAuthorizedKeys;
  const values = { ...machine.guestMetadata, ...standardValues(machine, facts) };
  return {
    userData: facts.userData,
    metaData: yamlSafe({
      'instance-id': machine.hardware.uuid,
      'local-hostname': machine.vm.name,
      ...(keys.length > 0 && { 'public-keys': keys }),
      berth: values,
    }),
    // cloud-init adds `public-keys` to the guest's default user. With `disable_root: false`, the user root can log in too, although most
    // images forbid this. User data can forbid it again.
    ...(keys.length > 0 && { vendorData: '#cloud-config\n{"disable_root":false}\n' }),
    values,
  };
}

function standardValues(
  machine: Machine,
  { host, cpu, memoryBytes }: StartFacts,
): Record<(typeof STANDARD_METADATA)[number], string> {
  const { vm, image, imageName, isoName } = machine;
  const display = displayOf(machine);
  const reference = image?.type === 'registry' ? image.reference : '';
  return {
    id: vm.uid,
    name: vm.name,
    namespace: vm.namespace,
    host,
    image: imageName ?? isoName ?? reference,
    cpu: String(cpu),
    memory: formatQuantity(memoryBytes),
    display: display === undefined ? '' : `${display.width}x${display.height}@${display.dpi}`,
  };
}

/** Characters that YAML readers refuse in a file, although JSON allows them. */
const NOT_IN_YAML = /[\u007f-\u009f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]/gu;

/** Returns JSON text that is also valid YAML. */
function yamlSafe(value: unknown): string {
  return JSON.stringify(value).replaceAll(
    NOT_IN_YAML,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/**
 * Returns a function that takes a machine's uid and the path of a page, and returns the text of the page. A guest reads these pages over
 * HTTP. The pages are the metadata values (`/metadata/KEY`), and the files of cloud-init's NoCloud for
 * `ds=nocloud;s=http://169.254.169.254/`.
 */
export function seedPages(
  machinesDirectory: string,
): (uid: string, path: string) => Promise<string | undefined> {
  return async (uid, path) => {
    const documents = await seedDocuments(join(machinesDirectory, uid));
    return documents && seedPage(documents, path);
  };
}

/** Returns the text of a page. The result is undefined if the seed has no such page. */
export function seedPage(documents: SeedDocuments, path: string): string | undefined {
  switch (path) {
    case '/meta-data':
      return documents.metaData;
    // cloud-init requires `/user-data`, and asks ten times for a `/vendor-data` that is missing. So both pages exist, even if they are
    // empty.
    case '/user-data':
      return documents.userData ?? '';
    case '/vendor-data':
      return documents.vendorData ?? '';
    case '/metadata/':
      return Object.keys(documents.values)
        .toSorted()
        .map((key) => `${key}\n`)
        .join('');
    default:
      return valueAt(documents.values, path);
  }
}

function valueAt(values: SeedDocuments['values'], path: string): string | undefined {
  const [, key] = /^\/metadata\/([^/]+)$/.exec(path) ?? [];
  return key !== undefined && Object.hasOwn(values, key) ? values[key] : undefined;
}
