/** The verbs of `namespace`. */
import type { Command } from 'commander';
import { BooleanFlag } from '../flags.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';

export function addNamespaceCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('list')
    .alias('ls')
    .description('List the namespaces that you may see')
    .action(async (_flags, command: Command) => {
      const { list } = await import('./namespaces.ts');
      await list(terminal, command.optsWithGlobals<Globals>());
    });
  noun
    .command('create')
    .description('Create a namespace. The operator makes its role bindings')
    .argument('<name>', 'name of the namespace; it must begin with the namespace prefix of Berth')
    .addOption(new BooleanFlag('--enable-custom-pods', 'whether users may have Pods in the namespace'))
    .action(async (name: string, flags: { enableCustomPods?: boolean }, command: Command) => {
      const { create } = await import('./namespaces.ts');
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
      const { remove } = await import('./namespaces.ts');
      await remove(terminal, command.optsWithGlobals<Globals>(), names);
    });
}
