/** The noun `registry`: the credentials of a namespace for registries. */
import { type Command, Option } from 'commander';
import { BooleanFlag } from './flags.ts';
import type { Globals } from './globals.ts';
import type { Terminal } from './terminal.ts';
import { addCredential, listCredentials, readTypedServer, removeCredential } from '../actions/credentials.ts';
import { ActionError } from '../actions/error.ts';
import { SERVER_FORM, serverUrl } from '../api/v1alpha1/registrycredentials.ts';
import { isNotFound } from '../kube/errors.ts';
import { clientForChange, type UserCluster, withCluster } from './cluster.ts';
import { CommandError, EXIT } from './errors.ts';
import { forEachName } from './objects/named.ts';
import { print, printDone } from './output.ts';
import { readPassword } from './prompt.ts';
import { printable } from './text.ts';

export function addRegistryCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('list')
    .alias('ls')
    .description('List the registries for which the namespace has credentials')
    .action(async (_flags, command: Command) => {
      await list(terminal, command.optsWithGlobals<Globals>());
    });
  noun
    .command('add')
    .description('Add the credential for a registry')
    .argument('<server>', 'URL of the registry, for example https://registry.example:5000')
    .requiredOption('-u, --username <name>', 'name of the user')
    .addOption(new BooleanFlag('--password-stdin', 'read the password from the standard input'))
    .addOption(
      new Option('-p, --password <password>', 'password, as scripts for another platform give it').hideHelp(),
    )
    .addOption(
      new BooleanFlag(
        '--allow-insecure',
        'use the registry without TLS, or without checking its certificate',
      ),
    )
    .addOption(new BooleanFlag('--replace', 'replace the credential of the registry'))
    .action(async (server: string, flags: RegistryFlags, command: Command) => {
      await add(terminal, command.optsWithGlobals<Globals>(), { server, flags });
    });
  noun
    .command('delete')
    .alias('remove')
    .description('Delete the credentials for registries')
    .argument('<servers...>', 'URLs of the registries')
    .action(async (servers: string[], _flags, command: Command) => {
      await remove(terminal, command.optsWithGlobals<Globals>(), servers);
    });
}

export interface RegistryFlags {
  readonly username: string;
  readonly passwordStdin?: boolean;
  /** Password in the command line. Only scripts for another platform give it. */
  readonly password?: string;
  readonly allowInsecure?: boolean;
  readonly replace?: boolean;
}

export async function list(terminal: Terminal, globals: Globals): Promise<void> {
  await withCluster(terminal, globals, async ({ client, namespace }) => {
    await print(terminal, globals.output, {
      rows: await listCredentials(client, namespace),
      columns: [
        { header: 'SERVER', value: ({ server }) => server },
        { header: 'USERNAME', value: ({ username }) => username },
        { header: 'INSECURE', value: ({ allowInsecure }) => String(allowInsecure) },
      ],
      itemOf: (item) => item,
      none: `There are no credentials in namespace ${namespace}`,
    });
  });
}

/** Adds a credential. @throws CommandError; ApiError. */
export async function add(
  terminal: Terminal,
  globals: Globals,
  { server: url, flags }: { server: string; flags: RegistryFlags },
): Promise<void> {
  const server = checkedUrl(url);
  const { username, allowInsecure = false, replace = false } = flags;
  const password = await passwordOf(terminal, flags);
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const request = { server, username, password, allowInsecure, replace };
    const change = () => clientForChange(cluster, terminal);
    await addCredential(cluster.client, namespace, request, change).catch(throwInFlags);
    const item = { server, username, allowInsecure };
    await printDone(terminal, globals.output, [item], 'Successfully added credential for');
  });
}

/** Returns the password of the flags, or the one that a person types. @throws CommandError when the flags contradict each other. */
async function passwordOf(
  terminal: Terminal,
  { password, passwordStdin = false }: RegistryFlags,
): Promise<string> {
  if (password === undefined) {
    return await readPassword(terminal, passwordStdin);
  }
  if (passwordStdin) {
    throw new CommandError('Use only one of --password and --password-stdin', EXIT.usage);
  }
  terminal.err(
    'warning: other users of this computer can see the value of --password. Use --password-stdin\n',
  );
  return password;
}

export async function remove(terminal: Terminal, globals: Globals, urls: readonly string[]): Promise<void> {
  const servers = urls.map(checkedUrl);
  await withCluster(terminal, globals, async (cluster) => {
    const { done, rethrow } = await forEachName(servers, async (server) => {
      await removeOne(cluster, server);
      return { server };
    });
    await printDone(terminal, globals.output, done, 'Successfully deleted credential for');
    rethrow();
  });
}

/** Removes the credential. @throws CommandError when there is none for the registry; ApiError. */
async function removeOne({ client, namespace }: UserCluster, url: string): Promise<void> {
  try {
    await removeCredential(client, namespace, url);
  } catch (error) {
    throw isNotFound(error)
      ? new CommandError(`credential for ${url} not found in namespace ${namespace}`, EXIT.notFound)
      : error;
  }
}

/** Returns the URL in its usual form. @throws CommandError when the text is not the URL of a registry. */
function checkedUrl(url: string): string {
  const server = readTypedServer(url);
  if (server === undefined) {
    throw new CommandError(`The server ${JSON.stringify(printable(url))} ${SERVER_FORM}`, EXIT.usage);
  }
  return serverUrl(server);
}

/** Throws the error with the names of flags in place of the names of fields. */
function throwInFlags(error: unknown): never {
  if (!(error instanceof ActionError)) {
    throw error;
  }
  throw new CommandError(
    error.message
      .replace('set replace to true', 'use --replace')
      .replace('allowInsecure must be true', 'use --allow-insecure')
      .replace(/^must be/, 'The server must be'),
  );
}
