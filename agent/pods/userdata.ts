/** Reads the user data of a machine from a Secret. No error message contains any part of the user data. */
import { isUtf8 } from 'node:buffer';
import { SECRET_USER_DATA_BYTES } from '../../api/v1alpha1/guestdata.ts';
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
 * Returns the value of a key in a Secret, as text.
 *
 * @throws ReasonedError `SecretNotFound` when there is no Secret or key; `SecretNotRead` when the API server does not answer;
 * `UserDataInvalid` when the value is too long, or not text.
 */
export async function readUserData(client: Pick<KubeClient, 'get'>, ref: SecretKey): Promise<string> {
  const { namespace, name, key } = ref;
  const secret = await readSecret(client, { name, namespace });
  if (secret === undefined) {
    const message = `The host is waiting for the Secret ${name} in ${namespace}. Create this Secret with the user data`;
    throw new ReasonedError('SecretNotFound', message);
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
