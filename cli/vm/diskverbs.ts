/** The verbs for disks of VMs. */
import type { Command } from 'commander';
import { durationIn } from '../duration.ts';
import { BooleanFlag, diskSizeIn } from '../flags.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';

/** Default time limit for a copy of a disk. It is long enough for about 100 GB in a slow network. */
const LIMIT_MILLISECONDS = 3_600_000;

interface WorkFlags {
  readonly wait?: boolean;
  readonly timeout?: number;
  readonly description?: string;
}

export function addDiskVerbs(noun: Command, terminal: Terminal): void {
  addWorkFlags(noun.command('save').description('Save the disk of a VM as a new image'))
    .argument('<name>', 'name of the VM')
    .argument('<image>', 'name of the new image')
    .option('-d, --description <text>', 'description of the image')
    .action(async (name: string, imageName: string, flags: WorkFlags, command: Command) => {
      const { save } = await import('./disk.ts');
      await save(terminal, command.optsWithGlobals<Globals>(), { name, imageName, ...workOf(flags) });
    });
  addWorkFlags(noun.command('commit').description('Save the disk of a VM as the new content of its image'))
    .argument('<name>', 'name of the VM')
    .option('-d, --description <text>', 'new description of the image')
    .action(async (name: string, flags: WorkFlags, command: Command) => {
      const { commit } = await import('./disk.ts');
      await commit(terminal, command.optsWithGlobals<Globals>(), { name, ...workOf(flags) });
    });
  addWorkFlags(noun.command('push').description('Push the disk of a VM to a registry'))
    .argument('<name>', 'name of the VM')
    .argument('<reference>', 'target, for example registry.example/team/image:1')
    .action(async (name: string, reference: string, flags: WorkFlags, command: Command) => {
      const { push } = await import('./disk.ts');
      await push(terminal, command.optsWithGlobals<Globals>(), { name, reference, ...workOf(flags) });
    });
  noun
    .command('resize')
    .description('Enlarge the disk of a VM')
    .argument('<name>', 'name of the VM')
    .argument('<size>', 'new size, for example 120G or 100Gi; a number without a unit is in GB', diskSizeIn)
    .action(async (name: string, size: string, _flags: object, command: Command) => {
      const { resize } = await import('./disk.ts');
      await resize(terminal, command.optsWithGlobals<Globals>(), { name, size });
    });
}

function addWorkFlags(command: Command): Command {
  return command
    .addOption(new BooleanFlag('--wait', 'whether to wait for the end of the work (default: true)'))
    .option('--timeout <time>', 'longest wait, for example 90s or 10m (default: 1h)', durationIn);
}

function workOf({ wait = true, timeout = LIMIT_MILLISECONDS, description }: WorkFlags) {
  return { wait, timeout, description };
}
