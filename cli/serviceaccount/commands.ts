/** The verbs of `serviceaccount`. */
import type { Command } from 'commander';
import { BooleanFlag } from '../flags.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import type { TokenFlags } from './token.ts';

export function addServiceAccountCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('list')
    .alias('ls')
    .description('List service accounts')
    .action(async (_flags, command: Command) => {
      const { list } = await import('./accounts.ts');
      await list(terminal, command.optsWithGlobals<Globals>());
    });
  noun
    .command('create')
    .description('Create service accounts with the role dev in the namespace')
    .argument('<names...>', 'names of the service accounts')
    .action(async (names: string[], _flags, command: Command) => {
      const { create } = await import('./accounts.ts');
      await create(terminal, command.optsWithGlobals<Globals>(), names);
    });
  noun
    .command('delete')
    .description('Delete service accounts. All their tokens become invalid')
    .argument('<names...>', 'names of the service accounts')
    .action(async (names: string[], _flags, command: Command) => {
      const { remove } = await import('./accounts.ts');
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
      const { token } = await import('./token.ts');
      await token(terminal, command.optsWithGlobals<Globals>(), { name, flags });
    });
}
