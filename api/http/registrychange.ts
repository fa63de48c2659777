/** Plans changes of the registry credentials of a namespace, for the HTTP API and the `berth` command. */
import {
  entryText,
  PULL_SECRET_KEY,
  PULL_SECRET_TYPE,
  readRegistryCredentials,
  REGISTRY_CREDENTIALS_LIMIT,
  registrySecretName,
  type Server,
  SERVER_NEEDS_INSECURE,
  serverUrl,
} from '../v1alpha1/registrycredentials.ts';
import type { RegistryCredentialRequest } from './registrycredential.ts';

/** Data of the ConfigMap that has one entry for each credential. Each entry names the Secret with the credential. */
export type Entries = Readonly<Record<string, string>>;

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
export interface Addition {
  readonly secretName: string;
  readonly secret: { readonly type: string; readonly data: Record<string, string> };
  readonly entries: Record<string, string | null>;
}

/**
 * Reason why a credential is not added. `field` names the wrong field of the request. If the request itself is not wrong, `field` is
 * absent.
 */
export interface Refusal {
  readonly field?: 'server';
  readonly alreadyExists?: true;
  readonly message: string;
}

/**
 * Entries to remove from the ConfigMap, and the Secret to delete before that. Berth created this Secret for the registry. It can exist
 * without an entry, because an earlier addition might have been interrupted before its entry was written. Secrets that people created stay,
 * because such a Secret can contain credentials for other registries.
 */
export interface Removal {
  readonly entries: Record<string, null>;
  readonly secretName: string;
}

export function registryItems(entries: Entries): RegistryItem[] {
  return readRegistryCredentials(entries).credentials.map(({ username, allowInsecure, ...server }) => ({
    server: serverUrl(server),
    username,
    allowInsecure,
  }));
}

/**
 * Returns the changes that add the credential, or the reason why it is refused. The Secret always has the name that Berth gives it. If
 * people named a Secret of their own for the registry, the new entry replaces its entry, and their Secret stays.
 */
export function additionOf(
  entries: Entries,
  server: Server,
  { username, password, allowInsecure = false, replace = false }: Omit<RegistryCredentialRequest, 'server'>,
): Addition | { refusal: Refusal } {
  if (server.scheme === 'http' && !allowInsecure) {
    return { refusal: { field: 'server', message: SERVER_NEEDS_INSECURE } };
  }
  const known = secretsFor(entries, server);
  if (known.length > 0 && !replace) {
    const message = `The credential for ${serverUrl(server)} already exists. To overwrite the credential, set replace to true`;
    return { refusal: { alreadyExists: true, message } };
  }
  const secretName = registrySecretName(server.registry);
  const left = new Set(Object.keys(entries).filter((name) => !known.includes(name))).add(secretName);
  if (left.size > REGISTRY_CREDENTIALS_LIMIT) {
    // The credential is refused, because an entry beyond the limit would have no effect.
    const limit = `The namespace already has ${REGISTRY_CREDENTIALS_LIMIT} credentials, which is the largest allowed number`;
    return { refusal: { message: `${limit}. First remove a credential` } };
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

export function removalOf(entries: Entries, server: Server): Removal {
  const names = secretsFor(entries, server);
  return {
    entries: Object.fromEntries(names.map((name) => [name, null])),
    secretName: registrySecretName(server.registry),
  };
}

/**
 * Returns the sorted keys of the entries for the registry. A registry can have several entries, because people can choose other keys than
 * Berth does.
 */
function secretsFor(entries: Entries, { registry }: Server): string[] {
  return Object.entries(entries)
    .filter(([key, value]) => readRegistryCredentials({ [key]: value }).credentials[0]?.registry === registry)
    .map(([key]) => key)
    .toSorted();
}
