/** Lists, adds and removes the credentials of a namespace for registries. */
import type { RegistryCredentialRequest } from '../api/http/registrycredential.ts';
import {
  entryText,
  PULL_SECRET_KEY,
  PULL_SECRET_TYPE,
  readRegistryCredentials,
  REGISTRY_CREDENTIALS_LIMIT,
  readServer,
  REGISTRIES_CONFIG_MAP,
  registrySecretName,
  type RegistryServer,
  SERVER_FORM,
  SERVER_NEEDS_INSECURE,
  serverUrl,
} from '../api/v1alpha1/registrycredentials.ts';
import { deleteExisting, type KubeClient } from '../kube/client.ts';
import { readData, writeData } from '../kube/configmapdata.ts';
import { SECRETS } from '../kube/core.ts';
import { ActionError } from './error.ts';

/** Data of the ConfigMap that has one entry for each credential. Each entry names the Secret with the credential. */
type Entries = Readonly<Record<string, string>>;

export interface RegistryItem {
  readonly server: string;
  readonly username: string | undefined;
  readonly allowInsecure: boolean;
}

/**
 * Secret to create, and entries of the ConfigMap to write. Only Berth creates Secrets with this name, so an existing one may be replaced. It
 * can exist without an entry, because an earlier addition might have been interrupted before its entry was written. Write the entries last,
 * because a Secret without an entry has no effect. The value null removes an entry.
 */
interface Addition {
  readonly secretName: string;
  readonly secret: { readonly type: string; readonly data: Record<string, string> };
  readonly entries: Record<string, string | null>;
}

/** Returns the registries for which the namespace has credentials. @throws ApiError. */
export async function listCredentials(client: KubeClient, namespace: string): Promise<RegistryItem[]> {
  const entries = await readData(client, mapIn(namespace));
  return readRegistryCredentials(entries).credentials.map(({ username, allowInsecure, ...server }) => ({
    server: serverUrl(server),
    username,
    allowInsecure,
  }));
}

/**
 * Reads the URL of a registry as people write it. A host without a scheme is reached over https, as in references. Returns undefined if the
 * text is no URL of a registry.
 */
export function readTypedServer(text: string): RegistryServer | undefined {
  return readServer(text.includes('://') ? text : `https://${text}`);
}

/** Reads the URL of a registry. @throws ActionError when the text is not such a URL. */
function registryServer(url: string): RegistryServer {
  const server = readTypedServer(url);
  if (server === undefined) {
    throw new ActionError('invalid', SERVER_FORM, { field: 'server' });
  }
  return server;
}

/**
 * Creates the Secret, and then the entry that names the Secret. `clientForChange` is called before the first change, and returns the client
 * for it.
 *
 * @throws ActionError when the namespace has too many credentials, or when the registry already has a credential and `replace` is not set;
 * ApiError.
 */
export async function addCredential(
  client: KubeClient,
  namespace: string,
  { server: url, ...request }: RegistryCredentialRequest,
  clientForChange = () => client,
): Promise<void> {
  const entries = await readData(client, mapIn(namespace));
  const addition = additionOf(entries, registryServer(url), request);
  const { secretName: name, secret } = addition;
  const changing = clientForChange();
  // An addition that was interrupted leaves its Secret without an entry.
  await changing.delete(SECRETS, { namespace, name });
  await changing.create(SECRETS, { metadata: { namespace, name }, ...secret });
  await writeData(changing, mapIn(namespace), addition.entries);
}

/**
 * Deletes the Secret that Berth created for the registry, and then the entries of the registry. Secrets that people created stay, because
 * such a Secret can contain credentials for other registries. If a request fails, a later call can finish the removal, because the entries
 * are still there.
 *
 * @throws ActionError when the text is not the URL of a registry; ApiError, with status 404 when there is neither an entry nor a Secret.
 */
export async function removeCredential(client: KubeClient, namespace: string, url: string): Promise<void> {
  const entries = await readData(client, mapIn(namespace));
  const server = registryServer(url);
  const names = secretsFor(entries, server);
  const name = registrySecretName(server.registry);
  if (names.length === 0) {
    // An addition that was interrupted before it wrote its entry leaves a Secret.
    await deleteExisting(client, SECRETS, { namespace, name });
    return;
  }
  await client.delete(SECRETS, { namespace, name });
  await writeData(client, mapIn(namespace), Object.fromEntries(names.map((key) => [key, null])));
}

function mapIn(namespace: string) {
  return { namespace, name: REGISTRIES_CONFIG_MAP };
}

/**
 * Returns the changes that add the credential. The Secret always has the name that Berth gives it. If
 * people named a Secret of their own for the registry, the new entry replaces its entry, and their Secret stays.
 *
 * @throws ActionError when the credential is refused.
 */
function additionOf(
  entries: Entries,
  server: RegistryServer,
  { username, password, allowInsecure = false, replace = false }: Omit<RegistryCredentialRequest, 'server'>,
): Addition {
  if (server.scheme === 'http' && !allowInsecure) {
    throw new ActionError('invalid', SERVER_NEEDS_INSECURE, { field: 'server' });
  }
  const known = secretsFor(entries, server);
  if (known.length > 0 && !replace) {
    const message = `The credential for ${serverUrl(server)} already exists. To overwrite the credential, set replace to true`;
    throw new ActionError('exists', message);
  }
  const secretName = registrySecretName(server.registry);
  const left = new Set(Object.keys(entries).filter((name) => !known.includes(name))).add(secretName);
  if (left.size > REGISTRY_CREDENTIALS_LIMIT) {
    // The credential is refused, because an entry beyond the limit would have no effect.
    const limit = `The namespace already has ${REGISTRY_CREDENTIALS_LIMIT} credentials, which is the largest allowed number`;
    throw new ActionError('refused', `${limit}. First remove a credential`);
  }
  const auths = { [server.registry]: { username, password } };
  const content = Buffer.from(JSON.stringify({ auths })).toString('base64');
  // Only the first of several entries for a registry has an effect. Therefore the earlier entries are removed.
  const earlier = Object.fromEntries(known.map((name) => [name, null]));
  const entry = entryText({ ...server, secretName, username, allowInsecure });
  return {
    secretName,
    secret: { type: PULL_SECRET_TYPE, data: { [PULL_SECRET_KEY]: content } },
    entries: { ...earlier, [secretName]: entry },
  };
}

/**
 * Returns the sorted keys of the entries for the registry. A registry can have several entries, because people can choose other keys than
 * Berth does.
 */
function secretsFor(entries: Entries, { registry }: RegistryServer): string[] {
  return Object.entries(entries)
    .filter(([key, value]) => readRegistryCredentials({ [key]: value }).credentials[0]?.registry === registry)
    .map(([key]) => key)
    .toSorted();
}
