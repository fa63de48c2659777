/** What the pull secrets of a Pod open, read as the node: its authorizer lets it read what its own Pods name, and nothing else. */
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, type Secret, SECRETS } from '../../kube/core.ts';
import { isForbidden, isNotFound } from '../../kube/errors.ts';
import { Keyring } from '../images/registry/credentials.ts';
import { ImageError } from '../images/store.ts';

const TYPE = 'kubernetes.io/dockerconfigjson';
const KEY = '.dockerconfigjson';

/**
 * Of all secrets that the Pod names, in their order. Throws ImageError `PullSecretMissing` when one is not there, may not be
 * read, or is of another kind; what a cluster that does not answer throws is passed on.
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
    throw missing(`a pull secret is not usable: ${error instanceof Error ? error.message : String(error)}`);
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
  try {
    return await client.get(SECRETS, ref);
  } catch (error) {
    // Whether the authorizer has not seen the Pod yet or the secret is not there: either passes by itself, or not at all.
    if (isNotFound(error) || isForbidden(error)) {
      throw missing(`there is no pull secret ${ref.name} in ${ref.namespace} that this host may read`);
    }
    throw error;
  }
}

function missing(message: string): ImageError {
  return new ImageError('PullSecretMissing', message);
}
