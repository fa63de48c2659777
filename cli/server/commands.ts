/** The verbs of `server`. */
import { Argument, type Command, Option } from 'commander';
import type { PowerAction } from '../../api/v1alpha1/server.ts';
import { durationIn } from '../duration.ts';
import { BooleanFlag } from '../flags.ts';
import type { Globals } from '../globals.ts';
import { addShowVerbs } from '../objects/verbs.ts';
import type { Terminal } from '../terminal.ts';
import { SERVER_KIND } from './kind.ts';
import { type ServerGoal, serverGoalIn } from './wait.ts';

/** Default time limit of a wait, as for VMs. A power action of a real server takes up to a few minutes. */
const LIMIT_MILLISECONDS = 600_000;

const ACTIONS: Readonly<Record<string, PowerAction>> = { on: 'On', off: 'Off', reboot: 'Reboot' };

interface Flags {
  readonly wait?: boolean;
  readonly timeout?: number;
}

export function addServerCommands(noun: Command, terminal: Terminal): void {
  addShowVerbs(noun, terminal, SERVER_KIND);
  noun
    .command('power')
    .description('Switch servers on or off, or reboot them')
    .addArgument(new Argument('<action>', 'the action').choices(Object.keys(ACTIONS)))
    .argument('<names...>', 'names of the servers')
    .addOption(new BooleanFlag('--wait', 'whether to wait for the result (default: true)'))
    .option('--timeout <time>', 'longest wait, for example 90s or 1h (default: 10m)', durationIn)
    .action(async (word: string, names: string[], flags: Flags, command: Command) => {
      const { power } = await import('./power.ts');
      const { wait = true, timeout = LIMIT_MILLISECONDS } = flags;
      const action = ACTIONS[word] ?? 'On';
      await power(terminal, command.optsWithGlobals<Globals>(), { names, action, wait, timeout });
    });
  noun
    .command('wait')
    .description('Wait until servers reach a state')
    .argument('<names...>', 'names of the servers')
    .addOption(
      new Option('--for <state>', 'on, off or condition=TYPE').argParser(serverGoalIn).makeOptionMandatory(),
    )
    .option('--timeout <time>', 'longest wait, for example 90s or 1h (default: 10m)', durationIn)
    .action(async (names: string[], flags: { for: ServerGoal; timeout?: number }, command: Command) => {
      const { wait } = await import('./wait.ts');
      const { for: goal, timeout = LIMIT_MILLISECONDS } = flags;
      await wait(terminal, command.optsWithGlobals<Globals>(), { names, goal, timeout });
    });
  addUserCommands(noun.command('user').description('Users of the power API that have a password'), terminal);
}

function addUserCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('add')
    .description('Add a user of the power API, or give a user another password')
    .argument('<name>', 'name of the user')
    .addOption(new BooleanFlag('--password-stdin', 'read the password from the standard input'))
    .action(async (name: string, flags: { passwordStdin?: boolean }, command: Command) => {
      const { addUser } = await import('./users.ts');
      await addUser(terminal, command.optsWithGlobals<Globals>(), name, flags);
    });
  noun
    .command('remove')
    .alias('rm')
    .description('Remove a user of the power API')
    .argument('<name>', 'name of the user')
    .action(async (name: string, _flags, command: Command) => {
      const { removeUser } = await import('./users.ts');
      await removeUser(terminal, command.optsWithGlobals<Globals>(), name);
    });
}
