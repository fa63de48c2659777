/**
 * Reads the Secrets to which a Pod refers: its pull secrets, its VNC password and its user data. No message contains a value. The agent has the rights of a Node. Therefore it can
 * read a Secret only if a Pod of this Node refers to the Secret.
 */
import { isUtf8 } from 'node:buffer';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import {
  INSECURE_SERVERS_ANNOTATION,
  STORAGE_SECRET,
  VNC_SECRET_KEY,
  vncSecretName,
  SECRET_USER_DATA_BYTES,
  USER_DATA_SECRET_TYPE,
} from '../../api/v1alpha1/names.ts';
import { ReasonedError, reasonIn, type SaidReason } from '../../api/v1alpha1/reasons.ts';
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
import type { EventText } from '../../kube/events.ts';
import { type CredentialFault, Keyring, listFaults } from '../images/oci/credentials.ts';

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
 * Pattern of a VNC password. Its length is exactly eight, because VNC ignores all characters after the eighth. A longer password would be
 * weaker than it looks.
 */
const VNC_PASSWORD = /^[!-~]{8}$/;

/**
 * Returns a Secret, or undefined if it does not exist or this host has no right to read it.
 *
 * @throws ReasonedError `SecretNotRead` when the API server does not give the Secret. A machine then waits. Without this reason, an outage
 * of some seconds would make each new machine fail.
 */
async function readSecret(
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
        // Only the log shows the cause, because it contains the address of the API server.
        const message = `The host could not read the Secret ${name} in ${namespace} from the API server. The log of its agent has the cause`;
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
 * Returns the credentials of all pull secrets that the Pod names, in the same order. A Secret that cannot be read gives a fault instead of
 * credentials, because another Secret might open the image, or the image might be public.
 */
export async function pullKeyring(client: Pick<KubeClient, 'get'>, pod: Readonly<Pod>): Promise<Keyring> {
  const texts: string[] = [];
  const names: string[] = [];
  const faults: CredentialFault[] = [];
  const { namespace = '', annotations = {} } = pod.metadata;
  const secrets = pod.spec.imagePullSecrets ?? [];
  // The Secret of the image storage is for writes. A namespace need not have one.
  for (const { name } of secrets.filter((secret) => secret.name !== STORAGE_SECRET)) {
    const found = await readPullSecret(client, { name, namespace });
    if (typeof found === 'string') {
      texts.push(found);
      names.push(formatTitle({ name, namespace }));
    } else {
      faults.push(found);
    }
  }
  const servers = readInsecureServers(annotations[INSECURE_SERVERS_ANNOTATION]);
  return Keyring.parse(texts, { namespace, servers }, { names, faults });
}

/**
 * Returns the credentials with which a task writes to the registry of the image storage: those of the Pod's namespace if it has some, else
 * those of `otherNamespace`. The result is empty if there are none, because a registry can be open.
 *
 * @throws ReasonedError `SecretNotRead` when the API server does not give a Secret.
 */
export async function storageKeyring(
  client: Pick<KubeClient, 'get'>,
  { metadata: { namespace = '' } }: Readonly<Pod>,
  otherNamespace: string | undefined,
): Promise<Keyring> {
  const own = { name: STORAGE_SECRET, namespace };
  const other =
    otherNamespace === undefined ? undefined : { name: STORAGE_SECRET, namespace: otherNamespace };
  let ref = own;
  let secret = await readSecret(client, own);
  if (secret === undefined && other !== undefined) {
    ref = other;
    secret = await readSecret(client, other, GRANT_MILLISECONDS);
  }
  if (secret === undefined) {
    return Keyring.parse([]);
  }
  const found = parseText(secret, ref);
  return typeof found === 'string'
    ? Keyring.parse([found], undefined, { names: [formatTitle(ref)] })
    : Keyring.parse([], undefined, { faults: [found] });
}

/** Returns the Event that tells which pull secrets of a Pod cannot be used. Returns undefined if there are none. */
export function skippedSecrets({ faults }: Keyring): EventText<SaidReason> | undefined {
  const [first] = faults;
  if (first === undefined) {
    return undefined;
  }
  return {
    type: 'Warning',
    reason: first.reason ?? 'PullSecretInvalid',
    action: 'Pull',
    message: `Credentials are not used: ${listFaults(faults)}`,
  };
}

/** Returns the text of a pull secret, or its fault. */
async function readPullSecret(
  client: Pick<KubeClient, 'get'>,
  ref: { name: string; namespace: string },
): Promise<string | CredentialFault> {
  let secret: Secret | undefined;
  try {
    secret = await readSecret(client, ref);
  } catch (error) {
    const reason = reasonIn(error);
    if (reason === undefined) {
      throw error;
    }
    return { reason, message: messageOf(error) };
  }
  if (secret === undefined) {
    const message = `${formatTitle(ref)} does not exist, or this host has no right to read it`;
    return { reason: 'PullSecretMissing', message };
  }
  return parseText(secret, ref);
}

/** Returns the text of a pull secret, or its fault. */
function parseText(
  { type, data }: Secret,
  ref: { name: string; namespace: string },
): string | CredentialFault {
  const text = data?.[PULL_SECRET_KEY];
  if (type !== PULL_SECRET_TYPE || text === undefined || text === null) {
    const message = `${formatTitle(ref)} needs the type ${PULL_SECRET_TYPE} and the key ${PULL_SECRET_KEY}; its type is ${type ?? 'none'}`;
    return { reason: 'PullSecretTypeMismatch', message };
  }
  return Buffer.from(text, 'base64').toString('utf8');
}

function formatTitle({ name, namespace }: { name: string; namespace: string }): string {
  return `The pull secret ${name} in ${namespace}`;
}

/**
 * Returns the VNC password of a VM. @throws ReasonedError `VNCSecretNotFound` when there is no Secret with a valid password, or the Secret
 * belongs to an earlier VM of the same name; `SecretNotRead` when the API server does not give the Secret.
 */
export async function readVncPassword(
  client: Pick<KubeClient, 'get'>,
  { namespace, name: vmName, uid }: Machine['vm'],
): Promise<string> {
  const name = vncSecretName(vmName);
  const secret = await readSecret(client, { namespace, name });
  const owners = secret?.metadata.ownerReferences ?? [];
  if (secret === undefined || !owners.some((owner) => owner.uid === uid)) {
    const message = `The host is waiting for the Secret ${name} of this VM in ${namespace}. The operator creates this Secret`;
    throw new ReasonedError('VNCSecretNotFound', message);
  }
  const password = Buffer.from(secret.data?.[VNC_SECRET_KEY] ?? '', 'base64').toString('latin1');
  if (!VNC_PASSWORD.test(password)) {
    const message = `The Secret ${name} in ${namespace} must contain a password of 8 ASCII characters under the key ${VNC_SECRET_KEY}. Delete the Secret so that the operator creates it again`;
    throw new ReasonedError('VNCSecretNotFound', message);
  }
  return password;
}

/** Names one value in a Secret: the Secret's namespace and name, and the key of the value. */
export interface SecretKey {
  readonly namespace: string;
  readonly name: string;
  readonly key: string;
}

/**
 * Returns the value of a key in a Secret, as text. The Secret must have the type for user data. Otherwise every user who may create VMs could
 * read all Secrets of the namespace in a guest.
 *
 * @throws ReasonedError `SecretNotFound` when there is no Secret or key; `SecretNotRead` when the API server does not answer;
 * `UserDataSecretRefused` when the Secret has another type; `UserDataInvalid` when the value is too long, or not text.
 */
export async function readUserData(client: Pick<KubeClient, 'get'>, ref: SecretKey): Promise<string> {
  const { namespace, name, key } = ref;
  const secret = await readSecret(client, { name, namespace });
  if (secret === undefined) {
    const message = `The host is waiting for the Secret ${name} in ${namespace}. Create this Secret of type ${USER_DATA_SECRET_TYPE} with the user data`;
    throw new ReasonedError('SecretNotFound', message);
  }
  if (secret.type !== USER_DATA_SECRET_TYPE) {
    throw new ReasonedError(
      'UserDataSecretRefused',
      `The Secret ${name} in ${namespace} has the type ${secret.type ?? 'Opaque'}, and guests get only Secrets of type ${USER_DATA_SECRET_TYPE}; delete it and create it with this type`,
    );
  }
  const value = secret.data?.[key];
  if (value === undefined) {
    throw new ReasonedError(
      'SecretNotFound',
      `The Secret ${name} in ${namespace} needs the key ${key}; add it`,
    );
  }
  const bytes = Buffer.from(value, 'base64');
  if (bytes.length > SECRET_USER_DATA_BYTES || !isUtf8(bytes)) {
    const message = `The Secret ${name} in ${namespace} must contain UTF-8 text of at most ${SECRET_USER_DATA_BYTES} bytes under the key ${key}`;
    throw new ReasonedError('UserDataInvalid', message);
  }
  return bytes.toString('utf8');
}
