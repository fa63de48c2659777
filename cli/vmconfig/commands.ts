/** The verbs of `vmconfig`. */
import { type Command, Option } from 'commander';
import type { Globals } from '../globals.ts';
import { addFileFlag } from '../objects/fileflag.ts';
import { addMachineFlags } from '../objects/machineflags.ts';
import { addCommonVerbs } from '../objects/verbs.ts';
import type { Terminal } from '../terminal.ts';
import type { VMConfigFlags } from './create.ts';
import { VM_CONFIG_KIND } from './kind.ts';

export function addVMConfigCommands(noun: Command, terminal: Terminal): void {
  addCommonVerbs(noun, terminal, VM_CONFIG_KIND);
  addMachineFlags(
    addFileFlag(
      noun.command('create').description('Make a VM config, or all VM configs that a file describes'),
    ),
  )
    .argument('[name]', 'name of the VM config')
    .addOption(new Option('--type <architecture>', 'architecture of the VMs').choices(['arm64', 'amd64']))
    .action(async (name: string | undefined, flags: VMConfigFlags, command: Command) => {
      const { create } = await import('./create.ts');
      await create(terminal, command.optsWithGlobals<Globals>(), { name, flags });
    });
}
