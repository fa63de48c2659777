/**
 * Reads the Secrets to which a Pod refers, and the credentials in its pull secrets. The agent has the rights of a Node. Therefore it can
 * read a Secret only if a Pod of this Node refers to the Secret.
 */
import { INSECURE_SERVERS_ANNOTATION, STORAGE_SECRET } from '../../api/v1alpha1/names.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import {
  PULL_SECRET_KEY,
  PULL_SECRET_TYPE,
  readInsecureServers,
} from '../../api/v1alpha1/registrycredentials.ts';
import { Backoff } from '../../base/backoff.ts';
import { messageOf } from '../../base/errors.ts';
import { pause } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, type Secret, SECRETS } from '../../kube/core.ts';
import { isForbidden, isNotFound } from '../../kube/errors.ts';
import { Keyring } from '../images/oci/credentials.ts';

/**
 * Time limit for retries while the API server does not let this host read a Secret. Retries are necessary, because the host can learn of a
 * Pod some milliseconds earlier than the API server's Node authorizer.
 */
const LAG_MILLISECONDS = 10_000;
/**
 * Time limit for retries until this host may read the Secret of the image storage in the system namespace. The operator grants that right
 * after it has seen the Pod of the task, which can take long while the operator changes its leader.
 */
const GRANT_MILLISECONDS = 60_000;
const LAG_FIRST_MILLISECONDS = 50;
const LAG_CAP_MILLISECONDS = 1_000;

/**
 * Returns a Secret, or undefined if it does not exist or this host has no right to read it.
 *
 * @throws ReasonedError `SecretNotRead` when the API server does not give the Secret. A machine then waits. Without this reason, an outage
 * of some seconds would make each new machine fail.
 */
export async function readSecret(
  client: Pick<KubeClient, 'get'>,
  ref: { name: string; namespace: string },
  limitMilliseconds = LAG_MILLISECONDS,
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
        const { name, namespace } = ref;
        const message = `The host could not read the Secret ${name} in ${namespace} from the API server: ${messageOf(error)}`;
        throw new ReasonedError('SecretNotRead', message, { cause: error });
      }
      if (isNotFound(error) || performance.now() - began >= limitMilliseconds) {
        return undefined;
      }
    }
    await pause(tries.next());
  }
}

/**
 * Returns the credentials of all pull secrets that the Pod names, in the same order.
 *
 * @throws ReasonedError `PullSecretMissing` when a secret does not exist, this host has no right to read it, or it has another type;
 * `SecretNotRead` when the API server does not give a secret.
 */
export async function pullKeyring(client: KubeClient, pod: Readonly<Pod>): Promise<Keyring> {
  const texts: string[] = [];
  for (const { name } of pod.spec.imagePullSecrets ?? []) {
    // This Secret is for writes to the image storage. A namespace need not have one.
    if (name === STORAGE_SECRET) {
      continue;
    }
    texts.push(await readPullSecret(client, { name, namespace: pod.metadata.namespace ?? '' }));
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

/**
 * Returns the credentials with which a task writes to the registry of the image storage: those of the Pod's namespace if it has some, else
 * those of `otherNamespace`. The result is empty if there are none, because a registry can be open.
 *
 * @throws ReasonedError `PullSecretMissing` when the Secret has another type or content; `SecretNotRead` when the API server does not
 * give it.
 */
export async function storageKeyring(
  client: Pick<KubeClient, 'get'>,
  { metadata: { namespace = '' } }: Readonly<Pod>,
  otherNamespace: string | undefined,
): Promise<Keyring> {
  const own = await readSecret(client, { name: STORAGE_SECRET, namespace });
  const other =
    otherNamespace === undefined ? undefined : { name: STORAGE_SECRET, namespace: otherNamespace };
  const secret = own ?? (other && (await readSecret(client, other, GRANT_MILLISECONDS)));
  try {
    return Keyring.parse(secret === undefined ? [] : [textOf(secret)]);
  } catch (error) {
    throw missing(`The Secret ${STORAGE_SECRET} cannot be used: ${messageOf(error)}`);
  }
}

async function readPullSecret(client: KubeClient, ref: { name: string; namespace: string }): Promise<string> {
  const secret = await readSecret(client, ref);
  if (secret === undefined) {
    throw missing(
      `The pull secret ${ref.name} in ${ref.namespace} does not exist, or this host has no right to read it`,
    );
  }
  return textOf(secret);
}

function textOf({ metadata: { name, namespace }, type, data }: Secret): string {
  const text = data?.[PULL_SECRET_KEY];
  if (type !== PULL_SECRET_TYPE || text === undefined) {
    throw missing(
      `The pull secret ${name} in ${namespace} needs the type ${PULL_SECRET_TYPE} and the key ${PULL_SECRET_KEY}; its type is ${type ?? 'none'}`,
    );
  }
  return Buffer.from(text, 'base64').toString('utf8');
}

function missing(message: string): ReasonedError {
  return new ReasonedError('PullSecretMissing', message);
}
