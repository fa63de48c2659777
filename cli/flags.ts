/** Reads the values of flags. The message about a mistake names the flag. */
import { SCREEN_PORT, SCREEN_PORT_NAME } from '../api/v1alpha1/names.ts';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { parseBytes, quantityOf } from '../api/v1alpha1/quantity.ts';

/**
 * Words that users might type instead of `true` and `false`. If such a word follows a boolean flag, the word counts as the value of the
 * flag, and the command refuses this value.
 */
const NEAR_BOOLEAN = /^(yes|no|on|off|0|1)$/i;

/** Flag that is true if the user types it without a value. It also takes the values `true` and `false`. */
export class BooleanFlag extends Option {
  constructor(name: string, description: string) {
    super(`${name} <true|false>`, description);
    this.flags = name;
    // The library commander reads a flag `--no-x` as the opposite of a flag `--x`. This line prevents that, because `--no-x` can also be an
    // independent flag.
    this.negate = false;
    this.argParser(parseBoolean);
  }
}

/**
 * Returns the arguments and adds a value to each boolean flag without a value. Otherwise commander would read the next argument as the
 * value, for example a name after `--generate-name`.
 */
export function withBooleans(program: Command, args: readonly string[]): string[] {
  const longs = booleanFlagsOf(commandIn(program, args));
  const end = args.includes('--') ? args.indexOf('--') : args.length;
  const result: string[] = [];
  for (let at = 0; at < end; at += 1) {
    const arg = args[at] ?? '';
    const names = namesIn(arg, longs);
    if (names === undefined) {
      result.push(withLong(arg, longs));
      continue;
    }
    const next = args[at + 1] ?? '';
    const hasValue = next === 'true' || next === 'false' || NEAR_BOOLEAN.test(next);
    at += hasValue ? 1 : 0;
    result.push(...names.map((name) => `${name}=${hasValue ? next : 'true'}`));
  }
  return [...result, ...args.slice(end)];
}

/**
 * Returns the long names of the boolean flags in one argument: `--follow`, `-f`, or several letters as in `-it`. For all other arguments,
 * the result is undefined.
 */
function namesIn(arg: string, longs: ReadonlyMap<string, string>): string[] | undefined {
  const given = /^-[a-z]{2,}$/i.test(arg) ? Array.from(arg.slice(1), (letter) => `-${letter}`) : [arg];
  const names = given.map((word) => longs.get(word)).filter((name) => name !== undefined);
  return names.length === given.length ? names : undefined;
}

/** Returns `--follow=VALUE` for `-f=VALUE`, because commander would read the equals sign as a part of the value. */
function withLong(arg: string, longs: ReadonlyMap<string, string>): string {
  const long = arg.charAt(2) === '=' ? longs.get(arg.slice(0, 2)) : undefined;
  return long === undefined ? arg : long + arg.slice(2);
}

/**
 * Returns the command that the arguments name. The command decides which flags are boolean. For example, `-f` is boolean for `vm logs`, but
 * takes the name of a file for `vm create`.
 */
function commandIn(program: Command, args: readonly string[]): Command {
  return findCommand(program, args).command;
}

/** Reports whether the arguments name a noun or a verb that does not exist. */
export function namesUnknown(program: Command, args: readonly string[]): boolean {
  const { command, isUnknown } = findCommand(program, args);
  return isUnknown && command.commands.length > 0;
}

/** `isUnknown` tells that a word follows the command that is no command itself. */
function findCommand(program: Command, args: readonly string[]): { command: Command; isUnknown: boolean } {
  let command = program;
  for (let at = 0; at < args.length; at += 1) {
    const arg = args[at] ?? '';
    if (arg.startsWith('-')) {
      at += program.options.some((option) => option.required && [option.short, option.long].includes(arg))
        ? 1
        : 0;
      continue;
    }
    const next = command.commands.find((one) => one.name() === arg || one.aliases().includes(arg));
    if (next === undefined) {
      return { command, isUnknown: true };
    }
    command = next;
  }
  return { command, isUnknown: false };
}

/** Returns a map from the names of the boolean flags to their long names. The keys are the long and the short names. */
function booleanFlagsOf({ options }: Command): ReadonlyMap<string, string> {
  return new Map(
    options
      .filter((option) => option instanceof BooleanFlag)
      .flatMap(({ short, long = '' }) => [[long, long] as const, [short ?? long, long] as const]),
  );
}

/**
 * Adds a flag that scripts for another platform use, and that has no effect here. The help does not show it. Its use writes a warning with
 * the reason.
 */
export function addIneffective(command: Command, option: Option, reason: string): Command {
  return command.addOption(option.hideHelp()).on(`option:${option.name()}`, () => {
    command.configureOutput().writeErr?.(`warning: ${option.long} has no effect. ${reason}\n`);
  });
}

function parseBoolean(text: string): boolean {
  if (text !== 'true' && text !== 'false') {
    throw new InvalidArgumentError(`It must be true or false.`);
  }
  return text === 'true';
}

/**
 * Returns the labels that select objects. An empty text is refused, because the API server would select all objects: a script with an unset
 * variable would delete them.
 *
 * @throws InvalidArgumentError when the text is empty.
 */
export function parseSelector(text: string): string {
  if (text.trim() === '') {
    throw new InvalidArgumentError('It must name labels, for example app=ci.');
  }
  return text;
}

export function wholeNumber(text: string): number {
  if (!/^\d{1,9}$/.test(text)) {
    throw new InvalidArgumentError('It must be a whole number.');
  }
  return Number(text);
}

/**
 * Returns an amount of memory as a quantity. A number without a unit is in GiB.
 *
 * @throws InvalidArgumentError when the text has another form.
 */
export function parseMemory(text: string): string {
  if (/^\d{1,9}(\.\d{1,9})?$/.test(text)) {
    return quantityOf(Number(text));
  }
  if (parseBytes(text) === undefined) {
    throw new InvalidArgumentError('It must be a size such as 512Mi, 4Gi or 4G, or a number of GiB.');
  }
  return text;
}

/**
 * Returns the size of a disk as a quantity. A number without a unit is in GB.
 *
 * @throws InvalidArgumentError when the text has another form.
 */
export function parseDiskSize(text: string): string {
  const size = /^\d{1,9}$/.test(text) ? `${text}G` : text;
  if ((parseBytes(size) ?? 0) <= 0) {
    throw new InvalidArgumentError('It must be a size such as 120G or 100Gi, or a number of GB.');
  }
  return size;
}

/**
 * Adds the pairs of `key=value,key=value` to `before`, and returns the result. `before` has the pairs from earlier uses of the same flag. A
 * comma is a part of a value if no other key follows the comma.
 *
 * @throws InvalidArgumentError when the text has another form.
 */
export function parsePairs(text: string, before: Record<string, string> = {}): Record<string, string> {
  const pairs = text.split(/,(?=[^,=]+=)/).map((pair) => {
    const at = pair.indexOf('=');
    if (at < 1) {
      throw new InvalidArgumentError('It must have the form key=value,key=value.');
    }
    return [pair.slice(0, at), pair.slice(at + 1)];
  });
  return { ...before, ...Object.fromEntries(pairs) };
}

/**
 * Adds the texts between the commas to `before`, and returns the result. Leaves out the spaces around each text. `before` has the texts
 * from earlier uses of the same flag.
 */
export function parseList(text: string, before: readonly string[] = []): readonly string[] {
  const parts = text.split(',').map((part) => part.trim());
  return [...before, ...parts.filter((part) => part !== '')];
}

/** Port of this computer that leads to a port of a VM. */
export interface PortPair {
  /** Port of this computer. 0 means a free port. */
  readonly local: number;
  readonly remote: number;
}

const PORTS = 65_535;

/** A path of the side that is read, and a path of the other side. */
export interface Copy {
  readonly source: string;
  readonly target: string;
}

/** Reads `SOURCE:TARGET`, and adds it to `before`. @throws InvalidArgumentError when the text has another form. */
export function parseCopy(text: string, before: readonly Copy[] = []): readonly Copy[] {
  const [, source = '', target = ''] = /^([^:]+):([^:]+)$/s.exec(text) ?? [];
  if (source === '') {
    throw new InvalidArgumentError('It must be SOURCE:TARGET, with one colon.');
  }
  return [...before, { source, target }];
}

/**
 * Reads a pair of ports from the text, and returns `before` with this pair added. The text is `LOCAL:REMOTE`, `REMOTE` for the same port on
 * both sides, or `:REMOTE` for a free local port.
 *
 * @throws InvalidArgumentError when the text has another form.
 */
export function parsePair(text: string, before: readonly PortPair[] = []): readonly PortPair[] {
  const [local = '', remote = local, ...more] = text.split(':');
  if (more.length > 0) {
    throw new InvalidArgumentError('It must have the form LOCAL:REMOTE, REMOTE or :REMOTE.');
  }
  const target = parseRemote(remote);
  return [
    ...before,
    { local: local === '' ? 0 : local === remote ? target : parsePort(local), remote: target },
  ];
}

function parseRemote(text: string): number {
  return text === SCREEN_PORT_NAME ? SCREEN_PORT : parsePort(text);
}

function parsePort(text: string): number {
  const port = /^\d{1,5}$/.test(text) ? Number(text) : 0;
  if (port < 1 || port > PORTS) {
    throw new InvalidArgumentError(`A port must be a number from 1 to ${PORTS}, or ${SCREEN_PORT_NAME}.`);
  }
  return port;
}
