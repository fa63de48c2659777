/** The verbs of `vm`. The code of a verb is imported when the verb runs. */
import type { Command } from 'commander';
import type { PowerCommand } from '../../actions/power.ts';
import { BooleanFlag, listIn, pairsIn, wholeNumber } from '../flags.ts';
import type { Globals } from '../globals.ts';
import { addFileFlag } from '../objects/fileflag.ts';
import { addMachineFlags, addOwnFlags } from '../objects/machineflags.ts';
import { addCommonVerbs } from '../objects/verbs.ts';
import type { Terminal } from '../terminal.ts';
import type { DeployFlags } from './body.ts';
import { addDiagnosisVerbs } from './diagnosisverbs.ts';
import { addDiskVerbs } from './diskverbs.ts';
import { VM_KIND } from './kind.ts';
import { addStreamCommands } from './streamcommands.ts';

const POWER: readonly (readonly [PowerCommand, string])[] = [
  ['start', 'Start VMs'],
  ['stop', 'Stop VMs. They keep their disk'],
  ['restart', 'Restart VMs'],
  ['suspend', 'Save the memory of VMs and stop them'],
  ['resume', 'Resume VMs that are suspended'],
  ['revert', 'Reset the disks of VMs to their images. All data that the guests wrote is lost'],
];

export function addVMCommands(noun: Command, terminal: Terminal): void {
  addCommonVerbs(noun, terminal, VM_KIND);
  addDeployFlags(noun.command('deploy').description('Make a VM and wait until it runs')).action(
    async (name: string | undefined, flags: DeployFlags, command: Command) => {
      const { deploy } = await import('./deploy.ts');
      await deploy(terminal, command.optsWithGlobals<Globals>(), { name, flags });
    },
  );
  addDeployFlags(
    addFileFlag(noun.command('create')).description(
      'Make a VM, or all VMs that a file describes, and do not wait',
    ),
  ).action(async (name: string | undefined, flags: DeployFlags, command: Command) => {
    const { create } = await import('./deploy.ts');
    await create(terminal, command.optsWithGlobals<Globals>(), { name, flags });
  });
  addDiskVerbs(noun, terminal);
  addDiagnosisVerbs(noun, terminal);
  for (const [word, description] of POWER) {
    noun
      .command(word)
      .description(description)
      .argument('<names...>', 'names of the VMs')
      .action(async (names: string[], _options, command: Command) => {
        const { power } = await import('./power.ts');
        await power(terminal, command.optsWithGlobals<Globals>(), { names, word });
      });
  }
  addStreamCommands(noun, terminal);
}

function addDeployFlags(command: Command): Command {
  addMachineFlags(command)
    .argument('[name]', 'name of the VM; with --generate-name, the start of the name')
    .addOption(new BooleanFlag('--generate-name', 'let the cluster add five characters to the name'))
    .option('--config <name>', 'VM config with values for the flags that are not given')
    .option(
      '-p, --reserve-port <list>',
      'ports to reserve on the host, as HOST:GUEST, HOST:GUEST/tcp or HOST:GUEST/udp',
      listIn,
    )
    .option('--metadata <pairs>', 'values for the guest, as key=value,key=value', pairsIn)
    .option('--labels <pairs>', 'labels of the VM, as key=value,key=value', pairsIn)
    .option('--timeout <minutes>', 'longest wait in minutes until the VM runs (default: 10)', wholeNumber);
  return addOwnFlags(command);
}
