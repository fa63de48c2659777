/** Lists, adds and removes the credentials of a namespace for registries, with the rights of the caller. */
import type { RegistryCredentialRequest } from '../../api/http/registrycredential.ts';
import {
  entryText,
  PULL_SECRET_KEY,
  PULL_SECRET_TYPE,
  readRegistryCredentials,
  readServer,
  REGISTRIES_CONFIG_MAP,
  REGISTRY_CREDENTIALS_LIMIT,
  registrySecretName,
  type Server,
  SERVER_FORM,
  SERVER_NEEDS_INSECURE,
  serverUrl,
} from '../../api/v1alpha1/registrycredentials.ts';
import type { KubeClient } from '../../kube/client.ts';
import { CONFIG_MAPS, SECRETS } from '../../kube/core.ts';
import { isAlreadyExists, unlessMissing } from '../../kube/errors.ts';
import { deleteAs } from '../callers/objects.ts';
import { invalidField, StatusError } from '../http/errors.ts';

type Data = Readonly<Record<string, string>>;

export async function listCredentials(client: KubeClient, namespace: string) {
  const { credentials } = readRegistryCredentials(await dataOf(client, namespace));
  const items = credentials.map(({ username, allowInsecure, ...server }) => ({
    server: serverUrl(server),
    username,
    allowInsecure,
  }));
  return { items };
}

/**
 * Makes the Secret, and then the entry that names it. A Secret without an entry has no effect. A replaced Secret keeps its name.
 *
 * @throws StatusError 409 when the registry has a credential that is not to be replaced, or when the namespace has too many.
 */
export async function addCredential(
  client: KubeClient,
  namespace: string,
  { server: url, username, password, allowInsecure = false, replace = false }: RegistryCredentialRequest,
): Promise<void> {
  const server = serverOf(url);
  if (server.scheme === 'http' && !allowInsecure) {
    throw invalidField('server', SERVER_NEEDS_INSECURE);
  }
  const data = await dataOf(client, namespace);
  const [known, ...others] = secretsFor(data, server);
  if (known !== undefined && !replace) {
    const message = `The credential for ${serverUrl(server)} already exists. Set replace to replace it`;
    throw new StatusError(409, message, { reason: 'AlreadyExists' });
  }
  const secretName = known ?? registrySecretName(server.registry);
  refuseTooMany([...Object.keys(data), secretName]);
  if (replace) {
    await client.delete(SECRETS, { namespace, name: secretName });
  }
  const auths = { [server.registry]: { username, password } };
  await client.create(SECRETS, {
    metadata: { namespace, name: secretName },
    type: PULL_SECRET_TYPE,
    data: { [PULL_SECRET_KEY]: Buffer.from(JSON.stringify({ auths })).toString('base64') },
  });
  const entry = entryText({ ...server, secretName, username, allowInsecure });
  // Only the first entry of a registry has an effect.
  const duplicates = others.map((name) => [name, null]);
  await writeEntries(client, namespace, { [secretName]: entry, ...Object.fromEntries(duplicates) });
}

/**
 * Removes the entries of the registry, and then their Secrets. If the second step fails, another removal does it.
 *
 * @throws StatusError or ApiError 404 when there is neither an entry nor a Secret.
 */
export async function removeCredential(client: KubeClient, namespace: string, url: string): Promise<void> {
  const server = serverOf(url);
  const names = secretsFor(await dataOf(client, namespace), server);
  const usual = registrySecretName(server.registry);
  if (names.length === 0) {
    await deleteAs(client, SECRETS, { namespace, name: usual });
    return;
  }
  await writeEntries(client, namespace, Object.fromEntries(names.map((name) => [name, null])));
  for (const name of new Set([...names, usual])) {
    await client.delete(SECRETS, { namespace, name });
  }
}

async function dataOf(client: KubeClient, namespace: string): Promise<Data> {
  const found = await unlessMissing(client.get(CONFIG_MAPS, { namespace, name: REGISTRIES_CONFIG_MAP }));
  return found?.data ?? {};
}

/** Returns the keys of the entries for the registry, in their order. People choose other keys than this server. */
function secretsFor(data: Data, { registry }: Server): string[] {
  return Object.entries(data)
    .filter(([key, value]) => readRegistryCredentials({ [key]: value }).credentials[0]?.registry === registry)
    .map(([key]) => key)
    .toSorted();
}

/** Refuses an entry over the limit, because it would have no effect. @throws StatusError 409 when there are more keys than the limit. */
function refuseTooMany(keys: readonly string[]): void {
  if (new Set(keys).size > REGISTRY_CREDENTIALS_LIMIT) {
    const limit = `The namespace has ${REGISTRY_CREDENTIALS_LIMIT} credentials already`;
    throw new StatusError(409, `${limit}. Remove one first`);
  }
}

/** Changes some entries and leaves the others, so that two changes at the same time both stay. Null removes an entry. */
async function writeEntries(
  client: KubeClient,
  namespace: string,
  data: Record<string, string | null>,
): Promise<void> {
  const ref = { namespace, name: REGISTRIES_CONFIG_MAP };
  const patched = await unlessMissing(client.mergePatch(CONFIG_MAPS, ref, { data }));
  if (patched !== undefined) {
    return;
  }
  const present = Object.entries(data).filter((one): one is [string, string] => one[1] !== null);
  try {
    await client.create(CONFIG_MAPS, { metadata: ref, data: Object.fromEntries(present) });
  } catch (error) {
    if (!isAlreadyExists(error)) {
      throw error;
    }
    // Somebody else added the first entry at the same time.
    await client.mergePatch(CONFIG_MAPS, ref, { data });
  }
}

/** @throws StatusError 422 when the text is not the URL of a registry. */
function serverOf(url: string): Server {
  const server = readServer(url);
  if (server === undefined) {
    throw invalidField('server', SERVER_FORM);
  }
  return server;
}
