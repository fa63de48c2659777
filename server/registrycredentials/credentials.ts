/** Lists, adds and removes the credentials of a namespace for registries, with the rights of the caller. */
import { additionOf, registryItems, removalOf } from '../../api/http/registrychange.ts';
import type { RegistryCredentialRequest } from '../../api/http/registrycredential.ts';
import {
  readServer,
  REGISTRIES_CONFIG_MAP,
  type Server,
  SERVER_FORM,
} from '../../api/v1alpha1/registrycredentials.ts';
import type { KubeClient } from '../../kube/client.ts';
import { readData, writeData } from '../../kube/configmapdata.ts';
import { SECRETS } from '../../kube/core.ts';
import { deleteAs } from '../callers/objects.ts';
import { invalidField, StatusError } from '../http/errors.ts';

export async function listCredentials(client: KubeClient, namespace: string) {
  return { items: registryItems(await readData(client, mapIn(namespace))) };
}

/**
 * Creates the Secret, and then the entry that names the Secret.
 *
 * @throws StatusError 409 when the namespace has too many credentials, or when the registry already has a credential and `replace` is not
 * set.
 */
export async function addCredential(
  client: KubeClient,
  namespace: string,
  { server: url, ...request }: RegistryCredentialRequest,
): Promise<void> {
  const addition = additionOf(await readData(client, mapIn(namespace)), serverOf(url), request);
  if ('refusal' in addition) {
    const { field, alreadyExists, message } = addition.refusal;
    throw field === undefined
      ? new StatusError(409, message, alreadyExists && { reason: 'AlreadyExists' })
      : invalidField(field, message);
  }
  const { secretName: name, secret, entries } = addition;
  // An addition that was interrupted leaves its Secret without an entry.
  await client.delete(SECRETS, { namespace, name });
  await client.create(SECRETS, { metadata: { namespace, name }, ...secret });
  await writeData(client, mapIn(namespace), entries);
}

/**
 * Deletes the Secret that Berth created for the registry, and then the entries of the registry. Secrets that people created stay. If a
 * request fails, a later call can finish the removal, because the entries are still there.
 *
 * @throws StatusError or ApiError 404 when there is neither an entry nor a Secret.
 */
export async function removeCredential(client: KubeClient, namespace: string, url: string): Promise<void> {
  const removal = removalOf(await readData(client, mapIn(namespace)), serverOf(url));
  const { entries, secretName: name } = removal;
  if (Object.keys(entries).length === 0) {
    await deleteAs(client, SECRETS, { namespace, name });
    return;
  }
  await client.delete(SECRETS, { namespace, name });
  await writeData(client, mapIn(namespace), entries);
}

function mapIn(namespace: string) {
  return { namespace, name: REGISTRIES_CONFIG_MAP };
}

/** Reads the URL of a registry. @throws StatusError 422 when the text is not such a URL. */
function serverOf(url: string): Server {
  const server = readServer(url);
  if (server === undefined) {
    throw invalidField('server', SERVER_FORM);
  }
  return server;
}
