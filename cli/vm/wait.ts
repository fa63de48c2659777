/** Waits until VMs have a state. */
import type { VM } from '../../api/v1alpha1/vm.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { follow } from '../../kube/follow.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import { timeText } from '../duration.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { report } from '../objects/kind.ts';
import { forEachName, getNamed } from '../objects/named.ts';
import { progressLine } from '../progress.ts';
import type { Terminal } from '../terminal.ts';
import { type Goal, obstacleOf, reached, wordsOf } from './goal.ts';
import { VM_KIND } from './kind.ts';

interface Wait {
  readonly names: readonly string[];
  readonly goal: Goal;
  /** Time limit in milliseconds. */
  readonly timeout: number;
}

/**
 * Waits for all VMs at the same time.
 *
 * @throws CommandError when a VM cannot reach the goal, or does not reach it within the time limit; ApiError.
 */
export async function wait(
  terminal: Terminal,
  globals: Globals,
  { names, goal, timeout }: Wait,
): Promise<void> {
  const late = AbortSignal.timeout(timeout);
  const signal = AbortSignal.any([terminal.signal, late]);
  const progress = progressLine(terminal);
  await withCluster(terminal, globals, async (cluster) => {
    const { done, rethrow } = await forEachName(names, async (name) => {
      const latest: { vm?: VM } = {};
      try {
        return await until(cluster, goal, { name, latest, signal, show: progress.show });
      } catch (error) {
        throw late.aborted ? outOfTime(name, latest.vm, { goal, timeout, command: terminal.name }) : error;
      }
    });
    progress.end();
    const objects = done.filter((vm) => vm !== undefined);
    const sentence = (name: string) => `vm ${name} is ${wordsOf(goal)}`;
    await report(terminal, globals, { kind: VM_KIND, objects, sentence });
    rethrow();
  });
}

interface Following {
  readonly name: string;
  /** Receives the last known version of the VM. */
  readonly latest: { vm?: VM };
  readonly signal: AbortSignal;
  readonly show: (line: string) => void;
}

/**
 * Returns the VM when it has reached the goal. If the goal is `deleted` and the VM does not exist at the start, the result is undefined.
 */
async function until(
  cluster: Cluster,
  goal: Goal,
  { name, latest, signal, show }: Following,
): Promise<VM | undefined> {
  const { client, watches } = cluster;
  const first = await firstVersion(cluster, goal, { name, signal });
  if (first === undefined) {
    return undefined;
  }
  const versions = follow<VM>({ client, watches, type: VMS, from: first.metadata, signal });
  for await (const vm of startingWith(first, versions)) {
    latest.vm = vm;
    const state = reached(vm, goal);
    if (state === 'yes') {
      return vm;
    }
    if (state !== 'not yet') {
      throw new CommandError(state.failure);
    }
    show(`${name}: ${obstacleOf(vm)}`);
  }
  if (goal.state === 'deleted') {
    return latest.vm;
  }
  throw new CommandError(`VM ${name} was deleted`, EXIT.notFound);
}

/** Yields `first` and then the values of `others`. If the caller stops early, this function also ends `others` and its watch. */
async function* startingWith<T>(first: T, others: AsyncGenerator<T>): AsyncGenerator<T> {
  try {
    yield first;
    yield* others;
  } finally {
    await others.return(undefined);
  }
}

async function firstVersion(
  cluster: Cluster,
  { state }: Goal,
  { name, signal }: { name: string; signal: AbortSignal },
): Promise<VM | undefined> {
  try {
    return await getNamed(cluster, VM_KIND, name, signal);
  } catch (error) {
    if (state === 'deleted' && error instanceof CommandError && error.exitCode === EXIT.notFound) {
      return undefined;
    }
    throw error;
  }
}

function outOfTime(
  name: string,
  vm: VM | undefined,
  { goal, timeout, command }: Pick<Wait, 'goal' | 'timeout'> & { command: string },
): CommandError {
  const waitsFor = vm === undefined ? '' : `. It waits for: ${obstacleOf(vm)}`;
  return new CommandError(
    `VM ${name} is not ${wordsOf(goal)} after ${timeText(timeout)}${waitsFor}. ${command} vm why ${name} says more`,
    EXIT.noAnswer,
  );
}
