/** Reads the user data of a machine from a Secret. No error message contains any part of the user data. */
import { isUtf8 } from 'node:buffer';
import { SECRET_USER_DATA_BYTES, USER_DATA_SECRET_TYPE } from '../../api/v1alpha1/guestdata.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { KubeClient } from '../../kube/client.ts';
import { readSecret } from './secrets.ts';

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
