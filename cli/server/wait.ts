/** Waits until servers are on or off, or have a condition. */
import { InvalidArgumentError } from 'commander';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { PowerState, Server } from '../../api/v1alpha1/server.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import { timeText } from '../duration.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { report } from '../objects/kind.ts';
import { forEachName, getNamed } from '../objects/named.ts';
import { versionsFrom } from '../objects/versions.ts';
import { progressLine } from '../progress.ts';
import type { Terminal } from '../terminal.ts';
import { type ConditionGoal, conditionGoalIn, hasCondition } from '../objects/conditiongoal.ts';
import { SERVER_KIND } from './kind.ts';

export type ServerGoal = { readonly power: Extract<PowerState, 'On' | 'Off'> } | ConditionGoal;

/** @throws InvalidArgumentError */
export function serverGoalIn(text: string): ServerGoal {
  const word = text.toLowerCase();
  if (word === 'on' || word === 'off') {
    return { power: word === 'on' ? 'On' : 'Off' };
  }
  const goal = conditionGoalIn(text);
  if (goal === undefined) {
    throw new InvalidArgumentError('It must be on, off or condition=TYPE, such as condition=Ready.');
  }
  return goal;
}

function isReached(server: Server, goal: ServerGoal): boolean {
  return 'power' in goal ? server.status?.power === goal.power : hasCondition(server, goal);
}

function wordsOf(goal: ServerGoal): string {
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
        const text = `Server ${name} is not ${wordsOf(goal)} after ${timeText(timeout)}`;
        throw error === late.reason ? new CommandError(text, EXIT.noAnswer) : error;
      }
    });
    progress.end();
    const sentence = (name: string) => `server ${name} is ${wordsOf(goal)}`;
    await report(terminal, globals, { kind: SERVER_KIND, objects, sentence });
    rethrow();
  });
}

interface Waiting {
  readonly goal: ServerGoal;
  readonly signal: AbortSignal;
  readonly show: (line: string) => void;
}

async function until(cluster: Cluster, first: Server, { goal, signal, show }: Waiting): Promise<Server> {
  const { name } = first.metadata;
  for await (const server of versionsFrom(cluster, SERVERS, first, signal)) {
    if (isReached(server, goal)) {
      return server;
    }
    show(`${name}: the power is ${server.status?.power ?? 'not known yet'}`);
  }
  throw new CommandError(`Server ${name} was deleted`, EXIT.notFound);
}
