/** Starts, stops, restarts, suspends, resumes and reverts VMs. The command only requests the change, and the hosts make it later. */
import { type PowerCommand, requestPower } from '../../actions/power.ts';
import { withCluster } from '../cluster.ts';
import type { Globals } from '../globals.ts';
import { report } from '../objects/kind.ts';
import { forEachName, getNamed } from '../objects/named.ts';
import type { Terminal } from '../terminal.ts';
import { VM_KIND } from './kind.ts';

export async function power(
  terminal: Terminal,
  globals: Globals,
  { names, word }: { names: readonly string[]; word: PowerCommand },
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { done: objects, rethrow } = await forEachName(
      names,
      async (name) =>
        await requestPower(cluster.client, word, async () => await getNamed(cluster, VM_KIND, name, signal)),
    );
    const sentence = (name: string) => `Requested ${word} of vm ${name}`;
    await report(terminal, globals, { kind: VM_KIND, objects, sentence });
    rethrow();
  });
}
