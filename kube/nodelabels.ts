/** Changes labels of a Node. */
import type { CallOptions, KubeClient } from './client.ts';
import { type Node, NODES } from './core.ts';
import { isConflict } from './errors.ts';

/** Largest number of attempts to write a Node. A kubelet seldom writes its Node twice in a few seconds, so a second conflict is rare. */
const ATTEMPTS = 5;

/**
 * Reads the Node, and writes the labels that `labelsFor` returns for it. The value null removes a label. If somebody else changes the Node
 * between the read and the write, the function repeats both.
 *
 * @throws ApiError when the API server refuses, and the errors of `labelsFor`.
 */
export async function relabel(
  client: KubeClient,
  name: string,
  labelsFor: (node: Node) => Readonly<Record<string, string | null>>,
  options: CallOptions = {},
): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    const node = await client.get(NODES, { name }, options);
    const { resourceVersion } = node.metadata;
    const patch = { metadata: { resourceVersion, labels: labelsFor(node) } };
    try {
      await client.mergePatch(NODES, { name }, patch, options);
      return;
    } catch (error) {
      if (!isConflict(error) || attempt === ATTEMPTS) {
        throw error;
      }
    }
  }
}
