/** The verbs of `registry`. */
import type { Command } from 'commander';
import { BooleanFlag } from '../flags.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import type { RegistryFlags } from './credentials.ts';

export function addRegistryCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('list')
    .alias('ls')
    .description('List the registries for which the namespace has credentials')
    .action(async (_flags, command: Command) => {
      const { list } = await import('./credentials.ts');
      await list(terminal, command.optsWithGlobals<Globals>());
    });
  noun
    .command('add')
    .description('Add the credential for a registry')
    .argument('<server>', 'URL of the registry, for example https://registry.example:5000')
    .requiredOption('-u, --username <name>', 'name of the user')
    .addOption(new BooleanFlag('--password-stdin', 'read the password from the standard input'))
    .addOption(
      new BooleanFlag(
        '--allow-insecure',
        'use the registry without TLS, or without checking its certificate',
      ),
    )
    .addOption(new BooleanFlag('--replace', 'replace the credential of the registry'))
    .action(async (server: string, flags: RegistryFlags, command: Command) => {
      const { add } = await import('./credentials.ts');
      await add(terminal, command.optsWithGlobals<Globals>(), { server, flags });
    });
  noun
    .command('delete')
    .description('Delete the credentials for registries')
    .argument('<servers...>', 'URLs of the registries')
    .action(async (servers: string[], _flags, command: Command) => {
      const { remove } = await import('./credentials.ts');
      await remove(terminal, command.optsWithGlobals<Globals>(), servers);
    });
}
