/**
 * The credentials with which a namespace uses registries. The ConfigMap {@link REGISTRIES_CONFIG_MAP} of the namespace names a Secret for
 * each server. Members of the namespace have the right to read this ConfigMap. The operator adds the Secret to Pods that use the server, so
 * no member needs to read a Secret. Each key of the ConfigMap is the name of a Secret, and its value is the JSON text of {@link entryText}:
 *
 * `regcred: '{"server":"https://registry.example:5000","username":"ci"}'`
 *
 * The Secret has the type {@link PULL_SECRET_TYPE}. Its key {@link PULL_SECRET_KEY} contains JSON. In this JSON, `auths` contains the
 * credential under the name of the registry ({@link RegistryServer}.registry).
 */
import { createHash } from 'node:crypto';
import * as z from 'zod';
import { parseDocument } from './machine.ts';
import { readReference } from './reference.ts';

/** Name of the ConfigMap that lists the servers of its namespace. */
export const REGISTRIES_CONFIG_MAP = 'berth-registries';
export const PULL_SECRET_TYPE = 'kubernetes.io/dockerconfigjson';
export const PULL_SECRET_KEY = '.dockerconfigjson';
/**
 * Largest number of servers of one namespace. If the ConfigMap has more entries, only the first ones in the order of their keys have an
 * effect.
 */
export const REGISTRY_CREDENTIALS_LIMIT = 64;
/** Largest length of a user's name, in characters. Most registries have shorter names, but some use a long access key as the name. */
export const REGISTRY_USERNAME_LENGTH = 256;

/** Largest length of an entry, in characters. An entry has room for a server and the name of a user, even with escapes in the JSON text. */
const ENTRY_LENGTH = 4096;
/** Largest length of the URL of a server, in characters: scheme, host name and port. */
const SERVER_LENGTH = 272;
const SERVER = /^(https?):\/\/([^/\s@?#]+)\/?$/i;
const DEFAULT_PORTS = { http: ':80', https: ':443' } as const;
/**
 * Example of a repository. To check the host of a server, {@link readServer} appends this repository and checks that the result is a
 * reference.
 */
const REPOSITORY = 'team/image';
const SECRET_NAME = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;
const SECRET_NAME_LENGTH = 253;
/**
 * Number of hexadecimal digits of the hash in the name of a Secret. With 24 digits (96 bits), the names of two registries practically never
 * have the same hash.
 */
const HASH_DIGITS = 24;

const serverSchema = z.object({
  scheme: z.enum(['http', 'https']),
  /** Host of the registry, and the port if it is not the default port of the scheme. References contain the registry in this form. */
  registry: z.string().max(SERVER_LENGTH),
});
/** Address of a registry. */
export type RegistryServer = Readonly<z.infer<typeof serverSchema>>;

/**
 * Schema of the annotation `berth.dev/insecure-servers`. A list with two registries is enough, because a Pod uses two images, or one image
 * and the target of a push.
 */
const insecureServersSchema = z.array(serverSchema).max(2);

/**
 * Credential for one server. A namespace has at most one credential for each registry. The http and the https address of a registry share
 * this credential.
 */
export interface RegistryCredential extends RegistryServer {
  /** Name of the Secret in the same namespace. */
  readonly secretName: string;
  /** Name of the user. Berth uses this field only for display. The name and the password for the login are in the Secret. */
  readonly username?: string | undefined;
  /**
   * True if the server has no TLS (`http`), or if its certificate is not checked (`https`). Hosts give content from such a server only to
   * Pods of this namespace.
   */
  readonly allowInsecure: boolean;
}

export interface RegistryCredentials {
  /** Credentials in the order of their keys in the ConfigMap, at most one for each registry. */
  readonly credentials: readonly RegistryCredential[];
  /** Messages about ignored entries. They quote no value, because a value can contain a password by mistake. */
  readonly mistakes: readonly string[];
}

/** Message about a wrong URL of a server. The message follows the name of the field. */
export const SERVER_FORM =
  'must be https:// or http:// with a host and an optional port, for example https://registry.example:5000';
/** Message about an entry that has a server without TLS, but does not set `allowInsecure`. The message follows the name of the field. */
export const SERVER_NEEDS_INSECURE = 'must begin with https://, or allowInsecure must be true';

/** Reads the URL of a server. Returns undefined if the text does not have the form in {@link SERVER_FORM}. */
export function readServer(text: string): RegistryServer | undefined {
  const [, written = '', host] = (text.length <= SERVER_LENGTH && SERVER.exec(text.trim())) || [];
  if (host === undefined) {
    return undefined;
  }
  const scheme = written.toLowerCase() === 'http' ? 'http' : 'https';
  const port = DEFAULT_PORTS[scheme];
  const name = host.endsWith(port) ? host.slice(0, -port.length) : host;
  const reference = readReference(`${name}/${REPOSITORY}`);
  // If the host is not a valid name of a registry, the parser of references reads the host as a part of the repository. The function
  // refuses such a host.
  const isNamed = typeof reference !== 'string' && reference.repository === REPOSITORY;
  return isNamed ? { scheme, registry: reference.registry } : undefined;
}

/** Returns the URL of a server in its normalized spelling. */
export function serverUrl({ scheme, registry }: RegistryServer): string {
  return `${scheme}://${registry}`;
}

/** Returns the name that Berth gives to the Secret for a registry. Secrets that people create can have other names. */
export function registrySecretName(registry: string): string {
  return `berth-registry-${createHash('sha256').update(registry).digest('hex').slice(0, HASH_DIGITS)}`;
}

/** Returns the value of the ConfigMap's entry for a credential. The key of the entry is `secretName`. */
export function entryText(credential: RegistryCredential): string {
  const { username, allowInsecure } = credential;
  return JSON.stringify({
    server: serverUrl(credential),
    username,
    ...(allowInsecure && { allowInsecure }),
  });
}

const entrySchema = z.object({
  server: z.string(),
  username: z.string().min(1).max(REGISTRY_USERNAME_LENGTH).optional(),
  allowInsecure: z.boolean().optional(),
});

/** Reads the `data` of the ConfigMap. Entries with a mistake are ignored, and the others are used. */
export function readRegistryCredentials(data: Readonly<Record<string, string>> = {}): RegistryCredentials {
  const credentials = new Map<string, RegistryCredential>();
  const mistakes: string[] = [];
  const names = Object.keys(data).toSorted();
  for (const secretName of names.slice(0, REGISTRY_CREDENTIALS_LIMIT)) {
    const credentialOrMistake = readEntry(secretName, data[secretName] ?? '');
    if (typeof credentialOrMistake === 'string') {
      mistakes.push(`Entry ${secretName} is ignored: ${credentialOrMistake}`);
    } else if (credentials.has(credentialOrMistake.registry)) {
      mistakes.push(`Entry ${secretName} is ignored: an earlier entry has the same registry`);
    } else {
      credentials.set(credentialOrMistake.registry, credentialOrMistake);
    }
  }
  if (names.length > REGISTRY_CREDENTIALS_LIMIT) {
    mistakes.push(`Entries after the first ${REGISTRY_CREDENTIALS_LIMIT} are ignored`);
  }
  return { credentials: [...credentials.values()], mistakes };
}

/** Returns the credential of an entry. If the entry is wrong, returns a phrase that describes the mistake. */
function readEntry(secretName: string, value: string): RegistryCredential | string {
  if (secretName.length > SECRET_NAME_LENGTH || !SECRET_NAME.test(secretName)) {
    return 'its key must be the name of a Secret';
  }
  const entry = entrySchema.safeParse(value.length > ENTRY_LENGTH ? undefined : parseDocument(value)).data;
  if (entry === undefined) {
    return `its value must be a JSON object of at most ${ENTRY_LENGTH} characters. It must have the text "server", and may have the text "username" and the boolean "allowInsecure"`;
  }
  const { username, allowInsecure = false } = entry;
  const server = readServer(entry.server);
  if (server === undefined) {
    return `server ${SERVER_FORM}`;
  }
  return server.scheme === 'http' && !allowInsecure
    ? `server ${SERVER_NEEDS_INSECURE}`
    : { ...server, secretName, allowInsecure, ...(username !== undefined && { username }) };
}

/** Returns the text of the annotation `berth.dev/insecure-servers`. */
export function insecureServersText(servers: readonly RegistryServer[]): string {
  return JSON.stringify(servers.map(({ scheme, registry }) => ({ scheme, registry })));
}

/**
 * Reads the annotation `berth.dev/insecure-servers`. If the text is absent or wrong, the result is an empty list. With an empty list, all
 * requests use TLS and check the certificate.
 */
export function readInsecureServers(text: string | undefined): readonly RegistryServer[] {
  return insecureServersSchema.safeParse(parseDocument(text)).data ?? [];
}
