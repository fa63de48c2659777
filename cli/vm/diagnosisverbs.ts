/** The verb that waits for VMs, and the verb that says why a VM does not run. */
import { type Command, Option } from 'commander';
import { durationIn } from '../duration.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import { type Goal, goalIn } from './goal.ts';

/** Default time limit of a wait. A deployment of a VM has the same default. */
const LIMIT_MILLISECONDS = 600_000;

export function addDiagnosisVerbs(noun: Command, terminal: Terminal): void {
  noun
    .command('wait')
    .description('Wait until VMs reach a state')
    .argument('<names...>', 'names of the VMs')
    .addOption(
      new Option('--for <state>', 'running, ready, stopped, suspended, deleted or condition=TYPE')
        .argParser(goalIn)
        .makeOptionMandatory(),
    )
    .option('--timeout <time>', 'longest wait, for example 90s or 1h (default: 10m)', durationIn)
    .action(async (names: string[], flags: { for: Goal; timeout?: number }, command: Command) => {
      const { wait } = await import('./wait.ts');
      const { for: goal, timeout = LIMIT_MILLISECONDS } = flags;
      await wait(terminal, command.optsWithGlobals<Globals>(), { names, goal, timeout });
    });
  noun
    .command('why')
    .description('Say why a VM is not running, and what to do')
    .argument('<name>', 'name of the VM')
    .action(async (name: string, _flags: object, command: Command) => {
      const { why } = await import('./why/why.ts');
      await why(terminal, command.optsWithGlobals<Globals>(), name);
    });
}
