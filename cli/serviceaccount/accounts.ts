/** Lists, creates and deletes service accounts. A new service account gets the role dev in its namespace. */
import { DEV_ROLE, isObjectName } from '../../api/v1alpha1/names.ts';
import { SERVICE_ACCOUNTS } from '../../kube/core.ts';
import { type AccountRef, createMember, deleteMember } from '../../kube/members.ts';
import { clientForChange, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { forEachName } from '../objects/named.ts';
import { print, printDone } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';

interface AccountItem {
  readonly name: string;
  readonly namespace: string;
}

export async function list(terminal: Terminal, globals: Globals): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async ({ client, namespace }) => {
    const { items } = await client.list(SERVICE_ACCOUNTS, { namespace, signal });
    await print(terminal, globals.output, {
      rows: items.map(({ metadata: { name } }): AccountItem => ({ name, namespace })),
      columns: [
        { header: 'NAME', value: ({ name }) => name },
        { header: 'NAMESPACE', value: ({ namespace }) => namespace },
      ],
      itemOf: (item) => item,
      none: `There are no service accounts in namespace ${namespace}`,
    });
  });
}

/** Creates the accounts one after the other, because each creation changes the same RoleBinding. */
export async function create(terminal: Terminal, globals: Globals, names: readonly string[]): Promise<void> {
  await changeEach(terminal, globals, names, {
    words: 'Successfully created serviceaccount',
    change: createMember,
  });
}

export async function remove(terminal: Terminal, globals: Globals, names: readonly string[]): Promise<void> {
  await changeEach(terminal, globals, names, {
    words: 'Successfully deleted serviceaccount',
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
  { words, change }: { words: string; change: typeof createMember },
): Promise<void> {
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    let before: Promise<unknown> = Promise.resolve();
    const { done, rethrow } = await forEachName(names, async (name) => {
      const ref = accountIn(namespace, name);
      const turn = before.then(async () => await change(clientForChange(cluster, terminal), ref, DEV_ROLE));
      before = turn.catch(() => undefined);
      await turn;
      return { name, namespace };
    });
    await printDone(terminal, globals.output, done, words);
    rethrow();
  });
}
