/**
 * Completes command lines in shells. The script of a shell passes the words of the line to the hidden verb {@link COMPLETE_VERB} of this
 * command. Names of objects come from the verb `list` of their noun, so completion sees the same objects as all other commands.
 */
import { join } from 'node:path';
import type { Argument, Command, Option } from 'commander';
import { homeFolder } from '../base/files.ts';
import { type JsonLimits, parseJson } from '../base/json.ts';
import { unlessAborted } from '../base/time.ts';
import { BooleanFlag } from './flags.ts';
import type { Terminal } from './terminal.ts';

/** Verb with which a script of {@link completionScript} asks for words. It has the name that shells and kubectl know from other programs. */
export const COMPLETE_VERB = '__complete';
/** Time limit for the names of objects. The limit is short, because the user waits at the prompt and can also type the name. */
const LIMIT_MILLISECONDS = 3_000;
/**
 * Words of a cluster that the completion offers. A hostile cluster could send names with characters that have a special meaning in shells,
 * or with a dash at the start, which would be flags.
 */
const SAFE_WORD = /^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,255}$/;
/** Flags that choose the cluster and the namespace whose objects are offered. Each flag takes a value. */
const PLACE_FLAGS: readonly string[] = ['--namespace', '--context', '--kubeconfig'];
/** Limits of the list of hosts: about 5000 hosts, each with less than 50 values and 3 KiB. */
const HOSTS_LIMITS: JsonLimits = { bytes: 16 * 1024 * 1024, items: 250_000 };
/** Last line of the answer, as kubectl defines it for plug-ins: whether the shell offers files if there is no word. */
const DIRECTIVE = { files: ':0', noFiles: ':4' } as const;

/** Word that the completion offers, with its description. */
interface Word {
  readonly text: string;
  readonly description?: string;
}

/** Where the values of a flag or an argument come from. */
type Source =
  | { readonly from: 'files' }
  | { readonly from: 'contexts' }
  | { readonly from: 'tags' }
  | { readonly from: 'pushes' }
  | { readonly from: 'choices'; readonly choices: readonly string[] }
  /** Names of the objects of a noun. Without a noun, those of the noun of the command. */
  | { readonly from: 'names'; readonly noun: string | undefined };

const FILES: Source = { from: 'files' };
const TAGS: Source = { from: 'tags' };

function namesOf(noun?: string): Source {
  return { from: 'names', noun };
}

function choices(...values: string[]): Source {
  return { from: 'choices', choices: values };
}

/** Sources of the values of flags that do not have choices. A command before the flag stands for this command alone. */
const FLAG_SOURCES: Readonly<Record<string, Source>> = {
  '--namespace': namesOf('namespace'),
  '--context': { from: 'contexts' },
  '--kubeconfig': FILES,
  '--image': namesOf('image'),
  '--iso': namesOf('iso'),
  '--copy-of': namesOf(),
  '--node': namesOf('node'),
  '--nodes': namesOf('node'),
  '--tag': TAGS,
  '--tags': TAGS,
  'vm deploy --config': namesOf('vmconfig'),
  'vm run --config': namesOf('vmconfig'),
  'vm run --pool': namesOf('pool'),
  'vm revert --to': namesOf('snapshot'),
  'gitlab prepare --config': namesOf('vmconfig'),
  'vm create --config': namesOf('vmconfig'),
  '--vm': namesOf('vm'),
  '--snapshot': namesOf('snapshot'),
  '--serviceaccount': namesOf('serviceaccount'),
  '--readiness': choices('none', 'ssh', 'guest-agent'),
  'vm wait --for': choices('running', 'ready', 'stopped', 'suspended', 'deleted', 'condition=Ready'),
  'server wait --for': choices('on', 'off', 'condition=Ready'),
  '--ssh-key': FILES,
  '--user-data': FILES,
  '--filename': FILES,
  '--file': FILES,
  '--from-file': FILES,
  '--identity': FILES,
  '--certificate-authority': FILES,
  '--session': FILES,
};

/** Sources of arguments without choices, by the command and the argument. */
const ARGUMENT_SOURCES: Readonly<Record<string, Source>> = {
  'vm screenshot file': FILES,
  'vm scp source': FILES,
  'vm ssh-key add name': namesOf('vm'),
  'vm ssh-key add key': FILES,
  'vm scp target': FILES,
  'imagecache list images': namesOf(),
  'imagecache info image': namesOf(),
  'imagecache remove image': namesOf(),
  'imagecache add image': namesOf('image'),
  'node tag tag': TAGS,
  'node untag tag': TAGS,
  'node namespace target': namesOf('namespace'),
  'registry delete servers': namesOf(),
  'vm get-push-status pushes': { from: 'pushes' },
  'explain path': choices(
    'vm',
    'vmconfig',
    'image',
    'iso',
    'emulator',
    'imagecacheentry',
    'vmpool',
    'vmsnapshot',
    'server',
  ),
};
/** Verbs whose argument is the name of a new object. */
const CREATING: ReadonlySet<string> = new Set(['create', 'deploy', 'add', 'generate']);

/** Runs a command of this program, and resolves with its standard output. The result is empty if the command fails. */
export type CompletionAnswer = (args: readonly string[], signal: AbortSignal) => Promise<string>;

/**
 * Returns what the verb {@link COMPLETE_VERB} writes: the words that can follow, each with its description after a tab, and a directive.
 * `line` has the words after the name of the program. The last one is the word at the cursor, and can be empty. If the cluster does not
 * answer in time, no names are offered.
 */
export async function complete(
  program: Command,
  line: readonly string[],
  answer: CompletionAnswer,
  { environment, signal }: Pick<Terminal, 'environment' | 'signal'>,
): Promise<string> {
  const late = AbortSignal.any([signal, AbortSignal.timeout(LIMIT_MILLISECONDS)]);
  const place = placeOf(program, line);
  const source = sourceOf(place);
  const offered =
    source === undefined
      ? candidatesAt(place)
      : await valuesAt(source, place, { environment, answer, signal: late });
  const lines = offered
    .filter(({ text }) => text.startsWith(place.current))
    .map(({ text, description = '' }) => (description === '' ? text : `${text}\t${description}`));
  const directive = source?.from === 'files' || place.isAfterEnd ? DIRECTIVE.files : DIRECTIVE.noFiles;
  return [...lines, directive, ''].join('\n');
}

/** Place of the cursor in a command line. */
interface Place {
  readonly command: Command;
  /** Arguments before the cursor. */
  readonly given: readonly string[];
  /** Flag whose value stands at the cursor. */
  readonly flag: Option | undefined;
  /** Word at the cursor, up to the cursor. */
  readonly current: string;
  /** Part of the word that stands before the value: `--flag=`, or the values before the last comma of a list. */
  readonly prefix: string;
  /** Flags of {@link PLACE_FLAGS} with their values. */
  readonly flags: readonly string[];
  /** Whether a word `--` stands before the cursor. The rest of the line then belongs to another program. */
  readonly isAfterEnd: boolean;
}

function placeOf(program: Command, line: readonly string[]): Place {
  const current = line.at(-1) ?? '';
  const before = line.slice(0, -1);
  const { flag, ...read } = readLine(program, before);
  const [name, value] = splitFlag(current);
  const own = flag === undefined && value !== undefined ? flagIn(read.command, name) : undefined;
  const start = own === undefined ? 0 : name.length + 1;
  const prefix = current.slice(0, start + current.slice(start).lastIndexOf(',') + 1);
  return { ...read, flag: flag ?? own, current, prefix, isAfterEnd: before.includes('--') };
}

/** Reads the words before the cursor. The result has a flag if the last word is a flag whose value must follow. */
function readLine(
  program: Command,
  before: readonly string[],
): Pick<Place, 'command' | 'given' | 'flags' | 'flag'> {
  let command = program;
  let flag: Option | undefined;
  const given: string[] = [];
  const flags: string[] = [];
  for (const word of before) {
    if (flag !== undefined) {
      flags.push(...placeFlag(flag, word));
      flag = undefined;
      continue;
    }
    if (word.startsWith('-')) {
      const [name, value] = splitFlag(word);
      const found = flagIn(command, name);
      flags.push(...placeFlag(found, value));
      flag = value === undefined && takesNext(found) ? found : undefined;
      continue;
    }
    const next = command.commands.find((one) => [one.name(), ...one.aliases()].includes(word));
    command = next ?? command;
    given.push(...(next === undefined ? [word] : []));
  }
  return { command, given, flags, flag };
}

/** Splits `--flag=value`. The value is undefined if the word has none. */
function splitFlag(word: string): [string, string?] {
  const [, name = '', value] = /^(--[\w-]+)=(.*)$/s.exec(word) ?? [];
  return value === undefined ? [word] : [name, value];
}

/** Returns the flag with its value if it chooses the cluster or the namespace. */
function placeFlag(flag: Option | undefined, value: string | undefined): string[] {
  const name = flag?.long ?? '';
  return value !== undefined && PLACE_FLAGS.includes(name) ? [`${name}=${value}`] : [];
}

function flagIn(command: Command, name: string): Option | undefined {
  return optionsOf(command).find(({ short, long }) => name === short || name === long);
}

/** Returns the flags of the command, and those that it has from the program. */
function optionsOf(command: Command): readonly Option[] {
  return [...command.options, ...(command.parent === null ? [] : optionsOf(command.parent))];
}

/** Reports whether the next word is the value of the flag. A boolean flag has its value after an equals sign. */
function takesNext(flag: Option | undefined): boolean {
  return flag?.required === true && !(flag instanceof BooleanFlag);
}

/** Returns the source of the value at the cursor. The result is undefined if a command, a flag or a free text stands there. */
function sourceOf({ command, given, flag, current, isAfterEnd }: Place): Source | undefined {
  if (isAfterEnd) {
    return undefined;
  }
  if (flag !== undefined) {
    return flagSource(command, flag) ?? choices();
  }
  if (current.startsWith('-') || command.commands.length > 0) {
    return undefined;
  }
  const { registeredArguments: all } = command;
  const argument = all[given.length] ?? (all.at(-1)?.variadic === true ? all.at(-1) : undefined);
  return argument && argumentSource(command, argument);
}

/** Returns the source of the values of a flag. The result is undefined if the value is a free text. */
export function flagSource(command: Command, flag: Option): Source | undefined {
  const { long = '', argChoices } = flag;
  if (flag instanceof BooleanFlag) {
    return choices('true', 'false');
  }
  return argChoices === undefined
    ? (FLAG_SOURCES[`${pathOf(command)} ${long}`] ?? FLAG_SOURCES[long ?? ''])
    : choices(...argChoices);
}

/** Returns the source of the values of an argument. The result is undefined if the value is a free text. */
export function argumentSource(command: Command, argument: Argument): Source | undefined {
  if (argument.argChoices !== undefined) {
    return choices(...argument.argChoices);
  }
  const source = ARGUMENT_SOURCES[`${pathOf(command)} ${argument.name()}`];
  const hasList = command.parent?.commands.some((verb) => verb.name() === 'list') ?? false;
  const isName = ['name', 'names'].includes(argument.name()) && hasList && !CREATING.has(command.name());
  return source ?? (isName ? namesOf() : undefined);
}

/** Returns the names of the command and its nouns, for example `vm deploy`. */
function pathOf(command: Command): string {
  const { parent } = command;
  return parent === null ? '' : `${pathOf(parent)} ${command.name()}`.trim();
}

/** Returns the commands that can follow. If there are none, or if the word begins with a dash, returns the flags. */
function candidatesAt({ command, current, isAfterEnd }: Place): readonly Word[] {
  if (isAfterEnd) {
    return [];
  }
  if (!current.startsWith('-') && command.commands.length > 0) {
    return command.commands.flatMap((next) =>
      [next.name(), ...next.aliases()].map((text) => ({ text, description: next.description() })),
    );
  }
  const flags = optionsOf(command)
    .filter(({ hidden }) => !hidden)
    .map(({ long, description }) => ({ text: long ?? '', description }));
  return [...flags, { text: '--help', description: 'show the help' }];
}

interface Asked {
  readonly environment: Terminal['environment'];
  readonly answer: CompletionAnswer;
  readonly signal: AbortSignal;
}

/** Returns the values, each with the prefix of the place. A failure gives no values, because a message would spoil the prompt. */
async function valuesAt(source: Source, place: Place, asked: Asked): Promise<readonly Word[]> {
  if (source.from === 'choices') {
    return source.choices.map((text) => ({ text: place.prefix + text }));
  }
  const given = new Set([...place.given, ...place.prefix.replace(/^.*=/s, '').split(',')]);
  try {
    const values = await unlessAborted(valuesOf(source, place, asked), asked.signal);
    return values
      .filter((value) => SAFE_WORD.test(value) && !given.has(value))
      .map((value) => ({ text: place.prefix + value }));
  } catch {
    return [];
  }
}

async function valuesOf(
  source: Exclude<Source, { from: 'choices' }>,
  { command, flags }: Place,
  { environment, answer, signal }: Asked,
): Promise<readonly string[]> {
  if (source.from === 'files') {
    return [];
  }
  if (source.from === 'contexts') {
    return await contextsOf(flags, environment);
  }
  if (source.from === 'tags') {
    const text = await answer(['node', 'list', '-o', 'json', ...flags], signal);
    const hosts = parseJson(text, HOSTS_LIMITS) as readonly TaggedHost[];
    return [...new Set(hosts.flatMap(({ tags }) => tags))].sort();
  }
  if (source.from === 'pushes') {
    return (await answer(['vm', 'get-push-status', '-o', 'name', ...flags], signal)).split('\n');
  }
  const noun = source.noun ?? command.parent?.name() ?? '';
  return (await answer([noun, 'list', '-o', 'name', ...flags], signal)).split('\n');
}

interface TaggedHost {
  readonly tags: readonly string[];
}

/** Returns the names of the contexts in the kubeconfig, as kubectl finds it. */
async function contextsOf(flags: readonly string[], environment: Terminal['environment']): Promise<string[]> {
  const { kubeconfigsIn, readKubeconfigs } = await import('../kube/credentials.ts');
  const [, named] = flags.map((one) => one.split('=', 2)).find(([name]) => name === '--kubeconfig') ?? [];
  const files = named === undefined ? kubeconfigsIn(environment) : [named];
  const own = join(homeFolder(environment), '.kube', 'config');
  const raws = await readKubeconfigs(files.length === 0 ? [own] : files);
  return raws.flatMap(({ contexts = [] }) => (contexts as { name: string }[]).map(({ name }) => name));
}

/** Shells for which the command can write a completion script. */
export const SHELLS = ['bash', 'zsh', 'fish'] as const;
export type ShellName = (typeof SHELLS)[number];

/**
 * Scripts of the shells. Each one passes the words up to the cursor, and offers the words of the answer, or files if the directive allows
 * it. NAME stands for the name of the command, and FUNCTION for the name of a function.
 *
 * bash splits words at `=` and `:`, so its script takes the words from the line, and leaves out of each answer the part that bash does not
 * replace. The script runs with bash 3.2, which macOS has.
 */
const SCRIPTS: Readonly<Record<ShellName, string>> = {
  bash: `FUNCTION() {
  local -a words
  local line current prefix
  IFS=$' \\t\\n' read -r -a words <<<"\${COMP_LINE:0:COMP_POINT}"
  [[ \${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && words+=('')
  current=\${words[\${#words[@]}-1]}
  prefix=\${current%"\${current##*[=:]}"}
  COMPREPLY=()
  while IFS= read -r line; do
    case "$line" in
      ${DIRECTIVE.files}) compopt -o default 2>/dev/null || COMPREPLY=($(compgen -f -- "\${current#"$prefix"}")) ;;
      ${DIRECTIVE.noFiles}) ;;
      *)
        line=\${line%%$'\\t'*}
        COMPREPLY+=("\${line#"$prefix"}") ;;
    esac
  done < <("\${words[0]}" ${COMPLETE_VERB} "\${words[@]:1}" 2>/dev/null </dev/null)
}
complete -F FUNCTION NAME
`,
  zsh: `#compdef NAME
FUNCTION() {
  local line
  local -a candidates
  for line in "\${(@f)$("\${(Q)words[1]}" ${COMPLETE_VERB} "\${(@Q)words[2,CURRENT-1]}" "\${(Q)PREFIX}" 2>/dev/null </dev/null)}"; do
    case "$line" in
      ${DIRECTIVE.files}) compset -P '--*='; _files ;;
      ${DIRECTIVE.noFiles}|'') ;;
      *) candidates+=("\${\${line//:/\\\\:}/$'\\t'/:}") ;;
    esac
  done
  (( $#candidates )) && _describe NAME candidates
}
compdef FUNCTION NAME
`,
  fish: `function FUNCTION
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  for line in ($words[1] ${COMPLETE_VERB} $words[2..] "$current" 2>/dev/null </dev/null)
    switch $line
      case '${DIRECTIVE.files}'
        __fish_complete_path "$current"
      case '${DIRECTIVE.noFiles}'
      case '*'
        echo $line
    end
  end
end
complete -c NAME -f -a '(FUNCTION)'
`,
};

/** Returns the script with which the shell completes the command `name`. */
export function completionScript(shell: ShellName, name: string): string {
  // A function with an underscore at the start of its name is not offered to users as a command.
  return SCRIPTS[shell].replaceAll('FUNCTION', `_${name.replace(/\W/g, '_')}`).replaceAll('NAME', name);
}
