/** Changes labels of a Node. */
import type { KubeClient } from './client.ts';
import { type Node, NODES } from './core.ts';
import { isConflict } from './errors.ts';

/** Limit of attempts. A kubelet writes its Node every few seconds at most, so a second conflict is rare. */
const ATTEMPTS = 5;

/**
 * Writes the labels that `labelsFor` returns for the Node as it is now; null removes a label. Nobody else changes the Node between its look
 * and the write.
 *
 * @throws ApiError of the API server, and the errors of `labelsFor`.
 */
export async function relabel(
  client: KubeClient,
  name: string,
  labelsFor: (node: Node) => Readonly<Record<string, string | null>>,
): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    const node = await client.get(NODES, { name });
    const { resourceVersion } = node.metadata;
    const patch = { metadata: { resourceVersion, labels: labelsFor(node) } };
    try {
      await client.mergePatch(NODES, { name }, patch);
      return;
    } catch (error) {
      if (!isConflict(error) || attempt === ATTEMPTS) {
        throw error;
      }
    }
  }
}
