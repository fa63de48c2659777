/** The noun `serviceaccount`: the accounts of programs, and their tokens. A new account gets the role dev in its namespace. */
import type { Command } from 'commander';
import { BooleanFlag } from './flags.ts';
import type { Globals } from './globals.ts';
import type { Terminal } from './terminal.ts';
import { lifeSeconds, tokenItem, tokenRequestSchema } from '../api/http/serviceaccount.ts';
import { requestToken } from '../kube/accounttoken.ts';
import { clientForChange, withCluster } from './cluster.ts';
import { CommandError, EXIT } from './errors.ts';
import { print, printDone } from './output.ts';
import { DEV_ROLE, isObjectName } from '../api/v1alpha1/names.ts';
import { SERVICE_ACCOUNTS } from '../kube/core.ts';
import { type AccountRef, createMember, deleteMember } from '../kube/members.ts';
import { forEachName, getNamed } from './objects/named.ts';
import { printable } from './text.ts';

export function addServiceAccountCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('list')
    .alias('ls')
    .description('List service accounts')
    .argument('[names...]', 'names of the service accounts to list (default: all)')
    .action(async (names: string[], _flags, command: Command) => {
      await list(terminal, command.optsWithGlobals<Globals>(), names);
    });
  noun
    .command('create')
    .description('Create service accounts with the role dev in the namespace')
    .argument('<names...>', 'names of the service accounts')
    .action(async (names: string[], _flags, command: Command) => {
      await create(terminal, command.optsWithGlobals<Globals>(), names);
    });
  noun
    .command('delete')
    .description('Delete service accounts. All their tokens become invalid')
    .argument('<names...>', 'names of the service accounts')
    .action(async (names: string[], _flags, command: Command) => {
      await remove(terminal, command.optsWithGlobals<Globals>(), names);
    });
  noun
    .command('token')
    .description('Make a token and write it to the standard output')
    .argument('<name>', 'name of the service account')
    .option('--duration <time>', 'lifetime of the token, for example 720h (default: 8760h)')
    .addOption(
      new BooleanFlag('--no-expiration', 'give the token the longest lifetime that the cluster allows'),
    )
    .action(async (name: string, flags: TokenFlags, command: Command) => {
      await token(terminal, command.optsWithGlobals<Globals>(), { name, flags });
    });
}

export interface TokenFlags {
  readonly duration?: string;
  readonly noExpiration?: boolean;
}

/**
 * Makes a token and writes it. In the formats `table` and `wide`, the output contains only the token, so that scripts can read it. A warning
 * tells that the cluster gave the token a shorter lifetime.
 *
 * @throws CommandError; ApiError.
 */
export async function token(
  terminal: Terminal,
  globals: Globals,
  { name, flags }: { name: string; flags: TokenFlags },
): Promise<void> {
  const seconds = secondsOf(flags);
  await withCluster(terminal, globals, async ({ client, namespace }) => {
    const made = tokenItem(await requestToken(client, accountIn(namespace, name), seconds), seconds);
    if (globals.output === 'table' || globals.output === 'wide') {
      terminal.out(`${made.token}\n`);
      if (made.message !== undefined) {
        terminal.err(`warning: ${made.message}\n`);
      }
    } else {
      await print(terminal, globals.output, { rows: [{ name, ...made }], columns: [], itemOf: (row) => row });
    }
  });
}

/** Returns the lifetime of the token in seconds. @throws CommandError when the flags are wrong. */
function secondsOf({ duration, noExpiration = false }: TokenFlags): number {
  if (duration !== undefined && noExpiration) {
    throw new CommandError('Use only one of --duration and --no-expiration', EXIT.usage);
  }
  const life = tokenRequestSchema.safeParse({ duration, noExpiration });
  if (!life.success) {
    const messages = life.error.issues.map(({ message }) => message);
    throw new CommandError(`--duration ${JSON.stringify(duration)} ${messages.join(', ')}`, EXIT.usage);
  }
  return lifeSeconds(life.data);
}

interface AccountItem {
  readonly name: string;
  readonly namespace: string;
}

export async function list(terminal: Terminal, globals: Globals, names: readonly string[]): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { client, namespace } = cluster;
    const kind = { type: SERVICE_ACCOUNTS, noun: 'service account' };
    const { done, rethrow } = await forEachName(
      names,
      async (name) => await getNamed(cluster, kind, name, signal),
    );
    const all = names.length > 0 ? done : (await client.list(SERVICE_ACCOUNTS, { namespace, signal })).items;
    if (all.length > 0 || names.length === 0) {
      await print(terminal, globals.output, {
        rows: all.map(({ metadata: { name } }): AccountItem => ({ name, namespace })),
        columns: [
          { header: 'NAME', value: ({ name }) => name },
          { header: 'NAMESPACE', value: ({ namespace }) => namespace },
        ],
        itemOf: (item) => item,
        none: `There are no service accounts in namespace ${namespace}`,
      });
    }
    rethrow();
  });
}

/** Creates the accounts one after the other, because each creation changes the same RoleBinding. */
export async function create(terminal: Terminal, globals: Globals, names: readonly string[]): Promise<void> {
  await changeEach(terminal, globals, names, {
    text: 'Successfully created serviceaccount',
    change: createMember,
  });
}

export async function remove(terminal: Terminal, globals: Globals, names: readonly string[]): Promise<void> {
  await changeEach(terminal, globals, names, {
    text: 'Successfully deleted serviceaccount',
    change: deleteMember,
  });
}

/** Returns the reference to the account. @throws CommandError for a name that no account can have. */
export function accountIn(namespace: string, name: string): AccountRef {
  if (!isObjectName(name)) {
    throw new CommandError(
      `${JSON.stringify(printable(name))} is not a valid name of a service account`,
      EXIT.usage,
    );
  }
  return { namespace, name };
}

async function changeEach(
  terminal: Terminal,
  globals: Globals,
  names: readonly string[],
  { text, change }: { text: string; change: typeof createMember },
): Promise<void> {
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    let before: Promise<unknown> = Promise.resolve();
    const { done, rethrow } = await forEachName(names, async (name) => {
      const ref = accountIn(namespace, name);
      const changed = before.then(
        async () => await change(clientForChange(cluster, terminal), ref, DEV_ROLE),
      );
      before = changed.catch(() => undefined);
      await changed;
      return { name, namespace };
    });
    await printDone(terminal, globals.output, done, text);
    rethrow();
  });
}
