/** Reads credentials from the pull secrets of a Pod. The agent has a Node's rights: it may read only secrets that its Node's Pods name. */
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
/** Time limit for retries after the API server refuses a secret. Its Node authorizer may learn of a Pod milliseconds after the host. */
const LAG_MILLISECONDS = 10_000;
const LAG_FIRST_MILLISECONDS = 50;
const LAG_CAP_MILLISECONDS = 1_000;

/**
 * Returns the credentials of all pull secrets that the Pod names, in the same order. Throws the client's error if the API server is
 * unreachable.
 *
 * @throws ReasonedError `PullSecretMissing` when a secret does not exist, may not be read, or has another type.
 */
export async function pullKeyring(client: KubeClient, pod: Readonly<Pod>): Promise<Keyring> {
  const texts: string[] = [];
  for (const { name } of pod.spec.imagePullSecrets ?? []) {
    texts.push(await read(client, { name, namespace: pod.metadata.namespace ?? '' }));
  }
  try {
    return Keyring.parse(texts);
  } catch (error) {
    // The message of a parse error contains no part of the secret.
    throw missing(`A pull secret cannot be used: ${messageOf(error)}`);
  }
}

async function read(client: KubeClient, ref: { name: string; namespace: string }): Promise<string> {
  const { type, data } = await get(client, ref);
  const text = data?.[KEY];
  if (type !== TYPE || text === undefined) {
    throw missing(
      `The pull secret ${ref.name} in ${ref.namespace} needs the type ${TYPE} and the key ${KEY}; its type is ${type ?? 'none'}`,
    );
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
        throw missing(`There is no pull secret ${ref.name} in ${ref.namespace} that this host may read`);
      }
    }
    await pause(tries.next());
  }
}

function missing(message: string): ReasonedError {
  return new ReasonedError('PullSecretMissing', message);
}
