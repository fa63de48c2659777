/** Lists, adds and deletes credentials for registries. The credentials belong to a namespace. */
import { additionOf, registryItems, removalOf } from '../../api/http/registrychange.ts';
import {
  readServer,
  REGISTRIES_CONFIG_MAP,
  type Server,
  SERVER_FORM,
  serverUrl,
} from '../../api/v1alpha1/registrycredentials.ts';
import { readData, writeData } from '../../kube/configmapdata.ts';
import { SECRETS } from '../../kube/core.ts';
import { deleteExisting } from '../../kube/client.ts';
import { isNotFound } from '../../kube/errors.ts';
import { type Cluster, clientForChange, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { forEachName } from '../objects/named.ts';
import { print, printDone } from '../output.ts';
import { readPassword } from '../password.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';

export interface RegistryFlags {
  readonly username: string;
  readonly passwordStdin?: boolean;
  readonly allowInsecure?: boolean;
  readonly replace?: boolean;
}

export async function list(terminal: Terminal, globals: Globals): Promise<void> {
  await withCluster(terminal, globals, async ({ client, namespace }) => {
    await print(terminal, globals.output, {
      rows: registryItems(await readData(client, mapIn(namespace))),
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

/**
 * Adds a credential: creates its Secret, and then adds an entry with the name of the Secret to the ConfigMap.
 *
 * @throws CommandError; ApiError.
 */
export async function add(
  terminal: Terminal,
  globals: Globals,
  { server: url, flags }: { server: string; flags: RegistryFlags },
): Promise<void> {
  const server = serverOf(url);
  const { username, passwordStdin = false, allowInsecure = false, replace = false } = flags;
  const password = await readPassword(terminal, passwordStdin);
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const entries = await readData(cluster.client, mapIn(namespace));
    const addition = additionOf(entries, server, { username, password, allowInsecure, replace });
    if ('refusal' in addition) {
      throw new CommandError(inFlags(addition.refusal.message));
    }
    const { secretName: name, secret } = addition;
    const client = clientForChange(cluster, terminal);
    // If an earlier addition failed, its Secret can still exist without an entry.
    await client.delete(SECRETS, { namespace, name });
    await client.create(SECRETS, { metadata: { namespace, name }, ...secret });
    await writeData(client, mapIn(namespace), addition.entries);
    const item = { server: serverUrl(server), username, allowInsecure };
    await printDone(terminal, globals.output, [item], 'Successfully added credential for');
  });
}

export async function remove(terminal: Terminal, globals: Globals, urls: readonly string[]): Promise<void> {
  const servers = urls.map(serverOf);
  await withCluster(terminal, globals, async (cluster) => {
    const byURL = new Map(servers.map((server) => [serverUrl(server), server]));
    const { done, rethrow } = await forEachName([...byURL.keys()], async (url) => {
      await removeOne(cluster, url, byURL.get(url) as Server);
      return { server: url };
    });
    await printDone(terminal, globals.output, done, 'Successfully deleted credential for');
    rethrow();
  });
}

/**
 * Deletes the Secret that Berth created for the registry, and then the entries of the registry. Secrets that people created stay. If a
 * request fails, the command can be repeated, because the entries are still there.
 *
 * @throws CommandError when there is neither an entry nor a Secret.
 */
async function removeOne({ client, namespace }: Cluster, url: string, server: Server): Promise<void> {
  const removal = removalOf(await readData(client, mapIn(namespace)), server);
  const { entries, secretName: name } = removal;
  if (Object.keys(entries).length > 0) {
    await client.delete(SECRETS, { namespace, name });
    await writeData(client, mapIn(namespace), entries);
    return;
  }
  try {
    await deleteExisting(client, SECRETS, { namespace, name });
  } catch (error) {
    throw isNotFound(error)
      ? new CommandError(`credential for ${url} not found in namespace ${namespace}`, EXIT.notFound)
      : error;
  }
}

function mapIn(namespace: string) {
  return { namespace, name: REGISTRIES_CONFIG_MAP };
}

/** Returns the registry that the URL names. @throws CommandError when the text is not the URL of a registry. */
function serverOf(url: string): Server {
  const server = readServer(url);
  if (server === undefined) {
    throw new CommandError(`The server ${JSON.stringify(printable(url))} ${SERVER_FORM}`, EXIT.usage);
  }
  return server;
}

/** Replaces the names of fields in the message with the names of flags, and returns the result. */
function inFlags(message: string): string {
  return message
    .replace('set replace to true', 'use --replace')
    .replace('allowInsecure must be true', 'use --allow-insecure')
    .replace(/^must be/, 'The server must be');
}
