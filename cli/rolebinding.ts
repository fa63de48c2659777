/** The noun `rolebinding`: the members of a namespace. They are the subjects of the RoleBinding that gives them the role dev. */
import type { Command } from 'commander';
import { parseList } from './flags.ts';
import type { Globals } from './globals.ts';
import type { Terminal } from './terminal.ts';
import { DEV_ROLE } from '../api/v1alpha1/names.ts';
import {
  type AccountRef,
  addSubjects,
  listSubjects,
  removeSubjects,
  type Subjects,
} from '../kube/members.ts';
import { type UserCluster, withCluster } from './cluster.ts';
import { CommandError, EXIT } from './errors.ts';
import { print, printDone } from './output.ts';
import { accountIn } from './serviceaccount.ts';

export function addRoleBindingCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('list')
    .aliases(['ls', 'list-subjects'])
    .description('List the users, groups and service accounts with the role dev in the namespace')
    .action(async (_flags, command: Command) => {
      await list(terminal, command.optsWithGlobals<Globals>());
    });
  for (const [verb, description] of [
    ['add-subject', 'Give the role dev to users and service accounts'],
    ['remove-subject', 'Take the role dev from users and service accounts'],
  ] as const) {
    noun
      .command(verb)
      .description(description)
      .option('--user <names>', 'names of users in the cluster', parseList)
      .option(
        '--serviceaccount <accounts>',
        'service accounts, each as NAMESPACE:NAME, or as NAME in the current namespace',
        parseList,
      )
      .action(async (flags: SubjectFlags, command: Command) => {
        await change(terminal, command.optsWithGlobals<Globals>(), { verb, flags });
      });
  }
}

export interface SubjectFlags {
  readonly user?: readonly string[];
  /** Service accounts, each in the form `NAMESPACE:NAME`, or `NAME` for the current namespace. */
  readonly serviceaccount?: readonly string[];
}

interface SubjectItem {
  readonly kind: string;
  readonly name: string;
  readonly namespace?: string | undefined;
}

export async function list(terminal: Terminal, globals: Globals): Promise<void> {
  await withCluster(terminal, globals, async ({ client, namespace }) => {
    const subjects = await listSubjects(client, { namespace, name: DEV_ROLE });
    await print(terminal, globals.output, {
      rows: subjects.map(({ kind, name, namespace }): SubjectItem => ({ kind, name, namespace })),
      columns: [
        { header: 'KIND', value: ({ kind }) => kind },
        { header: 'NAME', value: ({ name }) => name },
        { header: 'NAMESPACE', value: ({ namespace }) => namespace },
      ],
      itemOf: (item) => item,
      none: `Nobody has the role dev in namespace ${namespace}`,
    });
  });
}

export async function change(
  terminal: Terminal,
  globals: Globals,
  { verb, flags }: { verb: 'add-subject' | 'remove-subject'; flags: SubjectFlags },
): Promise<void> {
  const { user: users = [], serviceaccount: accounts = [] } = flags;
  if (users.length + accounts.length === 0) {
    throw new CommandError(`Name the subjects: --user or --serviceaccount`, EXIT.usage);
  }
  await withCluster(terminal, globals, async (cluster) => {
    const { client, namespace } = cluster;
    const subjects: Subjects = {
      users,
      serviceaccounts: accounts.map((text) => parseAccount(text, cluster)),
    };
    const role = { namespace, name: DEV_ROLE };
    await (verb === 'add-subject' ? addSubjects : removeSubjects)(client, role, subjects);
    const items: SubjectItem[] = [
      ...users.map((name) => ({ kind: 'User', name })),
      ...(subjects.serviceaccounts ?? []).map((account) => ({ kind: 'ServiceAccount', ...account })),
    ];
    const message = verb === 'add-subject' ? 'Successfully added subject' : 'Successfully removed subject';
    await printDone(terminal, globals.output, items, message);
  });
}

/** Returns the service account that the flag names. @throws CommandError when no service account can have the name. */
function parseAccount(text: string, { namespace, realNamespace }: UserCluster): AccountRef {
  const at = text.indexOf(':');
  return at < 0
    ? accountIn(namespace, text)
    : accountIn(realNamespace(text.slice(0, at)), text.slice(at + 1));
}
