/**
 * Writes scripts with which shells complete commands, flags and names of objects. Commands and flags come from the tree of commands. To
 * find the names of objects, a script runs a command such as `vm list`.
 */
import type { Command } from 'commander';

/** Word that the completion offers as the next word of a command line. */
interface Word {
  readonly text: string;
  readonly description: string;
}

/** Whether one name or several names of objects can follow the command. */
type Names = 'one' | 'several';

/** Place in the tree of commands. `path` contains the names of the commands up to this place, with a space before each name. */
interface Place {
  readonly path: string;
  readonly candidates: readonly Word[];
  /** Whether one name or several names of objects can follow the command in `path`. Absent if no name can follow. */
  readonly names?: Names;
}

/** Flag whose value must come from a fixed list. */
interface Choice {
  readonly flags: readonly string[];
  readonly values: readonly string[];
}

/** Flags that choose the cluster and the namespace whose objects the completion offers. Each flag takes a value. */
const SOURCE_FLAGS = ['-n', '--namespace', '--context', '--kubeconfig'];
/**
 * The completion offers only names that consist of these characters. A hostile cluster could send names with characters that have a special
 * meaning in shells. The colon is not allowed, because bash splits words at colons.
 */
const NAME_CHARACTERS = 'A-Za-z0-9._/-';

type Script = (name: string, places: readonly Place[], choices: readonly Choice[]) => string;

const SCRIPTS: Readonly<Record<ShellName, Script>> = { bash: bashScript, zsh: zshScript, fish: fishScript };

/** Returns the script for the shell. `program` must contain all nouns with all their verbs. */
export function completionScript(shell: ShellName, program: Command): string {
  const choices = new Map(choicesOf(program).map((choice) => [choice.flags.join(), choice]));
  return SCRIPTS[shell](program.name(), placesOf(program, '', []), [...choices.values()]);
}

function placesOf(command: Command, path: string, inherited: readonly Word[]): Place[] {
  const help = { text: '--help', description: 'show the help' };
  const flags = command.options
    .filter(({ hidden }) => !hidden)
    .map(({ long, description }) => ({ text: long ?? '', description }));
  const own = [...inherited, ...flags];
  const names = command.commands.flatMap((next) =>
    [next.name(), ...next.aliases()].map((text) => ({ text, description: next.description(), next })),
  );
  const values = command.registeredArguments
    .flatMap(({ argChoices = [] }) => argChoices)
    .map((text) => ({ text, description: '' }));
  const objects = namesOf(command);
  return [
    {
      path,
      candidates: [...names, ...values, ...own, help],
      ...(objects === undefined ? {} : { names: objects }),
    },
    ...names.flatMap(({ text, next }) => placesOf(next, `${path} ${text}`, own)),
  ];
}

/**
 * Returns whether one name or several names of existing objects can follow the command. The result is undefined if no name can follow. It
 * is also undefined if the noun lacks the verb `list`, because the script finds names with this verb.
 */
function namesOf(command: Command): Names | undefined {
  const [first] = command.registeredArguments;
  const hasList = command.parent?.commands.some((verb) => verb.name() === 'list') ?? false;
  if (!hasList || command.name() === 'create' || first === undefined) {
    return undefined;
  }
  if (first.variadic) {
    return first.name() === 'names' ? 'several' : undefined;
  }
  return first.required && first.name() === 'name' ? 'one' : undefined;
}

function choicesOf(command: Command): Choice[] {
  const own = command.options.flatMap(({ short, long, argChoices: values }) =>
    values === undefined ? [] : [{ flags: [short, long].filter((flag) => flag !== undefined), values }],
  );
  return [...own, ...command.commands.flatMap(choicesOf)];
}

/** Returns the name of the shell function that completes the command `name`. */
function functionOf(name: string): string {
  return `_${name.replace(/\W/g, '_')}`;
}

/**
 * Returns patterns for `case` in a shell, one for each command in `places`. A pattern is the path of the command. The first place is the
 * program itself, and gets no pattern.
 */
function patternsOf(places: readonly Place[]): string {
  return places
    .slice(1)
    .map(({ path }) => quoted(path))
    .join('|');
}

/**
 * Returns the paths of commands as patterns for `case` in a shell. `wanted` selects the commands that take one name, or the commands that
 * take several names.
 */
function pathsWith(places: readonly Place[], wanted: Names): string {
  return places
    .filter(({ names }) => names === wanted)
    .map(({ path }) => quoted(path))
    .join('|');
}

/**
 * Returns the code of a function for bash and zsh. The function writes the names of the objects of a noun such as `vm`. `words` is shell
 * code for the words between the name of this command and the word at the cursor.
 */
function namesFunction(name: string, candidates: string): string {
  return `${functionOf(name)}_names() {
  local word takes=''
  local -a flags
  for word in ${candidates}; do
    if [[ -n $takes && $word != "=" ]]; then
      flags+=("$word") takes=''
    else
      case "$word" in
        ${SOURCE_FLAGS.join('|')}) flags+=("$word") takes=yes ;;
        ${equalled().join('|')}) flags+=("$word") ;;
      esac
    fi
  done
  "$1" "$2" list -o name "\${flags[@]}" 2>/dev/null </dev/null | grep -E '^[${NAME_CHARACTERS}]+$'
}`;
}

/** Returns shell patterns for the flags of {@link SOURCE_FLAGS} that have their value in the same word, for example `--context=*`. */
function equalled(): string[] {
  return SOURCE_FLAGS.filter((flag) => flag.startsWith('--')).map((flag) => `${flag}=*`);
}

function bashScript(name: string, places: readonly Place[], choices: readonly Choice[]): string {
  const assignment = (candidates: readonly string[]) => `words=${quoted(candidates.join(' '))} ;;`;
  return `${namesFunction(name, '"${COMP_WORDS[@]:1:COMP_CWORD-1}"')}
${functionOf(name)}() {
  local current=\${COMP_WORDS[COMP_CWORD]} before=\${COMP_WORDS[COMP_CWORD-1]} at='' noun word words='' names=''
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$at $word" in
      ${patternsOf(places)}) at="$at $word" ;;
    esac
  done
  case "$at" in
    ${pathsWith(places, 'several')}) names=yes ;;
    ${pathsWith(places, 'one')}) [[ $at == *" $before" ]] && names=yes ;;
  esac
  case "$before" in
${choices.map(({ flags, values }) => `    ${flags.join('|')}) ${assignment(values)}`).join('\n')}
    *)
      if [[ -n $names && $current != -* ]]; then
        noun=\${at# }
        words=$(${functionOf(name)}_names "\${COMP_WORDS[0]}" "\${noun%% *}")
      else
        case "$at" in
${places.map(({ path, candidates }) => `          ${quoted(path)}) ${assignment(candidates.map(({ text }) => text))}`).join('\n')}
        esac
      fi ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F ${functionOf(name)} ${name}
`;
}

function zshScript(name: string, places: readonly Place[], choices: readonly Choice[]): string {
  // In zsh, a colon separates a word from its description. Therefore colons in the description are escaped.
  const described = ({ text, description }: Word) => quoted(`${text}:${description.replaceAll(':', '\\:')}`);
  return `#compdef ${name}
${namesFunction(name, '"${(@Q)words[2,CURRENT-1]}"')}
${functionOf(name)}() {
  local current=\${words[CURRENT]} before=\${words[CURRENT-1]} at='' noun word names=''
  local -a candidates
  for word in "\${(@)words[2,CURRENT-1]}"; do
    case "$at $word" in
      ${patternsOf(places)}) at="$at $word" ;;
    esac
  done
  case "$at" in
    ${pathsWith(places, 'several')}) names=yes ;;
    ${pathsWith(places, 'one')}) [[ $at == *" $before" ]] && names=yes ;;
  esac
  case "$before" in
${choices.map(({ flags, values }) => `    ${flags.join('|')}) candidates=(${values.join(' ')}) ;;`).join('\n')}
    *)
      if [[ -n $names && $current != -* ]]; then
        noun=\${at# }
        candidates=(\${(f)"$(${functionOf(name)}_names \${words[1]} \${noun%% *})"})
      else
        case "$at" in
${places.map(({ path, candidates }) => `          ${quoted(path)}) candidates=(${candidates.map(described).join(' ')}) ;;`).join('\n')}
        esac
      fi ;;
  esac
  _describe ${quoted(name)} candidates
}
compdef ${functionOf(name)} ${name}
`;
}

function fishScript(name: string, places: readonly Place[], choices: readonly Choice[]): string {
  const at = `_${functionOf(name)}_at`;
  const line = (path: string, { text, description }: Word) =>
    `complete -c ${name} -f -n ${quoted(`test "$(${at})" = "${path}"`)} ${
      text.startsWith('--') ? `-l ${text.slice(2)}` : `-a ${text}`
    } -d ${quoted(description)}`;
  const values = choices.map(
    ({ flags, values }) =>
      `complete -c ${name} -f ${flags.map((flag) => (flag.startsWith('--') ? `-l ${flag.slice(2)}` : `-s ${flag.slice(1)}`)).join(' ')} -xa ${quoted(values.join(' '))}`,
  );
  const objects = places
    .filter(({ names }) => names !== undefined)
    .map(({ path, names }) => {
      const [noun = '', verb = ''] = path.trim().split(' ');
      const first = names === 'one' ? `; and test (commandline -opc)[-1] = ${verb}` : '';
      return `complete -c ${name} -f -n ${quoted(`test "$(${at})" = "${path}"${first}`)} -a ${quoted(`(_${functionOf(name)}_names ${noun})`)}`;
    });
  return `function ${at}
  set -l at ''
  for word in (commandline -opc)[2..]
    switch "$at $word"
      case ${places
        .slice(1)
        .map(({ path }) => quoted(path))
        .join(' ')}
        set at "$at $word"
    end
  end
  echo $at
end
${fishNames(name)}
${[...places.flatMap(({ path, candidates }) => candidates.map((word) => line(path, word))), ...values, ...objects].join('\n')}
`;
}

/** Returns the code of a function for fish. The function writes the names of the objects of a noun such as `vm`. */
function fishNames(name: string): string {
  return `function _${functionOf(name)}_names
  set -l words (commandline -opc)
  set -l flags
  set -l takes ''
  for word in $words[2..]
    if test -n "$takes"
      set -a flags $word
      set takes ''
      continue
    end
    switch $word
      case ${SOURCE_FLAGS.join(' ')}
        set -a flags $word
        set takes yes
      case ${equalled().map(quoted).join(' ')}
        set -a flags $word
    end
  end
  $words[1] $argv[1] list -o name $flags 2>/dev/null </dev/null | string match -r '^[${NAME_CHARACTERS}]+$'
end`;
}

/** Returns the text in single quotes for a shell. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** Shells for which the command can write a completion script. */
export const SHELLS = ['bash', 'zsh', 'fish'] as const;
export type ShellName = (typeof SHELLS)[number];
