/**
 * Makes and stores the documents that a guest reads at its start: user data, metadata and vendor data in the form of cloud-init's NoCloud.
 * The documents are in the machine's folder, so that a start after a reboot of the host does not need the API server. They can contain
 * passwords, so messages must not contain any part of them.
 */
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { displayOf, type Machine, parseDocument } from '../../api/v1alpha1/machine.ts';
import { formatQuantity } from '../../api/v1alpha1/quantity.ts';
import { registryReference } from '../../api/v1alpha1/source.ts';
import type { STANDARD_METADATA } from '../../api/v1alpha1/guestdata.ts';
import { isMissing, undefinedIf } from '../../base/errors.ts';
import { writeWhole } from '../../base/files.ts';
import { isoImage } from './iso9660.ts';

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
  const reference = registryReference(image) ?? '';
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

const BYTE_ORDER_MARK = '\uFEFF';

/**
 * Beginnings of user data that cloud-init (from `#cloud-config` on) and cloudbase-init for Windows (from `#ps1` on) read, in lower case.
 * cloud-init compares only the beginning, so `#include` stands for `#include-once` too, and `#cloud-config` for its variants.
 */
const BEGINNINGS = [
  '#cloud-config',
  '#!',
  '#include',
  '#cloud-boothook',
  '#part-handler',
  '#upstart-job',
  '## template:',
  'content-type: multipart/',
  '#ps1',
  'rem cmd',
  '<powershell>',
  '<script>',
] as const;
/** cloud-init reads user data as a MIME message if it finds this header in its first characters. */
const MIME_HEADER = 'mime-version:';
const MIME_CHARACTERS = 4096;
/** Number of bytes of a decoded base64 text that are looked at. */
const DECODED_BYTES = 64;

const ignitionSchema = z.object({ ignition: z.object({ version: z.string() }) });

/** Returns whether user data is an Ignition config. */
export function isIgnition(userData: string | undefined): userData is string {
  return ignitionSchema.safeParse(parseDocument(userData)).success;
}

/**
 * Returns user data without a byte order mark at its beginning. Editors and shells of Windows write this mark, and it keeps guests from
 * reading the first line.
 */
export function withoutByteOrderMark(userData: string): string {
  return userData.startsWith(BYTE_ORDER_MARK) ? userData.slice(1) : userData;
}

/**
 * Returns a text that tells why guests may ignore user data, or what was changed in it. Returns undefined if nothing is wrong. `userData` is
 * the data as the user gave it.
 */
export function userDataNotice(userData: string): string | undefined {
  const text = withoutByteOrderMark(userData);
  const mistake = findMistake(text);
  const removed = text === userData ? [] : ['The byte order mark at its beginning was removed'];
  const notices = [...removed, ...(mistake === undefined ? [] : [mistake])];
  return notices.length === 0 ? undefined : notices.join('. ');
}

function findMistake(text: string): string | undefined {
  if (isIgnition(text)) {
    return undefined;
  }
  if (isRead(text)) {
    // A script is started as a program, and the kernel takes the carriage return for a part of the interpreter's name.
    return /^#!.*\r\n/.test(text)
      ? 'Its first line ends with a carriage return, so no guest finds the interpreter of this script: use lines that end with a line feed'
      : undefined;
  }
  const cause = causeOf(text);
  return `Its first line is none that cloud-init or Ignition reads${cause}. cloud-init reads, for example, #cloud-config and #!/bin/sh`;
}

/** Returns whether cloud-init or cloudbase-init reads user data that begins so. */
function isRead(text: string): boolean {
  const lower = text.slice(0, MIME_CHARACTERS).toLowerCase();
  return BEGINNINGS.some((beginning) => lower.startsWith(beginning)) || lower.includes(MIME_HEADER);
}

/** Returns the probable cause as a part of a sentence, or an empty text. */
function causeOf(text: string): string {
  if (text.includes('\0')) {
    return ', because it is UTF-16: write it as UTF-8';
  }
  if (/^\s*$/.test(text)) {
    return ', because it is empty';
  }
  const trimmed = text.replace(/^[\s\u200B\uFEFF]+/, '');
  if (trimmed !== text && (isRead(trimmed) || isIgnition(trimmed))) {
    return /^[^\S\r\n]*\r?\n/.test(text)
      ? ', because it is empty: remove the empty lines before it'
      : ', because it begins with a space: remove it';
  }
  if (/^#\s+(cloud-config|!)/i.test(trimmed)) {
    return ', because there is a space after #: remove it';
  }
  return isRead(decoded(text)) ? ', because it is base64: write the decoded text' : '';
}

/** Returns the beginning of the text that a base64 text stands for, or an empty text if it is no base64. */
function decoded(text: string): string {
  const begin = /^[A-Za-z0-9+/]{16,}/.exec(text)?.[0] ?? '';
  return Buffer.from(begin, 'base64').toString('utf8', 0, DECODED_BYTES);
}

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
