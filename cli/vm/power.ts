/** Starts, stops, restarts, suspends, resumes and reverts VMs. The command only requests the change, and the hosts make it later. */
import { type PowerCommand, requestPower } from '../../api/http/vmpower.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { undefinedIf } from '../../base/errors.ts';
import { isConflict } from '../../kube/errors.ts';
import { withCluster } from '../cluster.ts';
import { CommandError } from '../errors.ts';
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
    const { client, namespace } = cluster;
    const { done: objects, rethrow } = await forEachName(names, async (name) => {
      const ref = { namespace, name };
      const requested = await requestPower(word, {
        read: async () => await getNamed(cluster, VM_KIND, name, signal),
        write: async (patch) => await undefinedIf(isConflict, client.mergePatch(VMS, ref, patch, { signal })),
      });
      if ('refusal' in requested) {
        throw new CommandError(requested.refusal);
      }
      return requested.vm;
    });
    const sentence = (name: string) => `Requested ${word} of vm ${name}`;
    await report(terminal, globals, { kind: VM_KIND, objects, sentence });
    rethrow();
  });
}
