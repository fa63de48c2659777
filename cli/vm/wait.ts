/** Waits until VMs reach a state. */
import type { VM } from '../../api/v1alpha1/vm.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import { timeText } from '../duration.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { report } from '../objects/kind.ts';
import { forEachName, getNamed } from '../objects/named.ts';
import { versionsFrom } from '../objects/versions.ts';
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
      // The time limit does not end the first read of the VM, because the error after the time limit must name the state of the VM.
      const first = await firstVersion(cluster, goal, { name, signal: terminal.signal });
      if (first === undefined) {
        return undefined;
      }
      const latest = { vm: first };
      try {
        return await until(cluster, goal, { latest, signal, show: progress.show });
      } catch (error) {
        throw error === late.reason ? outOfTime(latest.vm, { goal, timeout, command: terminal.name }) : error;
      }
    });
    progress.end();
    const objects = done.filter((vm) => vm !== undefined);
    const sentence = (name: string) => `vm ${name} is ${wordsOf(goal)}`;
    // If all VMs were gone before the command, there is no object. Even so, programs get a list.
    const isDone = done.length > 0;
    await report(terminal, globals, { kind: VM_KIND, objects, sentence, isDone });
    rethrow();
  });
}

interface Following {
  /** Holds the last known version of the VM. The caller sets the first version. */
  readonly latest: { vm: VM };
  readonly signal: AbortSignal;
  readonly show: (line: string) => void;
}

/**
 * Returns the VM when it has reached the goal.
 *
 * @throws CommandError when it cannot reach the goal; ApiError; the signal's reason when the signal aborts.
 */
async function until(cluster: Cluster, goal: Goal, { latest, signal, show }: Following): Promise<VM> {
  const { metadata: from } = latest.vm;
  for await (const vm of versionsFrom(cluster, VMS, latest.vm, signal)) {
    latest.vm = vm;
    const state = reached(vm, goal);
    if (state === 'yes') {
      return vm;
    }
    if (state !== 'not yet') {
      throw new CommandError(state.failure);
    }
    show(`${from.name}: ${obstacleOf(vm)}`);
  }
  if (goal.state === 'deleted') {
    return latest.vm;
  }
  throw new CommandError(`VM ${from.name} was deleted`, EXIT.notFound);
}

/** Returns the VM. If the goal is `deleted` and the VM does not exist, the result is undefined. @throws CommandError; ApiError. */
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
  vm: VM,
  { goal, timeout, command }: Pick<Wait, 'goal' | 'timeout'> & { command: string },
): CommandError {
  const { name } = vm.metadata;
  const limit = timeText(timeout);
  return new CommandError(
    `VM ${name} is not ${wordsOf(goal)} after ${limit}. It is waiting for: ${obstacleOf(vm)}. For details, run: ${command} vm why ${name}`,
    EXIT.noAnswer,
  );
}
