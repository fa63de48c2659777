/** The verbs of `emulator` and `emulator-config`. */
import type { Command } from 'commander';
import { memoryIn, wholeNumber } from '../flags.ts';
import type { Globals } from '../globals.ts';
import { addCommonVerbs } from '../objects/verbs.ts';
import type { Terminal } from '../terminal.ts';
import type { EmulatorFlags } from './deploy.ts';
import { EMULATOR_KIND } from './kind.ts';

export function addEmulatorCommands(noun: Command, terminal: Terminal): void {
  addCommonVerbs(noun, terminal, EMULATOR_KIND);
  noun
    .command('deploy')
    .description('Make an emulator on the host of a running VM, and wait until the emulator runs')
    .argument('[name]', 'name of the emulator (default: the cluster generates a name)')
    .requiredOption('--vm <name>', 'VM to which the emulator belongs')
    .option('--platform <name>', 'Android platform (default: android-36)')
    .option('--image-type <name>', 'type of the system image (default: google_apis)')
    .option('--device-profile <name>', 'device to emulate (default: pixel_9)')
    .option('-c, --cpu <number>', 'number of virtual processors (default: 2)', wholeNumber)
    .option(
      '-m, --memory <size>',
      'memory, for example 4Gi; a number without a unit is in GiB (default: 4Gi)',
      memoryIn,
    )
    .option('--config <name>', 'not supported, because Berth has no emulator configs')
    .option('--timeout <minutes>', 'longest wait in minutes (default: 5)', wholeNumber)
    .action(async (name: string | undefined, flags: EmulatorFlags, command: Command) => {
      const { deploy } = await import('./deploy.ts');
      await deploy(terminal, command.optsWithGlobals<Globals>(), { name, flags });
    });
}

/**
 * Adds the verb `list`, which always shows an empty list, because Berth has no emulator configs. Integrations call this verb before they
 * deploy an emulator.
 */
export function addEmulatorConfigCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('list')
    .alias('ls')
    .description('List emulator configs')
    .action(async (_flags, command: Command) => {
      const { print } = await import('../output.ts');
      await print(terminal, command.optsWithGlobals<Globals>().output, {
        rows: [],
        columns: [],
        itemOf: (row) => row,
        none: 'There are no emulator configs. Set the values with the flags of `emulator deploy`',
      });
    });
}
