/** The noun `namespace`. */
import type { Command } from 'commander';
import { BooleanFlag } from './flags.ts';
import type { Globals } from './globals.ts';
import type { Terminal } from './terminal.ts';
import { createNamespace, deleteNamespace } from '../actions/namespaces.ts';
import {
  isObjectName,
  isServedNamespace,
  NAMESPACE_PREFIX,
  SERVED_NAMESPACES,
  SYSTEM_NAMESPACE,
} from '../api/v1alpha1/names.ts';
import type { NamespaceItem } from '../api/http/namespace.ts';
import { namespaceItem } from '../api/http/namespaceitem.ts';
import { VMS } from '../api/v1alpha1/resources.ts';
import { NAMESPACES } from '../kube/core.ts';
import { isNotFound } from '../kube/errors.ts';
import { type UserCluster, withCluster } from './cluster.ts';
import { CommandError, EXIT } from './errors.ts';
import { directOrAsked, namespacePath } from './httpapi.ts';
import { forEachName } from './objects/named.ts';
import { print, printDone } from './output.ts';
import { printable } from './text.ts';

export function addNamespaceCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('list')
    .alias('ls')
    .description('List the namespaces that you may see')
    .argument('[names...]', 'names of the namespaces to list (default: all)')
    .action(async (names: string[], _flags, command: Command) => {
      await list(terminal, command.optsWithGlobals<Globals>(), names);
    });
  noun
    .command('create')
    .description('Create a namespace. The operator makes its role bindings')
    .argument('<name>', 'name of the namespace; it must begin with the namespace prefix of Berth')
    .addOption(new BooleanFlag('--enable-custom-pods', 'whether users may have Pods in the namespace'))
    .action(async (name: string, flags: { enableCustomPods?: boolean }, command: Command) => {
      const { enableCustomPods: customPods = false } = flags;
      await create(terminal, command.optsWithGlobals<Globals>(), { name, customPods });
    });
  noun
    .command('delete')
    .description(
      'Delete namespaces with all their objects. The command refuses namespaces that have hosts or VMs',
    )
    .argument('<names...>', 'names of the namespaces')
    .action(async (names: string[], _flags, command: Command) => {
      await remove(terminal, command.optsWithGlobals<Globals>(), names);
    });
}

export function isServed(name: string): boolean {
  return isServedNamespace(name, SERVED_NAMESPACES);
}

async function list(terminal: Terminal, globals: Globals, names: readonly string[]): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const all = await directOrAsked(
      cluster,
      signal,
      async () => {
        const { items } = await cluster.client.list(NAMESPACES, { signal });
        return items.filter(({ metadata }) => isServed(metadata.name)).map(namespaceItem);
      },
      async (server) =>
        ((await server({ method: 'GET', path: '/namespaces' })) as { items: NamespaceItem[] }).items,
    );
    const wanted = names.map(cluster.realNamespace);
    const rows = all.filter(({ name }) => wanted.length === 0 || wanted.includes(name));
    const missing = wanted.find((name) => rows.every((row) => row.name !== name));
    if (missing !== undefined) {
      throw namespaceNotFound(missing);
    }
    await print(terminal, globals.output, {
      rows,
      columns: [
        { header: 'NAME', value: ({ name }) => name },
        { header: 'CUSTOM-PODS', value: ({ customPods }) => String(customPods) },
      ],
      itemOf: (item) => item,
      none: 'There are no namespaces that you may see',
    });
  });
}

export async function create(
  terminal: Terminal,
  globals: Globals,
  { name: given, customPods }: { name: string; customPods: boolean },
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async ({ client, realNamespace }) => {
    const name = realNamespace(given);
    if (!isServed(name)) {
      throw new CommandError(
        `The name ${JSON.stringify(printable(name))} must begin with ${NAMESPACE_PREFIX}`,
        EXIT.usage,
      );
    }
    const created = await createNamespace(client, name, { customPods, signal });
    const message = 'Successfully created namespace';
    await printDone(terminal, globals.output, [namespaceItem(created)], message);
  });
}

/**
 * Deletes the namespaces. Only a namespace without hosts and VMs can be deleted. If the user may not see hosts and VMs, or may not
 * delete namespaces, the HTTP API makes this check and deletes the namespace.
 */
export async function remove(terminal: Terminal, globals: Globals, names: readonly string[]): Promise<void> {
  await withCluster(terminal, globals, async (cluster) => {
    const { done, rethrow } = await forEachName(names.map(cluster.realNamespace), async (name) => {
      await directOrAsked(
        cluster,
        terminal.signal,
        async () => await removeOne(cluster, name),
        async (server) => await server({ method: 'DELETE', path: namespacePath(name) }),
      );
      return { name };
    });
    await printDone(terminal, globals.output, done, 'Successfully deleted namespace');
    rethrow();
  });
}

function namespaceNotFound(name: string): CommandError {
  return new CommandError(`namespace ${JSON.stringify(printable(name))} not found`, EXIT.notFound);
}

/** @throws CommandError when the namespace does not exist; ActionError when it belongs to Berth, or has hosts or VMs; ApiError. */
async function removeOne({ client }: UserCluster, name: string): Promise<void> {
  const missing = namespaceNotFound(name);
  if (name !== SYSTEM_NAMESPACE && (!isObjectName(name) || !isServed(name))) {
    throw missing;
  }
  const listVMs = async () => ({
    vms: (await client.list(VMS, { namespace: name })).items,
    areHidden: false,
  });
  try {
    await deleteNamespace(client, name, { namespaces: SERVED_NAMESPACES, listVMs });
  } catch (error) {
    throw isNotFound(error) ? missing : error;
  }
}
