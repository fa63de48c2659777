/** Credentials from the pull secrets of a Pod. The node reads them itself: it may read the secrets that its own Pods name, and no others. */
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../base/errors.ts';
import { Backoff } from '../../base/backoff.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, type Secret, SECRETS } from '../../kube/core.ts';
import { isForbidden, isNotFound } from '../../kube/errors.ts';
import { pause } from '../../base/time.ts';
import { Keyring } from '../images/oci/credentials.ts';

const TYPE = 'kubernetes.io/dockerconfigjson';
const KEY = '.dockerconfigjson';
/** The API server's authorizer of nodes hears of a Pod by a watch of its own: mostly milliseconds after the host does. */
const LAG_MILLISECONDS = 10_000;
const LAG_FIRST_MILLISECONDS = 50;
const LAG_CAP_MILLISECONDS = 1_000;

/**
 * Of all secrets that the Pod names, in their order.
 *
 * @throws ReasonedError `PullSecretMissing` when one is not there, may not be read, or is of another kind; what a cluster that
 * does not answer throws is passed on.
 */
export async function pullKeyring(client: KubeClient, pod: Readonly<Pod>): Promise<Keyring> {
  const texts: string[] = [];
  for (const { name } of pod.spec.imagePullSecrets ?? []) {
    texts.push(await read(client, { name, namespace: pod.metadata.namespace ?? '' }));
  }
  try {
    return Keyring.parse(texts);
  } catch (error) {
    // Its messages hold nothing of the content.
    throw missing(`a pull secret is not usable: ${messageOf(error)}`);
  }
}

async function read(client: KubeClient, ref: { name: string; namespace: string }): Promise<string> {
  const { type, data } = await get(client, ref);
  const text = data?.[KEY];
  if (type !== TYPE || text === undefined) {
    throw missing(`secret ${ref.name} in ${ref.namespace} is of type ${type ?? 'none'}, not ${TYPE}`);
  }
  return Buffer.from(text, 'base64').toString('utf8');
}

async function get(client: KubeClient, ref: { name: string; namespace: string }): Promise<Secret> {
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
        throw missing(`there is no pull secret ${ref.name} in ${ref.namespace} that this host may read`);
      }
    }
    await pause(tries.next());
  }
}

function missing(message: string): ReasonedError {
  return new ReasonedError('PullSecretMissing', message);
}
