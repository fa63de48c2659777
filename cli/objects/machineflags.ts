/** Flags for the fields of a VM and of a VM config, from the table of the fields. */
import { readFileSync } from 'node:fs';
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { MachineRequest } from '../../api/http/vm.ts';
import { DRIVERS_BY_HOST } from '../../api/http/vmspec.ts';
import { VM_FIELD_ROWS, type VMFieldName } from '../../api/v1alpha1/fields.ts';
import { isSSHKey } from '../../api/v1alpha1/guestdata.ts';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import { isMissing, messageOf } from '../../base/errors.ts';
import { CommandError, EXIT } from '../errors.ts';
import { addIneffective, BooleanFlag, parseDiskSize, parseList, parseMemory, wholeNumber } from '../flags.ts';

/** Values of the flags that a VM and a VM config share. The other flags of the table are read by {@link tableValues}. */
export interface MachineFlags {
  readonly image?: string;
  readonly iso?: string;
  /** Public SSH keys. */
  readonly sshKey?: readonly string[] | undefined;
  readonly node?: string;
  readonly tag?: string;
  readonly tagRequired?: boolean;
  readonly scheduler?: 'default' | 'most-allocated';
  readonly vnc?: boolean | undefined;
  /** Ports as HOST:GUEST, HOST:GUEST/tcp or HOST:GUEST/udp. */
  readonly reservePort?: readonly string[];
}

/** A flag of the table. */
interface TableFlag {
  readonly row: (typeof VM_FIELD_ROWS)[number];
  readonly option: Option;
}

/** Returns the flags of the table: those that a VM config has, too, or those of a VM alone. */
function tableFlags(isInConfig: true | undefined): TableFlag[] {
  return VM_FIELD_ROWS.flatMap((row) =>
    row.flag === undefined || row.isInConfig !== isInConfig
      ? []
      : [{ row, option: optionFor(row, row.flag) }],
  );
}

type Parser = (text: string, before: unknown) => unknown;

/** Readers of the flags whose fields have fields of their own, or are lists. */
const STRUCTURED: Partial<Readonly<Record<VMFieldName, Parser>>> = {
  readiness: parseReadiness,
  sshAuthorizedKeys: (text, before) => parseKeys(text, before as readonly string[] | undefined),
  userData: parseUserData,
  userDataSecretRef: parseSecretEntry,
};

const BY_TYPE: Partial<Readonly<Record<TableFlag['row']['type'], Parser>>> = {
  integer: wholeNumber,
  memory: parseMemory,
  disk: parseDiskSize,
};

function optionFor(row: TableFlag['row'], [flag, text]: readonly [string, string]): Option {
  const option = new Option(flag, text);
  if (row.type === 'choice') {
    return option.choices(row.values);
  }
  const parser = STRUCTURED[row.name] ?? BY_TYPE[row.type];
  return parser === undefined ? option : option.argParser(parser);
}

const READINESS: Readonly<Record<string, 'None' | 'SSH' | 'GuestAgent'>> = {
  none: 'None',
  ssh: 'SSH',
  'guest-agent': 'GuestAgent',
};

/** Returns the check that decides whether a machine is Ready. @throws InvalidArgumentError when the text has another form. */
function parseReadiness(text: string): VMSpec['readiness'] {
  const type = READINESS[text];
  if (type !== undefined) {
    return { type };
  }
  if (!/^\d{1,5}$/.test(text)) {
    throw new InvalidArgumentError(
      `It must be ${Object.keys(READINESS).join(', ')}, or the number of a TCP port of the guest.`,
    );
  }
  return { type: 'Port', port: Number(text) };
}

/** Largest file with keys in bytes, as large as the largest list of keys of a VM. */
const KEYS_BYTES = 32 * 1024;
/** Largest file with user data in bytes. A VM takes at most 16384 characters, and a character has at most four bytes. */
const USER_DATA_BYTES = 64 * 1024;

/**
 * Adds the public keys to `before`, and returns the result. The text is a public key, or the path of a file with one key in each line. An
 * empty text adds nothing, so `--ssh-key ''` means that the guest gets no key.
 *
 * @throws InvalidArgumentError when the file cannot be read, or has a line that is not a public key.
 */
export function parseKeys(text: string, before: readonly string[] = []): readonly string[] {
  const key = asKey(text.trim());
  if (key === '' || isSSHKey(key)) {
    return key === '' ? before : [...before, key];
  }
  const lines = readTextFile(text, KEYS_BYTES)
    .split('\n')
    .map((line) => asKey(line.trim()))
    .filter((line) => line !== '' && !line.startsWith('#'));
  const wrong = lines.findIndex((line) => !isSSHKey(line));
  if (lines.length === 0 || wrong >= 0) {
    throw new InvalidArgumentError(
      lines[0]?.includes('PRIVATE KEY') === true
        ? `${text} is a private key, which must stay on this computer. Give the public key ${text}.pub.`
        : `${text} must have one public SSH key in each line, such as ssh-ed25519 AAAA….`,
    );
  }
  return [...before, ...lines];
}

/** Returns the line without its comment if only the comment is not allowed in a key, for example because it has letters beyond ASCII. */
function asKey(line: string): string {
  const bare = line.split(/\s+/, 2).join(' ');
  return !isSSHKey(line) && isSSHKey(bare) ? bare : line;
}

function parseUserData(file: string): string {
  return readTextFile(file, USER_DATA_BYTES);
}

/** Key of the entry of a Secret with user data, unless the flag names another one. */
export const USER_DATA_KEY = 'user-data';

/** Reads `NAME` or `NAME/KEY`. @throws InvalidArgumentError when the text has another form. */
function parseSecretEntry(text: string): VMSpec['userDataSecretRef'] {
  const [, name = '', key = USER_DATA_KEY] = /^([^/]+)(?:\/([^/]+))?$/.exec(text) ?? [];
  if (name === '') {
    throw new InvalidArgumentError('It must be NAME, or NAME/KEY.');
  }
  return { name, key };
}

/** Longest path of Linux in bytes (PATH_MAX). */
const PATH_BYTES = 4_096;

/**
 * Returns the text of a file.
 *
 * @throws InvalidArgumentError when the file cannot be read, is no text, or has more than `limit` bytes; CommandError, which does not repeat
 * the value, when the value is a content and not a path, because a content can be secret.
 */
export function readTextFile(file: string, limit: number): string {
  if (/[\r\n]/.test(file) || file.includes('PRIVATE KEY') || Buffer.byteLength(file) > PATH_BYTES) {
    throw new CommandError('A flag has the content of a file, but must have its path', EXIT.usage);
  }
  let bytes: Buffer;
  try {
    bytes = readFileSync(file);
  } catch (error) {
    throw new InvalidArgumentError(
      isMissing(error) ? `The file ${file} does not exist.` : `${file}: ${messageOf(error)}.`,
    );
  }
  if (bytes.length > limit) {
    throw new InvalidArgumentError(`${file} has ${bytes.length} bytes, but at most ${limit} are allowed.`);
  }
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw new InvalidArgumentError(`${file} is not a text in UTF-8.`);
  }
}

/** Name of the flag for each field of a VM or of a VM config. */
export const FLAG_BY_MACHINE_FIELD: Readonly<Record<string, string>> = {
  'metadata.name': 'the name',
  ...Object.fromEntries(
    [...tableFlags(true), ...tableFlags(undefined)].map(({ row, option }) => [
      `spec.${row.name}`,
      option.long ?? '',
    ]),
  ),
  'spec.placement.node': '--node',
  'spec.placement.tag': '--tag',
  'spec.placement.strategy': '--scheduler',
  'spec.ports': '--reserve-port',
};

/** Adds the flags of the table that belong to a VM alone. */
export function addOwnFlags(command: Command): Command {
  return addAll(command, undefined);
}

function addAll(command: Command, isInConfig: true | undefined): Command {
  return tableFlags(isInConfig).reduce((all, { option }) => all.addOption(option), command);
}

/** Adds the flags that a VM and a VM config share. */
export function addMachineFlags(command: Command): Command {
  addForeignFlags(command);
  return addAll(command, true)
    .option('--node <host>', 'the only host that may run the VM')
    .option('--tag <tag>', 'prefer hosts with this tag')
    .addOption(new BooleanFlag('--tag-required', 'use only hosts with the tag of --tag'))
    .addOption(
      new Option(
        '--scheduler <way>',
        'how to choose the host: spread VMs over the hosts, or fill one host after the other',
      ).choices(['default', 'most-allocated']),
    )
    .addOption(new BooleanFlag('--vnc', 'serve the display over VNC (default: true)'))
    .option(
      '-p, --reserve-port <list>',
      'ports to reserve on the host, as HOST:GUEST, HOST:GUEST/tcp or HOST:GUEST/udp',
      parseList,
    );
}

/** Adds flags that scripts for another platform use. The help does not show them. */
function addForeignFlags(command: Command): void {
  command
    .addOption(new BooleanFlag('--disable-vnc', 'the same as --vnc=false').hideHelp())
    .on('option:disable-vnc', (value: string) => command.setOptionValue('vnc', value === 'false'))
    .addOption(new BooleanFlag('-g, --gpu', 'GPU of the host').hideHelp().argParser(parseGPU));
  for (const flag of ['--disable-net-boost', '--legacy-io']) {
    addIneffective(command, new BooleanFlag(flag, 'driver'), DRIVERS_BY_HOST);
  }
}

/** @throws InvalidArgumentError when the guest is to have the GPU. */
function parseGPU(text: string): boolean {
  if (text !== 'false') {
    throw new InvalidArgumentError('A guest cannot have the GPU of its host.');
  }
  return false;
}

/**
 * Returns the fields of a request to the HTTP API for the flags that are not in the table.
 *
 * @throws CommandError when a flag has no effect without another one.
 */
export function machineRequest(flags: MachineFlags): MachineRequest {
  const { node, tag, tagRequired, scheduler, vnc, reservePort } = flags;
  if (tagRequired === true && tag === undefined) {
    throw new CommandError('--tag-required needs --tag', EXIT.usage);
  }
  const reservedPorts = reservePort?.join(',');
  return { node, tag, tagRequired, scheduler, vncConsole: vnc, reservedPorts };
}

/** Returns the fields of a VM that flags of the table give. */
export function tableValues(flags: object): Partial<VMSpec> {
  const given = flags as Readonly<Record<string, unknown>>;
  return Object.fromEntries(
    [...tableFlags(true), ...tableFlags(undefined)].flatMap(({ row, option }) => {
      const value = given[option.attributeName()];
      return value === undefined ? [] : [[row.name, value]];
    }),
  );
}
