/** The noun `server`: the power of physical servers, with the user's own rights, and the users of the power API that have a password. */
import { Argument, type Command, InvalidArgumentError, Option } from 'commander';
import { hashSync } from 'bcryptjs';
import type { LastAction, PowerAction, PowerState, Server } from '../api/v1alpha1/server.ts';
import { parseDuration, timeText } from './duration.ts';
import { BooleanFlag } from './flags.ts';
import type { Globals } from './globals.ts';
import { addShowVerbs } from './objects/verbs.ts';
import type { Terminal } from './terminal.ts';
import { conditionOf, notReadyReason } from '../api/http/conditions.ts';
import { SERVERS } from '../api/v1alpha1/resources.ts';
import { type NounKind, report } from './objects/kind.ts';
import { age, printable } from './text.ts';
import { changeObject } from '../actions/change.ts';
import { requestServerPower } from '../actions/serverpower.ts';
import { undefinedIf } from '../base/errors.ts';
import { type UserCluster, withCluster } from './cluster.ts';
import { CommandError, EXIT } from './errors.ts';
import { forEachName, getNamed } from './objects/named.ts';
import { type ConditionGoal, parseConditionGoal, hasCondition, versionsFrom } from './objects/versions.ts';
import { progressLine } from './progress.ts';
import { SYSTEM_NAMESPACE } from '../api/v1alpha1/names.ts';
import {
  isServerUserName,
  isWholePassword,
  parseServerUsers,
  PASSWORD_BYTES,
  SERVER_USERS_KEY,
  SERVER_USERS_LIMIT,
  SERVER_USERS_SECRET,
  withServerUser,
} from '../api/v1alpha1/serverusers.ts';
import type { KubeClient } from '../kube/client.ts';
import { type Secret, SECRETS } from '../kube/core.ts';
import { isAlreadyExists, isConflict, unlessMissing } from '../kube/errors.ts';
import { printDone } from './output.ts';
import { readPassword } from './prompt.ts';

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
    .option('--timeout <time>', 'longest wait, for example 90s or 1h (default: 10m)', parseDuration)
    .action(async (word: string, names: string[], flags: Flags, command: Command) => {
      const { wait = true, timeout = LIMIT_MILLISECONDS } = flags;
      const action = ACTIONS[word] ?? 'On';
      await power(terminal, command.optsWithGlobals<Globals>(), { names, action, wait, timeout });
    });
  noun
    .command('wait')
    .description('Wait until servers reach a state')
    .argument('<names...>', 'names of the servers')
    .addOption(
      new Option('--for <state>', 'on, off or condition=TYPE')
        .argParser(parseServerGoal)
        .makeOptionMandatory(),
    )
    .option('--timeout <time>', 'longest wait, for example 90s or 1h (default: 10m)', parseDuration)
    .action(async (names: string[], flags: { for: ServerGoal; timeout?: number }, command: Command) => {
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
      await addUser(terminal, command.optsWithGlobals<Globals>(), name, flags);
    });
  noun
    .command('remove')
    .alias('rm')
    .description('Remove a user of the power API')
    .argument('<name>', 'name of the user')
    .action(async (name: string, _flags, command: Command) => {
      await removeUser(terminal, command.optsWithGlobals<Globals>(), name);
    });
}

export const SERVER_KIND: NounKind<Server> = {
  type: SERVERS,
  noun: 'server',
  plural: 'servers',
  columns: [
    { header: 'NAME', value: ({ metadata }) => metadata.name },
    { header: 'POWER', value: ({ status }) => status?.power },
    { header: 'READY', value: (server) => conditionOf(server, 'Ready')?.status },
    { header: 'REASON', value: notReadyReason },
    { header: 'NODE', value: ({ spec }) => spec.nodeName },
    { header: 'IP', value: ({ spec }) => spec.addresses[0] },
    { header: 'TYPE', value: ({ spec }) => spec.type },
    { header: 'LOCATION', value: ({ spec }) => spec.location },
    { header: 'AGE', value: ({ metadata }) => age(metadata.creationTimestamp) },
    { header: 'ACTION', value: ({ status }) => status?.lastAction?.action, isWide: true },
    { header: 'RESULT', value: ({ status }) => status?.lastAction?.result, isWide: true },
    { header: 'BY', value: ({ status }) => status?.lastAction?.by, isWide: true },
    { header: 'MESSAGE', value: (server) => conditionOf(server, 'Ready')?.message, isWide: true },
  ],
  itemOf: (server) => {
    const { displayName, addresses, type, location, nodeName } = server.spec;
    const { power, lastAction } = server.status ?? {};
    const { name } = server.metadata;
    return { name, displayName, addresses, type, location, node: nodeName, power, lastAction };
  },
  isShared: false,
};

interface Request {
  readonly names: readonly string[];
  readonly action: PowerAction;
  /** Whether to wait for the result. */
  readonly wait: boolean;
  /** Time limit of the wait in milliseconds. */
  readonly timeout: number;
}

/**
 * Requests the action of all named servers at the same time.
 *
 * @throws CommandError when the action is refused or fails, or has no result within the time limit; ApiError.
 */
export async function power(terminal: Terminal, globals: Globals, request: Request): Promise<void> {
  const { names, action, wait, timeout } = request;
  const late = AbortSignal.timeout(timeout);
  const signal = AbortSignal.any([terminal.signal, late]);
  const progress = progressLine(terminal);
  await withCluster(terminal, globals, async (cluster) => {
    const { done: objects, rethrow } = await forEachName(names, async (name) => {
      const server = await requested(cluster, name, { action, signal: terminal.signal });
      if (!wait) {
        return server;
      }
      try {
        return await untilEnded(cluster, server, { signal, show: progress.show });
      } catch (error) {
        throw error === late.reason ? outOfTime(name, action, timeout) : error;
      }
    });
    progress.end();
    const verb = wait ? 'Carried out' : 'Requested';
    const sentence = (name: string) => `${verb} ${action} of server ${name}`;
    await report(terminal, globals, { kind: SERVER_KIND, objects, sentence });
    rethrow();
  });
}

/** Writes the request into the Server. The patch fails if somebody else changed the Server at the same time. */
async function requested(
  cluster: UserCluster,
  name: string,
  { action, signal }: { action: PowerAction; signal: AbortSignal },
): Promise<Server> {
  const server = await getNamed(cluster, SERVER_KIND, name, signal);
  return await requestServerPower(cluster.client, server, action, { signal });
}

/** Returns the Server when the requested action has ended well. @throws CommandError; ApiError; the signal's reason when the signal aborts. */
async function untilEnded(
  cluster: UserCluster,
  first: Server,
  { signal, show }: { signal: AbortSignal; show: (line: string) => void },
): Promise<Server> {
  const { name } = first.metadata;
  const id = first.spec.powerAction?.requestedAt;
  for await (const server of versionsFrom(cluster, SERVERS, first, signal)) {
    const own = ownAction(server, id);
    if (own?.completedAt !== undefined) {
      return ended(server, own);
    }
    if (own === undefined && server.spec.powerAction?.requestedAt !== id) {
      throw new CommandError(`Server ${name}: another request replaced this one before it began`);
    }
    show(`${name}: ${waitText(own)}`);
  }
  throw new CommandError(`Server ${name} was deleted`, EXIT.notFound);
}

/** Returns the last action of the Server if it has this id. */
function ownAction({ status }: Server, id: string | undefined): LastAction | undefined {
  return status?.lastAction?.id === id ? status?.lastAction : undefined;
}

function waitText(own: LastAction | undefined): string {
  return own === undefined ? 'waiting for the operator' : own.message || 'waiting for the controller';
}

function ended(server: Server, { action, result, message }: LastAction): Server {
  if (result === 'Succeeded') {
    return server;
  }
  const how = result === 'Refused' ? 'was refused' : 'failed';
  throw new CommandError(`${action} of server ${server.metadata.name} ${how}: ${message}`);
}

function outOfTime(name: string, action: PowerAction, timeout: number): CommandError {
  return new CommandError(
    `${action} of server ${name} has not ended after ${timeText(timeout)}. The request stays. Look at the server with \`berth server get ${name}\``,
    EXIT.noAnswer,
  );
}

/** Cost of new hashes. The HTTP API needs some 70 ms for a check, and an attacker with the hash needs as long for each guess. */
const COST = 10;

/** Adds a user, or gives a user another password. @throws CommandError when the name or the password is not valid; ApiError. */
export async function addUser(
  terminal: Terminal,
  globals: Globals,
  name: string,
  { passwordStdin = false }: { passwordStdin?: boolean },
): Promise<void> {
  if (!isServerUserName(name)) {
    throw new CommandError(
      `The name ${JSON.stringify(printable(name))} must have 1 to 128 characters, without a colon, control characters, or # at the beginning`,
      EXIT.usage,
    );
  }
  const password = await readPassword(terminal, passwordStdin, { longest: PASSWORD_BYTES });
  if (!isWholePassword(password)) {
    throw new CommandError(`The password must have at most ${PASSWORD_BYTES} bytes`, EXIT.usage);
  }
  const hash = hashSync(password, COST);
  await changeUsers(terminal, globals, name, 'Successfully added server user', (text) => {
    const { hashes } = parseServerUsers(text);
    if (!hashes.has(name) && hashes.size >= SERVER_USERS_LIMIT) {
      throw new CommandError(`There are already ${SERVER_USERS_LIMIT} users. Remove a user first`);
    }
    return withServerUser(text, name, hash);
  });
}

/** Removes a user. @throws CommandError when there is no such user; ApiError. */
export async function removeUser(terminal: Terminal, globals: Globals, name: string): Promise<void> {
  await changeUsers(terminal, globals, name, 'Successfully removed server user', (text) => {
    const left = withServerUser(text, name);
    if (left === withServerUser(text, '')) {
      throw new CommandError(`server user ${printable(name)} not found`, EXIT.notFound);
    }
    return left;
  });
}

async function changeUsers(
  terminal: Terminal,
  globals: Globals,
  name: string,
  sentence: string,
  change: (text: string) => string,
): Promise<void> {
  await withCluster(terminal, globals, async ({ client, namespace }) => {
    const ref = {
      namespace: globals.namespace === undefined ? SYSTEM_NAMESPACE : namespace,
      name: SERVER_USERS_SECRET,
    };
    await changeObject(
      () => `Secret ${ref.name}`,
      async () => await changed(client, ref, change),
    );
    await printDone(terminal, globals.output, [{ name }], sentence);
  });
}

/** Changes the lines of the Secret, or creates the Secret. Returns undefined if somebody else has changed it at the same time. */
async function changed(
  client: KubeClient,
  ref: { namespace: string; name: string },
  change: (text: string) => string,
): Promise<Secret | undefined> {
  const secret = await unlessMissing(client.get(SECRETS, ref));
  const text = Buffer.from(secret?.data?.[SERVER_USERS_KEY] ?? '', 'base64').toString('utf8');
  const data = { ...secret?.data, [SERVER_USERS_KEY]: Buffer.from(change(text)).toString('base64') };
  const write =
    secret === undefined
      ? client.create<Secret>(SECRETS, { metadata: ref, data })
      : client.update<Secret>(SECRETS, { ...secret, data });
  return await undefinedIf((error) => isConflict(error) || isAlreadyExists(error), write);
}

export type ServerGoal = { readonly power: Extract<PowerState, 'On' | 'Off'> } | ConditionGoal;

/** @throws InvalidArgumentError */
export function parseServerGoal(text: string): ServerGoal {
  const word = text.toLowerCase();
  if (word === 'on' || word === 'off') {
    return { power: word === 'on' ? 'On' : 'Off' };
  }
  const goal = parseConditionGoal(text);
  if (goal === undefined) {
    throw new InvalidArgumentError('It must be on, off or condition=TYPE, such as condition=Ready.');
  }
  return goal;
}

function isReached(server: Server, goal: ServerGoal): boolean {
  return 'power' in goal ? server.status?.power === goal.power : hasCondition(server, goal);
}

function formatGoal(goal: ServerGoal): string {
  return 'power' in goal ? goal.power.toLowerCase() : `at condition ${goal.type}=${goal.status}`;
}

/**
 * Waits for all servers at the same time.
 *
 * @throws CommandError when a server does not reach the goal within the time limit; ApiError.
 */
export async function wait(
  terminal: Terminal,
  globals: Globals,
  { names, goal, timeout }: { names: readonly string[]; goal: ServerGoal; timeout: number },
): Promise<void> {
  const late = AbortSignal.timeout(timeout);
  const signal = AbortSignal.any([terminal.signal, late]);
  const progress = progressLine(terminal);
  await withCluster(terminal, globals, async (cluster) => {
    const { done: objects, rethrow } = await forEachName(names, async (name) => {
      const first = await getNamed(cluster, SERVER_KIND, name, terminal.signal);
      try {
        return await until(cluster, first, { goal, signal, show: progress.show });
      } catch (error) {
        const text = `Server ${name} is not ${formatGoal(goal)} after ${timeText(timeout)}`;
        throw error === late.reason ? new CommandError(text, EXIT.noAnswer) : error;
      }
    });
    progress.end();
    const sentence = (name: string) => `server ${name} is ${formatGoal(goal)}`;
    await report(terminal, globals, { kind: SERVER_KIND, objects, sentence });
    rethrow();
  });
}

interface Waiting {
  readonly goal: ServerGoal;
  readonly signal: AbortSignal;
  readonly show: (line: string) => void;
}

async function until(cluster: UserCluster, first: Server, { goal, signal, show }: Waiting): Promise<Server> {
  const { name } = first.metadata;
  for await (const server of versionsFrom(cluster, SERVERS, first, signal)) {
    if (isReached(server, goal)) {
      return server;
    }
    show(`${name}: the power is ${server.status?.power ?? 'not known yet'}`);
  }
  throw new CommandError(`Server ${name} was deleted`, EXIT.notFound);
}
