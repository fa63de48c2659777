/**
 * Makes the tree of commands and runs a command. Most commands consist of a noun and a verb, for example `vm list`. Only the nouns that the
 * arguments name get their verbs, because it takes longer to make all verbs than to run most commands.
 */
import { Argument, Command, CommanderError } from 'commander';
import { VERSION } from '../api/v1alpha1/version.ts';
import { CommandError, described, EXIT, ProgramEnded, withLogin } from './errors.ts';
import { namesUnknown, withBooleans } from './flags.ts';
import { addGlobals, type Globals } from './globals.ts';
import {
  type CompletionAnswer,
  complete,
  COMPLETE_VERB,
  completionScript,
  type ShellName,
  SHELLS,
} from './completion.ts';
import type { Terminal } from './terminal.ts';
import { printable } from './text.ts';

interface Noun {
  readonly name: string;
  /** Other spellings of the name, which scripts for other platforms use. */
  readonly aliases?: readonly string[];
  readonly description: string;
  readonly addVerbs: (noun: Command, terminal: Terminal) => Promise<void>;
}

const NOUNS: readonly Noun[] = [
  {
    name: 'vm',
    description: 'Virtual machines',
    addVerbs: async (noun, terminal) => {
      (await import('./vm/commands.ts')).addVMCommands(noun, terminal);
    },
  },
  {
    name: 'vmconfig',
    aliases: ['vm-config', 'vmc'],
    description: 'Values that VMs share',
    addVerbs: async (noun, terminal) => {
      (await import('./vmconfig.ts')).addVMConfigCommands(noun, terminal);
    },
  },
  {
    name: 'image',
    description: 'Images for disks',
    addVerbs: async (noun, terminal) => {
      (await import('./image.ts')).addImageCommands(noun, terminal);
    },
  },
  {
    name: 'iso',
    description: 'ISOs for booting',
    addVerbs: async (noun, terminal) => {
      (await import('./image.ts')).addISOCommands(noun, terminal);
    },
  },
  {
    name: 'remote-image',
    description: 'Images outside the cluster (not supported)',
    addVerbs: async (noun, terminal) => {
      const { addRemoteCommands, IMAGE_KIND } = await import('./image.ts');
      addRemoteCommands(noun, terminal, IMAGE_KIND);
    },
  },
  {
    name: 'remote-iso',
    description: 'ISOs outside the cluster (not supported)',
    addVerbs: async (noun, terminal) => {
      const { addRemoteCommands, ISO_KIND } = await import('./image.ts');
      addRemoteCommands(noun, terminal, ISO_KIND);
    },
  },
  {
    name: 'imagecache',
    aliases: ['ic'],
    description: 'Images that hosts keep, so that VMs start without a pull',
    addVerbs: async (noun, terminal) => {
      (await import('./imagecache/commands.ts')).addImageCacheCommands(noun, terminal);
    },
  },
  {
    name: 'login',
    description: 'Sign in at the identity provider of the cluster',
    addVerbs: async (command, terminal) => {
      (await import('./login/commands.ts')).addLogin(command, terminal);
    },
  },
  {
    name: 'logout',
    description: 'Sign out',
    addVerbs: async (command, terminal) => {
      (await import('./login/commands.ts')).addLogout(command, terminal);
    },
  },
  {
    name: 'user',
    description: 'Token of the user',
    addVerbs: async (noun, terminal) => {
      (await import('./login/commands.ts')).addUserCommands(noun, terminal);
    },
  },
  {
    name: 'credential',
    description: 'Credential plug-in, which kubectl starts to get a token',
    addVerbs: async (command, terminal) => {
      (await import('./login/commands.ts')).addCredential(command, terminal);
    },
  },
  {
    name: 'node',
    description: 'Hosts',
    addVerbs: async (noun, terminal) => {
      (await import('./node.ts')).addNodeCommands(noun, terminal);
    },
  },
  {
    name: 'server',
    description: 'Power of the physical servers',
    addVerbs: async (noun, terminal) => {
      (await import('./server.ts')).addServerCommands(noun, terminal);
    },
  },
  {
    name: 'emulator',
    description: 'Android emulators beside VMs',
    addVerbs: async (noun, terminal) => {
      (await import('./emulator.ts')).addEmulatorCommands(noun, terminal);
    },
  },
  {
    name: 'snapshot',
    aliases: ['vmsnapshot', 'vmsnap'],
    description: 'Disks of VMs as they were at one moment',
    addVerbs: async (noun, terminal) => {
      (await import('./vm/snapshot.ts')).addSnapshotCommands(noun, terminal);
    },
  },
  {
    name: 'pool',
    aliases: ['vmpool', 'vmp'],
    description: 'VMs that are kept ready',
    addVerbs: async (noun, terminal) => {
      (await import('./pool.ts')).addPoolCommands(noun, terminal);
    },
  },
  {
    name: 'emulator-config',
    description: 'Values that emulators share (not supported)',
    addVerbs: async (noun, terminal) => {
      (await import('./emulator.ts')).addEmulatorConfigCommands(noun, terminal);
    },
  },
  {
    name: 'namespace',
    aliases: ['ns'],
    description: 'Namespaces of VMs',
    addVerbs: async (noun, terminal) => {
      (await import('./namespace.ts')).addNamespaceCommands(noun, terminal);
    },
  },
  {
    name: 'serviceaccount',
    aliases: ['sa'],
    description: 'Accounts of programs, and their tokens',
    addVerbs: async (noun, terminal) => {
      (await import('./serviceaccount.ts')).addServiceAccountCommands(noun, terminal);
    },
  },
  {
    name: 'rolebinding',
    aliases: ['rb'],
    description: 'Members of a namespace',
    addVerbs: async (noun, terminal) => {
      (await import('./rolebinding.ts')).addRoleBindingCommands(noun, terminal);
    },
  },
  {
    name: 'registry',
    aliases: ['regcred', 'registrycredential'],
    description: 'Credentials for registries',
    addVerbs: async (noun, terminal) => {
      (await import('./registry.ts')).addRegistryCommands(noun, terminal);
    },
  },
  {
    name: 'secret',
    description: 'Secrets with data for the first boot of guests',
    addVerbs: async (noun, terminal) => {
      (await import('./secret.ts')).addSecretCommands(noun, terminal);
    },
  },
  {
    name: 'gitlab',
    description: 'Programs of the custom executor of GitLab runners',
    addVerbs: async (noun, terminal) => {
      (await import('./gitlab.ts')).addGitLabCommands(noun, terminal);
    },
  },
  {
    name: 'config',
    description: 'Settings of this command',
    addVerbs: async (noun, terminal) => {
      (await import('./config.ts')).addConfigCommands(noun, terminal);
    },
  },
];

/** Verbs that destroy data. On a terminal, the user has to confirm them. */
const DESTRUCTIVE: ReadonlySet<string> = new Set(['delete', 'revert', 'give-up']);

/** Runs the command and resolves with its exit code. `args` are the arguments after the name of the command. */
export async function run(args: readonly string[], terminal: Terminal): Promise<number> {
  if (args[0] === COMPLETE_VERB) {
    await offerCompletions(args.slice(1), terminal);
    return EXIT.done;
  }
  try {
    const program = await createProgram(terminal, ({ name, aliases = [] }) =>
      [name, ...aliases].some((word) => args.includes(word)),
    );
    await program.parseAsync(withBooleans(program, helpArguments(program, args)), { from: 'user' });
    return EXIT.done;
  } catch (error) {
    if (error instanceof CommanderError) {
      // commander has already written the message or the help.
      return error.exitCode === 0 ? EXIT.done : EXIT.usage;
    }
    if (error instanceof ProgramEnded) {
      return error.exitCode;
    }
    const { exitCode, message } = described(error);
    terminal.err(`error: ${withLogin(message, terminal.name)}\n`);
    return exitCode;
  }
}

/** Completes a line. Its words are no arguments of this command, so commander does not read them. */
async function offerCompletions(line: readonly string[], terminal: Terminal): Promise<void> {
  const program = await createProgram(terminal, ({ name, aliases = [] }) =>
    [name, ...aliases].some((word) => line.includes(word)),
  );
  const answer: CompletionAnswer = async (args, signal) => {
    let text = '';
    const out = (piece: string) => void (text += piece);
    await run(args, { ...terminal, out, err: () => undefined, isForPeople: false, signal });
    return text;
  };
  terminal.out(await complete(program, line, answer, terminal));
}

const HELP: readonly string[] = ['--help', '-h'];

/**
 * Returns `vm deploy --help` for `help vm deploy`, because commander shows only the help of the noun. If the arguments name a command that
 * does not exist, the result has no flag for help. Otherwise commander would show another help, and a script would not see the mistake.
 */
function helpArguments(program: Command, args: readonly string[]): readonly string[] {
  const [first, ...rest] = args;
  const asked = first === 'help' && rest.length > 0 ? [...rest, '--help'] : args;
  return namesUnknown(program, asked) ? asked.filter((arg) => !HELP.includes(arg)) : asked;
}

/** Returns the tree of commands. A noun gets its verbs if `hasVerbs` returns true for this noun. */
export async function createProgram(terminal: Terminal, hasVerbs: (noun: Noun) => boolean): Promise<Command> {
  const program = new Command(terminal.name)
    .description('Virtual machines of a Kubernetes cluster')
    .version(VERSION, '--version', 'show the version')
    .configureHelp({ showGlobalOptions: true })
    .configureOutput({
      writeOut: terminal.out,
      writeErr: terminal.err,
      getOutHasColors: () => false,
      getErrHasColors: () => false,
    })
    .helpOption('-h, --help', 'show this help')
    .helpCommand('help [command]', 'show the help of a command')
    .exitOverride();
  addGlobals(program);
  program.hook('preAction', async (_program, verb) => {
    if (DESTRUCTIVE.has(verb.name()) && isComplete(verb)) {
      const { confirm } = await import('./prompt.ts');
      await confirm(terminal, formatQuestion(verb));
    }
  });
  for (const noun of NOUNS) {
    const command = program.command(noun.name).description(noun.description).helpCommand(false);
    command.aliases([...(noun.aliases ?? [])]);
    if (hasVerbs(noun)) {
      await noun.addVerbs(command, terminal);
    }
  }
  addVersion(program, terminal);
  addExplain(program, terminal);
  addSupportBundle(program, terminal);
  addCompletion(program, terminal);
  addExamples(program, terminal.name);
  return program;
}

/** Reports whether the command line says what the verb destroys. Otherwise the verb itself ends with the mistake. */
function isComplete(verb: Command): boolean {
  const { all = false, selector } = verb.opts<{ all?: boolean; selector?: string }>();
  return verb.args.length > 0 || all || selector !== undefined;
}

/** Returns the question that the user must confirm before the verb runs, for example `Delete vm desk? This cannot be undone`. */
function formatQuestion(verb: Command): string {
  const word = verb.name();
  const { selector } = verb.opts<{ selector?: string }>();
  const labels = selector === undefined ? 'of the namespace' : `with the labels ${selector}`;
  const names = verb.args.length > 0 ? verb.args.join(', ') : `(all ${labels})`;
  return `${word.charAt(0).toUpperCase()}${word.slice(1)} ${verb.parent?.name()} ${printable(names)}? This cannot be undone`;
}

function addVersion(program: Command, terminal: Terminal): void {
  program
    .command('version')
    .description('Show the versions of this command and of the cluster')
    .action(async (_options, command: Command) => {
      const [{ showVersions }, { withCluster }] = await Promise.all([
        import('./versions.ts'),
        import('./cluster.ts'),
      ]);
      const globals = command.optsWithGlobals<Globals>();
      await showVersions(terminal, globals, async (work) => await withCluster(terminal, globals, work));
    });
}

function addExplain(program: Command, terminal: Terminal): void {
  program
    .command('explain')
    .description('Describe the fields of a kind, for example vm.spec.ports')
    .argument('<path>', 'kind, optionally with fields after dots')
    .action(async (path: string, _options, command: Command) => {
      const { explain } = await import('./explain.ts');
      await explain(terminal, command.optsWithGlobals<Globals>(), path);
    });
}

function addCompletion(program: Command, terminal: Terminal): void {
  program
    .command('completion')
    .description('Print the script that makes a shell complete commands, flags and their values')
    .addArgument(new Argument('<shell>', 'name of the shell').choices(SHELLS))
    .action((name: ShellName) => {
      if (terminal.name.includes(' ')) {
        // A plug-in of kubectl has a name of two words, for example `kubectl berth`. A shell would read these words as two commands. As a
        // result, the script would replace the completion of kubectl itself.
        throw new CommandError(
          `A shell cannot complete ${terminal.name}, because kubectl itself completes its plug-ins. Start this command under another name, for example: berth completion ${name}`,
          EXIT.usage,
        );
      }
      terminal.out(completionScript(name, terminal.name));
    });
}

function addSupportBundle(program: Command, terminal: Terminal): void {
  program
    .command('support-bundle')
    .description('Write objects, Events, logs and metrics into one archive, without secrets')
    .option('--file <path>', 'new file for the archive (default: berth-support-TIME.tar.gz)')
    .action(async (flags: { file?: string }, command: Command) => {
      const { supportBundle } = await import('./support/bundle.ts');
      await supportBundle(terminal, command.optsWithGlobals<Globals>(), flags);
    });
}

/** Arguments of an example by the path of its command. The commands whose path is an example themselves are not in the table. */
const EXAMPLES: Readonly<Record<string, string>> = {
  'vm list': '-l team=ci -o wide',
  'vm get': 'build',
  'vm delete': '-l team=ci',
  'vm deploy': 'build --image debian-cloud --cpu 4 --memory 8Gi --wait-for ready',
  'vm create': '-f vms.yaml',
  'vm run': '--image debian-cloud --copy .:/src -- sh -c "cd /src && make"',
  'vm save': 'build debian-tools -d "Debian with compilers"',
  'vm commit': 'build',
  'vm push': 'build registry.example/team/debian-tools:1',
  'vm get-push-status': 'vm-push-x7k2p',
  'vm resize': 'build 120G',
  'vm prolong': 'build --life 30m',
  'vm wait': 'build --for ready --timeout 5m',
  'vm why': 'build',
  'vm start': 'build',
  'vm stop': 'build',
  'vm restart': 'build',
  'vm suspend': 'build',
  'vm resume': 'build',
  'vm revert': 'build --to before-update',
  'vm exec': 'build -- uname -a',
  'vm console': 'build',
  'vm logs': 'build -f --tail 50',
  'vm screenshot': 'build build.png',
  'vm port-forward': 'build 8080:80 :vnc',
  'vm ssh': 'build -u debian -- uptime',
  'vm ssh-key add': 'build ~/.ssh/id_ed25519.pub',
  'vm scp': '-r results build:/tmp/',
  'vm vnc': 'build',
  'vmconfig get': 'ci',
  'vmconfig delete': 'ci',
  'vmconfig create': 'ci --image debian-cloud --cpu 4 --memory 8Gi',
  'image get': 'debian-tools',
  'image delete': 'debian-tools',
  'image create': 'debian --reference registry.example/debian:13',
  'image copy': 'debian-tools debian-tools-2',
  'image generate': 'blank 120G',
  'image set-description': 'debian-tools "With all updates of May"',
  'iso get': 'installer',
  'iso delete': 'installer',
  'iso create': 'installer --reference registry.example/installer:1',
  'iso copy': 'installer installer-2',
  'iso set-description': 'installer "For hosts of arm64"',
  'remote-image pull': 'debian-tools',
  'remote-iso pull': 'installer',
  'imagecache info': 'debian-tools',
  'imagecache add': 'debian-tools --tags fast',
  'imagecache remove': 'debian-tools --all',
  login: '--api-url https://berth.example',
  'user login': '--device',
  'user set-token': '-',
  credential: '--session berth',
  'node get': 'host-1',
  'node tag': 'host-1 fast',
  'node untag': 'host-1 fast',
  'node give-up': 'host-1',
  'node namespace': 'host-1 platform-ci',
  'server get': 'rack1-07',
  'server power': 'on rack1-07',
  'server wait': 'rack1-07 --for on',
  'server user add': 'ci --password-stdin',
  'server user remove': 'ci',
  'emulator get': 'pixel',
  'emulator delete': 'pixel',
  'emulator deploy': 'pixel --vm build',
  'snapshot get': 'before-update',
  'snapshot delete': 'before-update',
  'snapshot create': 'before-update --vm build',
  'pool get': 'ci',
  'pool delete': 'ci',
  'pool create': '-f pool.yaml',
  'pool claim': 'ci --when-empty wait',
  'pool scale': 'ci 10',
  'namespace create': 'platform-ci',
  'namespace delete': 'platform-ci',
  'serviceaccount create': 'ci',
  'serviceaccount delete': 'ci',
  'serviceaccount token': 'ci --duration 720h',
  'rolebinding add-subject': '--user ann,ben',
  'rolebinding remove-subject': '--user ann',
  'registry add': 'https://registry.example --username ci --password-stdin',
  'registry delete': 'https://registry.example',
  'secret create': 'setup --from-file setup.yaml',
  'secret delete': 'setup',
  'gitlab config': '--builds-dir /Users/ci/builds --cache-dir /Users/ci/cache',
  'gitlab prepare': "--config mac --user ci --allow-image 'registry.example/mac/*'",
  'gitlab run': 'script.sh build_script',
  'config set': '--api-url https://berth.example',
  explain: 'vm.spec.ports',
  completion: 'bash',
};

/** Adds an example to the help of each command without further commands. `name` is the name of the program. */
function addExamples(command: Command, name: string, path: readonly string[] = []): void {
  for (const next of command.commands) {
    addExamples(next, name, [...path, next.name()]);
  }
  if (command.commands.length === 0) {
    const example = [name, ...path, EXAMPLES[path.join(' ')] ?? ''].join(' ').trimEnd();
    command.addHelpText('after', `\nExample:\n  ${example}`);
  }
}
