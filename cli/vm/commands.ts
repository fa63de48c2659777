/** The verbs of `vm`. A verb with much code loads it when it runs. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import { endOfLife, LIFE_MILLISECONDS, moveEnd } from '../../actions/hold.ts';
import { type PowerCommand, requestPower, type PowerDetails } from '../../actions/power.ts';
import {
  addIneffective,
  BooleanFlag,
  parseCopy,
  parseDiskSize,
  parseList,
  parsePair,
  parsePairs,
  type PortPair,
  wholeNumber,
} from '../flags.ts';
import type { Globals } from '../globals.ts';
import { addFileFlag } from '../objects/create.ts';
import { addMachineFlags, addOwnFlags, parseKeys } from '../objects/machineflags.ts';
import { addCommonVerbs } from '../objects/verbs.ts';
import type { Terminal } from '../terminal.ts';
import type { DeployFlags } from './deploy.ts';
import { VM_KIND } from './kind.ts';
import { parseDuration } from '../duration.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { LogFlags } from './exec.ts';
import type { SshLoginFlags } from './ssh.ts';
import { withCluster } from '../cluster.ts';
import { report } from '../objects/kind.ts';
import { forEachName, getNamed } from '../objects/named.ts';
import { type Goal, parseGoal, wait } from './wait.ts';
import type { RunFlags } from './run.ts';

const REVERT = 'revert';
const POWER: readonly (readonly [PowerCommand, string])[] = [
  ['start', 'Start VMs'],
  ['stop', 'Stop VMs. They keep their disk'],
  ['restart', 'Restart VMs'],
  ['suspend', 'Save the memory of VMs and stop them'],
  ['resume', 'Resume VMs that are suspended'],
  [
    REVERT,
    'Reset the disks of VMs to their images or to a snapshot. All data that the guests wrote since is lost',
  ],
];

export function addVMCommands(noun: Command, terminal: Terminal): void {
  addCommonVerbs(noun, terminal, VM_KIND);
  addDeployFlags(noun.command('deploy').description('Make a VM and wait until it runs'))
    .addOption(
      new Option('--wait-for <state>', 'state that ends the wait (default: running)').choices([
        'running',
        'ready',
      ]),
    )
    .action(async (name: string | undefined, flags: DeployFlags, command: Command) => {
      const { deploy } = await import('./deploy.ts');
      await deploy(terminal, command.optsWithGlobals<Globals>(), { name: name ?? flags.name, flags });
    });
  addDeployFlags(
    addFileFlag(noun.command('create')).description(
      'Make a VM, or all VMs that a file describes, and do not wait',
    ),
  ).action(async (name: string | undefined, flags: DeployFlags, command: Command) => {
    const { create } = await import('./deploy.ts');
    await create(terminal, command.optsWithGlobals<Globals>(), { name: name ?? flags.name, flags });
  });
  addRun(noun, terminal);
  addProlong(noun, terminal);
  addDiskVerbs(noun, terminal);
  addDiagnosisVerbs(noun, terminal);
  for (const [word, description] of POWER) {
    const verb = noun.command(word).description(description).argument('<names...>', 'names of the VMs');
    if (word === REVERT) {
      verb.option('--to <snapshot>', 'VMSnapshot to which the disk is reset, instead of its image');
    }
    verb.action(async (names: string[], { to: revertTo }: { to?: string }, command: Command) => {
      await power(terminal, command.optsWithGlobals<Globals>(), { names, word, revertTo });
    });
  }
  addStreamCommands(noun, terminal);
}

function addRun(noun: Command, terminal: Terminal): void {
  addMachineFlags(noun.command('run'))
    .description('Run a command in a VM of its own, end with its exit code, and delete the VM')
    .argument('<command...>', 'command after --, with its arguments')
    .option('--config <name>', 'VM config with values for the flags that are not given')
    .option('--pool <name>', 'pool that gives the VM, instead of flags for a new one')
    .option('--labels <pairs>', 'labels of the VM, as key=value,key=value', parsePairs)
    .option('--timeout <minutes>', 'longest wait in minutes until the VM is Ready (default: 10)', wholeNumber)
    .option('-u, --user <name>', 'user of the VM (default: ssh.user of the settings, or root)')
    .option('--identity <file>', 'file with the private key for the login, instead of a new key for this VM')
    .option('--env-secret <name>', 'Secret whose entries are environment variables of the command')
    .option(
      '--copy <source:target>',
      'file or folder to copy into the VM before the command (can be repeated)',
      parseCopy,
    )
    .option(
      '--copy-out <source:target>',
      'file or folder to copy out of the VM after the command (can be repeated)',
      parseCopy,
    )
    .addOption(new BooleanFlag('--keep-on-failure', 'keep the VM for a day if the command fails'))
    .option(
      '--life <time>',
      'time after which a VM is deleted if this command was killed (default: 10m)',
      parseDuration,
    )
    .action(async (args: string[], flags: RunFlags, command: Command) => {
      const { run } = await import('./run.ts');
      await run(terminal, command.optsWithGlobals<Globals>(), { flags, command: args });
    });
}

function addProlong(noun: Command, terminal: Terminal): void {
  noun
    .command('prolong')
    .description('Move the time later at which VMs are deleted because nobody needs them')
    .argument('<names...>', 'names of the VMs')
    .option('--life <time>', 'time from now until the VMs are deleted (default: 10m)', parseDuration)
    .action(async (names: string[], flags: { life?: number }, command: Command) => {
      const { life: lifeMilliseconds = LIFE_MILLISECONDS } = flags;
      await prolong(terminal, command.optsWithGlobals<Globals>(), { names, lifeMilliseconds });
    });
}

/** Prolongs the lives of the VMs, which begin now. @throws CommandError; ApiError, for example when a VM has a later end or none. */
async function prolong(
  terminal: Terminal,
  globals: Globals,
  { names, lifeMilliseconds }: { readonly names: readonly string[]; readonly lifeMilliseconds: number },
): Promise<void> {
  const { signal } = terminal;
  const until = endOfLife({ clock: Date.now, lifeMilliseconds });
  await withCluster(terminal, globals, async (cluster) => {
    const { client } = cluster;
    const { done: objects, rethrow } = await forEachName(names, async (name) => {
      const { metadata } = await getNamed(cluster, VM_KIND, name, signal);
      return await moveEnd(client, { ...metadata, namespace: cluster.namespace }, until, signal);
    });
    const sentence = (name: string) => `vm ${name} lives until ${until}`;
    await report(terminal, globals, { kind: VM_KIND, objects, sentence });
    rethrow();
  });
}

function addDeployFlags(command: Command): Command {
  addMachineFlags(command)
    .argument('[name]', 'name of the VM; with --generate-name, the start of the name')
    .addOption(new BooleanFlag('--generate-name', 'let the cluster add five characters to the name'))
    .option('--config <name>', 'VM config with values for the flags that are not given')
    .option('--metadata <pairs>', 'values for the guest, as key=value,key=value', parsePairs)
    .option('--labels <pairs>', 'labels of the VM, as key=value,key=value', parsePairs)
    .option('--timeout <minutes>', 'longest wait in minutes until the VM runs (default: 10)', wholeNumber)
    .addOption(new BooleanFlag('--no-ssh-key', 'give the guest no SSH key, not even your own one'));
  addForeignFlags(command);
  return addOwnFlags(command);
}

/** Adds flags that scripts for another platform use. They set the flags of this command. */
function addForeignFlags(command: Command): void {
  command
    .addOption(new Option('--ports <list>', 'the same as --reserve-port').hideHelp())
    .on('option:ports', (list: string) => {
      const before = command.getOptionValue('reservePort') as readonly string[] | undefined;
      command.setOptionValue('reservePort', parseList(list, before));
    })
    .addOption(new Option('--name <name>', 'name of the VM').hideHelp())
    .addOption(new BooleanFlag('-y, --yes', 'nothing: a deployment asks no question').hideHelp());
}

/** Why a command that enlarges a disk needs no login for the guest. */
const GUEST_GROWS = 'Nothing logs in to the guest, which enlarges its file systems itself';

/** Default time limit for a copy of a disk. It is long enough for about 100 GB in a slow network. */
const WORK_MILLISECONDS = 3_600_000;

interface WorkFlags {
  readonly wait?: boolean;
  readonly timeout?: number;
  readonly description?: string;
}

interface SaveFlags extends WorkFlags {
  readonly memory?: boolean;
  readonly snapshot?: string;
}

export function addDiskVerbs(noun: Command, terminal: Terminal): void {
  addWorkFlags(noun.command('save').description('Save the disk of a VM as a new image'))
    .argument('<name>', 'name of the VM')
    .argument('<image>', 'name of the new image')
    .option('-d, --description <text>', 'description of the image')
    .addOption(
      new BooleanFlag(
        '--memory',
        'also save the memory of the running VM, from which VMs of the image start',
      ),
    )
    .option('--snapshot <name>', 'save the disk of this snapshot of the VM instead of the present one')
    .action(async (name: string, imageName: string, flags: SaveFlags, command: Command) => {
      const { save } = await import('./disk.ts');
      const { memory, snapshot } = flags;
      const saving = { name, imageName, memory, snapshot, ...workOf(flags) };
      await save(terminal, command.optsWithGlobals<Globals>(), saving);
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
    .command('get-push-status')
    .description('Show pushes of VM disks, which are kept for an hour after their end')
    .argument('[pushes...]', 'names of the pushes (default: all of the namespace)')
    .action(async (names: string[], _flags: object, command: Command) => {
      const { showPushes } = await import('./disk.ts');
      await showPushes(terminal, command.optsWithGlobals<Globals>(), names);
    });
  const resized = noun.command('resize').description('Enlarge the disk of a VM');
  for (const login of ['-u, --user <name>', '-p, --password <password>']) {
    addIneffective(resized, new Option(login), GUEST_GROWS);
  }
  resized
    .argument('<name>', 'name of the VM')
    .argument(
      '<size>',
      'new size, for example 120G or 100Gi; a number without a unit is in GB',
      parseDiskSize,
    )
    .action(async (name: string, size: string, _flags: object, command: Command) => {
      const { resize } = await import('./disk.ts');
      await resize(terminal, command.optsWithGlobals<Globals>(), { name, size });
    });
}

function addWorkFlags(command: Command): Command {
  return command
    .addOption(new BooleanFlag('--wait', 'whether to wait for the end of the work (default: true)'))
    .option('--timeout <time>', 'longest wait, for example 90s or 10m (default: 1h)', parseDuration);
}

function workOf({ wait = true, timeout = WORK_MILLISECONDS, description }: WorkFlags) {
  return { wait, timeout, description };
}

const SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3_600, d: 86_400 };

export function addStreamCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('exec')
    .description('Run a command in a VM with the guest agent, and end with the exit code of the command')
    .argument('<name>', 'name of the VM')
    .argument('<command...>', 'command after --, with its arguments')
    .addOption(new BooleanFlag('-i, --stdin', 'let the command read the standard input'))
    .addOption(new BooleanFlag('-t, --tty', 'connect the command to this terminal'))
    .action(async (name: string, args: string[], flags: SessionFlags, command: Command) => {
      const { exec } = await import('./exec.ts');
      const { stdin = false, tty = false } = flags;
      await exec(terminal, command.optsWithGlobals<Globals>(), { name, command: args, stdin, tty });
    });
  noun
    .command('console')
    .description('Connect to the serial console of a VM. Press Ctrl+] to leave the console')
    .argument('<name>', 'name of the VM')
    .addOption(new BooleanFlag('-i, --stdin', 'send the standard input even if it is not a terminal'))
    .action(async (name: string, { stdin = false }: SessionFlags, command: Command) => {
      const { connectConsole } = await import('./exec.ts');
      await connectConsole(terminal, command.optsWithGlobals<Globals>(), { name, stdin });
    });
  noun
    .command('screenshot')
    .description('Write a picture of the screen of a VM into a file, as PNG')
    .argument('<name>', 'name of the VM')
    .argument('<file>', 'file for the picture')
    .action(async (name: string, file: string, _flags: object, command: Command) => {
      const { screenshot } = await import('./exec.ts');
      await screenshot(terminal, command.optsWithGlobals<Globals>(), { name, file });
    });
  addLogs(noun, terminal);
  addPortForward(noun, terminal);
  addSSH(noun, terminal);
  noun
    .command('ssh-key')
    .description('Public SSH keys of running VMs')
    .command('add')
    .description('Add public SSH keys to a running VM with its guest agent')
    .argument('<name>', 'name of the VM')
    .argument('<key>', 'public key, or file with one key in each line', parseSomeKeys)
    .option('-u, --user <name>', 'user of the VM (default: ssh.user of the settings, or root)')
    .action(async (name: string, keys: readonly string[], flags: SshLoginFlags, command: Command) => {
      const { addKeys } = await import('./exec.ts');
      await addKeys(terminal, command.optsWithGlobals<Globals>(), { name, keys, user: flags.user });
    });
  noun
    .command('vnc')
    .description('Show the screen of a VM in a viewer')
    .argument('<name>', 'name of the VM')
    .action(async (name: string, _flags: object, command: Command) => {
      const { vnc } = await import('./portforward.ts');
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
      parseSeconds,
    )
    .action(async (name: string, flags: LogFlags, command: Command) => {
      const { logs } = await import('./exec.ts');
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
      parsePair,
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
  addLogin(noun.command('ssh'))
    .description('Log in to a VM with the program ssh of this computer')
    .argument('<name>', 'name of the VM')
    .argument('[command...]', 'command after --, instead of a shell')
    .action(async (name: string, args: string[], flags: SshLoginFlags, command: Command) => {
      const { ssh } = await import('./ssh.ts');
      await ssh(terminal, command.optsWithGlobals<Globals>(), { name, ...flags, command: args });
    });
  addLogin(noun.command('scp'))
    .description('Copy a file to or from a VM with the program scp of this computer')
    .argument('<source>', 'file of this computer, or NAME:PATH for a file of a VM')
    .argument('<target>', 'the other one of them')
    .addOption(new BooleanFlag('-r, --recursive', 'copy a folder with all its files'))
    .action(
      async (
        source: string,
        target: string,
        flags: SshLoginFlags & { recursive?: boolean },
        command: Command,
      ) => {
        const { scp } = await import('./ssh.ts');
        await scp(terminal, command.optsWithGlobals<Globals>(), { source, target, ...flags });
      },
    );
}

function addLogin(command: Command): Command {
  return command
    .option('-u, --user <name>', 'user of the VM (default: ssh.user of the settings, or root)')
    .option('-i, --identity <file>', 'file with the private key for the login');
}

/** Returns the public keys in the text or its file. @throws InvalidArgumentError when there is none; errors of {@link parseKeys}. */
function parseSomeKeys(text: string): readonly string[] {
  const keys = parseKeys(text);
  if (keys.length === 0) {
    throw new InvalidArgumentError('It must be a public SSH key, or a file of such keys.');
  }
  return keys;
}

/** Returns the number of seconds in a duration like `5m`. @throws InvalidArgumentError when the text has another form. */
function parseSeconds(text: string): number {
  const [, count = '', unit = ''] = /^(\d{1,6})([smhd])$/.exec(text) ?? [];
  const seconds = Number(count) * (SECONDS[unit] ?? 0);
  if (seconds === 0) {
    throw new InvalidArgumentError('It must be a duration such as 90s, 5m, 2h or 1d.');
  }
  return seconds;
}

export async function power(
  terminal: Terminal,
  globals: Globals,
  { names, word, revertTo }: { names: readonly string[]; word: PowerCommand } & PowerDetails,
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { done: objects, rethrow } = await forEachName(
      names,
      async (name) =>
        await requestPower(cluster.client, word, async () => await getNamed(cluster, VM_KIND, name, signal), {
          revertTo,
        }),
    );
    const sentence = (name: string) => `Requested ${word} of vm ${name}`;
    await report(terminal, globals, { kind: VM_KIND, objects, sentence });
    rethrow();
  });
}

/** Default time limit of a wait. A deployment of a VM has the same default. */
const WAIT_MILLISECONDS = 600_000;

export function addDiagnosisVerbs(noun: Command, terminal: Terminal): void {
  noun
    .command('wait')
    .description('Wait until VMs reach a state')
    .argument('<names...>', 'names of the VMs')
    .addOption(
      new Option('--for <state>', 'running, ready, stopped, suspended, deleted or condition=TYPE')
        .argParser(parseGoal)
        .makeOptionMandatory(),
    )
    .option('--timeout <time>', 'longest wait, for example 90s or 1h (default: 10m)', parseDuration)
    .action(async (names: string[], flags: { for: Goal; timeout?: number }, command: Command) => {
      const { for: goal, timeout = WAIT_MILLISECONDS } = flags;
      await wait(terminal, command.optsWithGlobals<Globals>(), { names, goal, timeout });
    });
  noun
    .command('why')
    .description('Say why a VM is not running, and what to do')
    .argument('<name>', 'name of the VM')
    .action(async (name: string, _flags: object, command: Command) => {
      const { why } = await import('./why.ts');
      await why(terminal, command.optsWithGlobals<Globals>(), name);
    });
}
