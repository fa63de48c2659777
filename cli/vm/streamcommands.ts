/** The verbs of `vm` that connect to a VM. The code of a verb is imported when the verb runs. */
import { type Command, InvalidArgumentError } from 'commander';
import { BooleanFlag, wholeNumber } from '../flags.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import type { LogFlags } from './logs.ts';
import { pairIn, type PortPair } from './portpair.ts';

const SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3_600, d: 86_400 };

export function addStreamCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('exec')
    .description('Run a command in a VM with the guest agent, and end with the exit code of the command')
    .argument('<name>', 'name of the VM')
    .argument('<command...>', 'command after --, with its arguments')
    .addOption(new BooleanFlag('-i, --stdin', 'let the command read the standard input'))
    .addOption(new BooleanFlag('-t, --tty', 'connect the command to this terminal'))
    .action(async (name: string, words: string[], flags: SessionFlags, command: Command) => {
      const { exec } = await import('./exec.ts');
      const { stdin = false, tty = false } = flags;
      await exec(terminal, command.optsWithGlobals<Globals>(), { name, command: words, stdin, tty });
    });
  noun
    .command('console')
    .description('Connect to the serial console of a VM. Press Ctrl+] to leave the console')
    .argument('<name>', 'name of the VM')
    .addOption(new BooleanFlag('-i, --stdin', 'send the standard input even if it is not a terminal'))
    .action(async (name: string, { stdin = false }: SessionFlags, command: Command) => {
      const { connectConsole } = await import('./console.ts');
      await connectConsole(terminal, command.optsWithGlobals<Globals>(), { name, stdin });
    });
  addLogs(noun, terminal);
  addPortForward(noun, terminal);
  addSSH(noun, terminal);
  noun
    .command('vnc')
    .description('Show the screen of a VM in a viewer')
    .argument('<name>', 'name of the VM')
    .action(async (name: string, _flags: object, command: Command) => {
      const { vnc } = await import('./vnc.ts');
      await vnc(terminal, command.optsWithGlobals<Globals>(), name);
    });
}

interface SessionFlags {
  readonly stdin?: boolean;
  readonly tty?: boolean;
}

function addLogs(noun: Command, terminal: Terminal): void {
  noun
    .command('logs')
    .description('Show the text that a VM writes to its serial console')
    .argument('<name>', 'name of the VM')
    .addOption(new BooleanFlag('-f, --follow', 'continue with the text that the VM writes later'))
    .option('--tail <lines>', 'only the last lines', wholeNumber)
    .option(
      '--since <time>',
      'only lines that are at most this old, for example 90s, 5m, 2h or 1d',
      secondsIn,
    )
    .action(async (name: string, flags: LogFlags, command: Command) => {
      const { logs } = await import('./logs.ts');
      await logs(terminal, command.optsWithGlobals<Globals>(), { name, flags });
    });
}

function addPortForward(noun: Command, terminal: Terminal): void {
  noun
    .command('port-forward')
    .description('Forward ports of this computer to ports of a VM')
    .argument('<name>', 'name of the VM')
    .argument(
      '<ports...>',
      'LOCAL:REMOTE, REMOTE, or :REMOTE for a free local port; for the screen, REMOTE is vnc',
      pairIn,
    )
    .addOption(new BooleanFlag('--stdio', 'use the standard input and output instead of a local port'))
    .action(
      async (name: string, pairs: PortPair[], { stdio = false }: { stdio?: boolean }, command: Command) => {
        const { forwardInput, portForward } = await import('./portforward.ts');
        const globals = command.optsWithGlobals<Globals>();
        const [{ remote: port } = { remote: 0 }, ...others] = pairs;
        if (stdio && others.length > 0) {
          throw new CommandError('With --stdio, give exactly one port', EXIT.usage);
        }
        await (stdio
          ? forwardInput(terminal, globals, { name, port })
          : portForward(terminal, globals, { name, pairs }));
      },
    );
}

function addSSH(noun: Command, terminal: Terminal): void {
  noun
    .command('ssh')
    .description('Log in to a VM with the program ssh of this computer')
    .argument('<name>', 'name of the VM')
    .argument('[command...]', 'command after --, instead of a shell')
    .option('-u, --user <name>', 'user of the VM (default: ssh.user of the settings, or root)')
    .action(async (name: string, words: string[], { user }: { user?: string }, command: Command) => {
      const { ssh } = await import('./ssh.ts');
      await ssh(terminal, command.optsWithGlobals<Globals>(), { name, user, command: words });
    });
}

/** Returns the number of seconds in a duration like `5m`. @throws InvalidArgumentError when the text has another form. */
function secondsIn(text: string): number {
  const [, count = '', unit = ''] = /^(\d{1,6})([smhd])$/.exec(text) ?? [];
  const seconds = Number(count) * (SECONDS[unit] ?? 0);
  if (seconds === 0) {
    throw new InvalidArgumentError('It must be a duration such as 90s, 5m, 2h or 1d.');
  }
  return seconds;
}
