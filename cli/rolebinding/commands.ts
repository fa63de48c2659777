/** The verbs of `rolebinding`. */
import type { Command } from 'commander';
import { listIn } from '../flags.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import type { SubjectFlags } from './subjects.ts';

export function addRoleBindingCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('list')
    .alias('ls')
    .description('List the users, groups and service accounts with the role dev in the namespace')
    .action(async (_flags, command: Command) => {
      const { list } = await import('./subjects.ts');
      await list(terminal, command.optsWithGlobals<Globals>());
    });
  for (const [verb, description] of [
    ['add-subject', 'Give the role dev to users and service accounts'],
    ['remove-subject', 'Take the role dev from users and service accounts'],
  ] as const) {
    noun
      .command(verb)
      .description(description)
      .option('--user <names>', 'names of users in the cluster', listIn)
      .option(
        '--serviceaccount <accounts>',
        'service accounts, each as NAMESPACE:NAME, or as NAME in the current namespace',
        listIn,
      )
      .action(async (flags: SubjectFlags, command: Command) => {
        const { change } = await import('./subjects.ts');
        await change(terminal, command.optsWithGlobals<Globals>(), { verb, flags });
      });
  }
}
