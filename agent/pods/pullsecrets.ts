/** Reads credentials from the pull secrets of a Pod. */
import { INSECURE_SERVERS_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import {
  PULL_SECRET_KEY as KEY,
  PULL_SECRET_TYPE as TYPE,
  readInsecureServers,
} from '../../api/v1alpha1/registrycredentials.ts';
import { messageOf } from '../../base/errors.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Pod } from '../../kube/core.ts';
import { Keyring } from '../images/oci/credentials.ts';
import { readSecret } from './secrets.ts';

/**
 * Returns the credentials of all pull secrets that the Pod names, in the same order. Throws the client's error if the API server is
 * unreachable.
 *
 * @throws ReasonedError `PullSecretMissing` when a secret does not exist, this host has no right to read it, or it has another type.
 */
export async function pullKeyring(client: KubeClient, pod: Readonly<Pod>): Promise<Keyring> {
  const texts: string[] = [];
  for (const { name } of pod.spec.imagePullSecrets ?? []) {
    texts.push(await read(client, { name, namespace: pod.metadata.namespace ?? '' }));
  }
  const { namespace = '', annotations = {} } = pod.metadata;
  const servers = readInsecureServers(annotations[INSECURE_SERVERS_ANNOTATION]);
  try {
    return Keyring.parse(texts, { namespace, servers });
  } catch (error) {
    // Users may see the message of a parse error, because it contains no part of the secret.
    throw missing(`A pull secret cannot be used: ${messageOf(error)}`);
  }
}

async function read(client: KubeClient, ref: { name: string; namespace: string }): Promise<string> {
  const secret = await readSecret(client, ref);
  if (secret === undefined) {
    throw missing(
      `The pull secret ${ref.name} in ${ref.namespace} does not exist, or this host has no right to read it`,
    );
  }
  const { type, data } = secret;
  const text = data?.[KEY];
  if (type !== TYPE || text === undefined) {
    throw missing(
      `The pull secret ${ref.name} in ${ref.namespace} needs the type ${TYPE} and the key ${KEY}; its type is ${type ?? 'none'}`,
    );
  }
  return Buffer.from(text, 'base64').toString('utf8');
}

function missing(message: string): ReasonedError {
  return new ReasonedError('PullSecretMissing', message);
}
