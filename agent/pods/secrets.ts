/** Reads Secrets that a Pod names. The agent has the rights of a Node, so it can read only Secrets that Pods of its Node name. */
import { Backoff } from '../../base/backoff.ts';
import { pause } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Secret, SECRETS } from '../../kube/core.ts';
import { isForbidden, isNotFound } from '../../kube/errors.ts';

/**
 * Time limit for retries after the API server refuses a secret. Retries are necessary, because the API server's Node authorizer can learn
 * of a Pod some milliseconds after the host.
 */
const LAG_MILLISECONDS = 10_000;
const LAG_FIRST_MILLISECONDS = 50;
const LAG_CAP_MILLISECONDS = 1_000;

/**
 * Returns a Secret, or undefined if it does not exist or this host has no right to read it. Throws the client's error if the API server is
 * unreachable.
 */
export async function readSecret(
  client: Pick<KubeClient, 'get'>,
  ref: { name: string; namespace: string },
): Promise<Secret | undefined> {
  const tries = new Backoff({
    firstMilliseconds: LAG_FIRST_MILLISECONDS,
    capMilliseconds: LAG_CAP_MILLISECONDS,
  });
  const began = performance.now();
  for (;;) {
    try {
      return await client.get(SECRETS, ref);
    } catch (error) {
      if (!isNotFound(error) && !isForbidden(error)) {
        throw error;
      }
      if (isNotFound(error) || performance.now() - began >= LAG_MILLISECONDS) {
        return undefined;
      }
    }
    await pause(tries.next());
  }
}
