/** The noun `config`: the settings of the command. */
import { mkdir, readFile, realpath } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { type Command, InvalidArgumentError } from 'commander';
import { parseDocument } from 'yaml';
import type { Globals } from './globals.ts';
import {
  API_URL_FORM,
  API_URL_KEY,
  CERTIFICATE_AUTHORITY_KEY,
  parseApiURL,
  readSettings,
  type Settings,
  settingsFile,
  settingsOf,
} from './settingsfile.ts';
import type { Terminal } from './terminal.ts';
import { isMissing, messageOf, undefinedIf } from '../base/errors.ts';
import { writeWhole } from '../base/files.ts';
import { readAuthority } from './authority.ts';
import { CommandError, EXIT } from './errors.ts';
import { print } from './output.ts';

export function addConfigCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('set')
    .description(
      'Change settings. If the settings file does not exist, the command creates the file and its folders',
    )
    .option('--api-url <url>', 'address of the HTTP API, for example https://berth.example', parseAddress)
    .option(
      '--certificate-authority <file>',
      'PEM file with the certificate of the private authority that signed the certificate of the HTTP API',
    )
    .action(async (flags: ConfigFlags, command: Command) => {
      await change(terminal, command.optsWithGlobals<Globals>(), flags);
    });
  noun
    .command('view')
    .description('Show the settings')
    .action(async (_options, command: Command) => {
      await view(terminal, command.optsWithGlobals<Globals>());
    });
}

function parseAddress(text: string): string {
  const address = parseApiURL(text);
  if (address === undefined) {
    throw new InvalidArgumentError(`It ${API_URL_FORM}.`);
  }
  return address;
}

export interface ConfigFlags {
  readonly apiUrl?: string;
  /** Path of a PEM file. */
  readonly certificateAuthority?: string;
}

/** Returns the keys and values that the flags set. @throws CommandError when no flag is given, or when a file has no certificate. */
async function changesIn({ apiUrl, certificateAuthority }: ConfigFlags): Promise<Map<string, string>> {
  const changes = new Map<string, string>();
  if (apiUrl !== undefined) {
    changes.set(API_URL_KEY, apiUrl);
  }
  if (certificateAuthority !== undefined) {
    await readAuthority(certificateAuthority, '--certificate-authority');
    // Later commands can run in another folder.
    changes.set(CERTIFICATE_AUTHORITY_KEY, resolve(certificateAuthority));
  }
  if (changes.size === 0) {
    throw new CommandError('Name what to set: --api-url, --certificate-authority or both', EXIT.usage);
  }
  return changes;
}

/** Writes the values of the flags to the settings file. @throws CommandError when a file has a mistake or cannot be written. */
export async function change(terminal: Terminal, { output }: Globals, flags: ConfigFlags): Promise<void> {
  const changes = await changesIn(flags);
  const file = settingsFile(terminal.environment);
  const text = (await undefinedIf(isMissing, readFile(file, 'utf8'))) ?? '';
  // This line throws if the file has a mistake. In this case, the file stays as it is, so that the user can correct the mistake.
  await settingsOf(file, text);
  const document = parseDocument(text);
  for (const [key, value] of changes) {
    document.set(key, value);
  }
  const changed = document.toString();
  try {
    await mkdir(dirname(file), { recursive: true });
    // If the path is a link, the link stays, and its target is replaced.
    await writeWhole((await undefinedIf(isMissing, realpath(file))) ?? file, changed);
  } catch (error) {
    throw new CommandError(`The settings file could not be written: ${messageOf(error)}`);
  }
  if (output === 'table' || output === 'wide') {
    for (const [key, value] of changes) {
      terminal.out(`Set ${key} to ${value} in ${file}\n`);
    }
  } else {
    await show(terminal, output, await settingsOf(file, changed));
  }
}

export async function view(terminal: Terminal, { output }: Globals): Promise<void> {
  await show(terminal, output, await readSettings(terminal.environment));
}

async function show(
  terminal: Terminal,
  format: Globals['output'],
  { apiURL, certificateAuthority, context, namespacePrefix, namespaceVariable, sshUser }: Settings,
): Promise<void> {
  const settings = [
    { name: API_URL_KEY, value: apiURL },
    { name: CERTIFICATE_AUTHORITY_KEY, value: certificateAuthority },
    { name: 'aliases.context', value: context },
    { name: 'aliases.namespacePrefix', value: namespacePrefix },
    { name: 'aliases.namespaceVariable', value: namespaceVariable },
    { name: 'ssh.user', value: sshUser },
  ];
  await print(terminal, format, {
    rows: settings.filter(({ value }) => value !== undefined),
    columns: [
      { header: 'SETTING', value: ({ name }) => name },
      { header: 'VALUE', value: ({ value }) => value },
    ],
    itemOf: (setting) => setting,
    none: `There are no settings in ${settingsFile(terminal.environment)}`,
  });
}
