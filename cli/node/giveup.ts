/** Gives up a host that is gone for good. */
import { GIVE_UP_PREFIX, HOST_RECORDS, SYSTEM_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { pause, timestamp } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { readData, writeData } from '../../kube/configmapdata.ts';
import { NODES } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import { withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { printDone } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import { requireHostName } from './hosts.ts';

/** ConfigMap in which administrators ask the operator to give a host up. */
const RECORDS = { namespace: SYSTEM_NAMESPACE, name: HOST_RECORDS };
/** Time in milliseconds between two looks whether the operator has answered the request. */
const LOOK_MILLISECONDS = 500;
/** Time limit for the answer of the operator, in milliseconds. A new leader needs some 20 s until it answers. */
const ANSWER_MILLISECONDS = 60_000;

/**
 * Asks the operator to give the host up, and waits for its answer. The host need not have a Node, and a Node stays. Only the user's own rights
 * count: to read Nodes, and to read and patch the ConfigMap.
 *
 * @throws CommandError when the host reports, or when the operator does not answer in time; ApiError.
 */
export async function giveUpHost(terminal: Terminal, globals: Globals, name: string): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async ({ client, namespace }) => {
    requireHostName(name, namespace);
    const key = `${GIVE_UP_PREFIX}${name}`;
    await writeData(client, RECORDS, { [key]: timestamp(Date.now()) });
    await untilAnswered(client, key, signal);
    const node = await unlessMissing(client.get(NODES, { name }, { signal }));
    const ready = node?.status?.conditions?.find(({ type }) => type === 'Ready');
    if (node !== undefined && ready?.status !== 'Unknown') {
      throw new CommandError(
        `Host ${name} reports, so it was not given up. Delete its VMs, or stop its agent and wait until the Node is not Ready`,
      );
    }
    await printDone(terminal, globals.output, [{ name }], 'Successfully gave up node');
  });
}

async function untilAnswered(client: KubeClient, key: string, signal: AbortSignal): Promise<void> {
  const deadline = performance.now() + ANSWER_MILLISECONDS;
  while ((await readData(client, RECORDS))[key] !== undefined) {
    if (performance.now() > deadline) {
      throw new CommandError(
        'The operator did not answer in 60 s. It gives the host up as soon as it runs. To withdraw the request, ' +
          `remove the key ${key} of ConfigMap ${RECORDS.name} in namespace ${RECORDS.namespace}`,
        EXIT.noAnswer,
      );
    }
    await pause(LOOK_MILLISECONDS, signal);
  }
}
