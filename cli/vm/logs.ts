/** Shows the text that a VM writes to its serial console. */
import { once } from 'node:events';
import { StringDecoder } from 'node:string_decoder';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { unlessMissing } from '../../kube/errors.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { getNamed } from '../objects/named.ts';
import { streamPath, withoutPod } from './machine.ts';
import type { Terminal } from '../terminal.ts';
import { printableLines } from '../text.ts';
import { VM_KIND } from './kind.ts';

export interface LogFlags {
  readonly follow?: boolean;
  /** Number of last lines to show. */
  readonly tail?: number;
  /** Largest age of a line in seconds. */
  readonly since?: number;
}

export async function logs(
  terminal: Terminal,
  globals: Globals,
  { name, flags }: { name: string; flags: LogFlags },
): Promise<void> {
  const { signal } = terminal;
  const { follow = false, tail, since } = flags;
  const shown = process.stdout.isTTY ? shownOnTerminal() : (chunk: Buffer) => chunk;
  await withCluster(terminal, globals, async (cluster) => {
    const vm = await getNamed(cluster, VM_KIND, name, signal);
    const path = streamPath(cluster, name, 'log', [
      ['follow', follow],
      ...(tail === undefined ? [] : [['tailLines', tail] as const]),
      ...(since === undefined ? [] : [['sinceSeconds', since] as const]),
    ]);
    try {
      for await (const chunk of await cluster.watches.stream(path, signal)) {
        if (!process.stdout.write(shown(chunk))) {
          await once(process.stdout, 'drain', { signal });
        }
      }
    } catch (error) {
      signal.throwIfAborted();
      throw withoutPod(error, name);
    }
    if (follow) {
      await requireEnd(cluster, vm, signal);
    }
  });
}

/**
 * Checks after the end of a followed log that the machine of the VM has ended, too. If the API server loses the connection to the host, for
 * example during an upgrade of the agent, the API server ends the log in the same way.
 *
 * @throws CommandError when the VM still has a machine; ApiError.
 */
async function requireEnd(
  { client, namespace }: UserCluster,
  { metadata: { name, uid } }: VM,
  signal: AbortSignal,
): Promise<void> {
  const vm = await unlessMissing(client.get(VMS, { namespace, name }, { signal }));
  const { metadata, status } = vm ?? {};
  // A VM with a recorded failure can still have the phase Stopping. A VM on a lost host has Failed without a record.
  const hasFailed = status?.failure !== undefined || status?.phase === 'Failed';
  if (metadata?.uid === uid && metadata?.deletionTimestamp === undefined && !hasFailed) {
    throw new CommandError(
      `The log of VM ${name} ended, but the VM still exists. Run the command again`,
      EXIT.noAnswer,
    );
  }
}

/**
 * Returns a function that removes control characters from each piece of the log. Otherwise, guests could control the terminal of a user who
 * only reads the log.
 */
function shownOnTerminal(): (chunk: Buffer) => string {
  const decoder = new StringDecoder();
  return (chunk) => printableLines(decoder.write(chunk));
}
