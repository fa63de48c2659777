/**
 * Reads credentials for registries from Docker configuration files, and chooses the credentials that fit a repository. The files are the
 * content of `kubernetes.io/dockerconfigjson` Secrets, and the `credentialsFile` of registries in the agent's configuration.
 */
import { createHmac, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Logger } from 'pino';
import { parseDocument } from '../../../api/v1alpha1/machine.ts';
import type { Reason } from '../../../api/v1alpha1/reasons.ts';
import { codeOf, isOfSystem } from '../../../base/errors.ts';
import type { RegistryServer } from '../../../api/v1alpha1/registrycredentials.ts';

export type Credential =
  | { type: 'password'; username: string; password: string }
  /** Token that the agent sends only to the registry's token server, which returns access tokens in exchange. */
  | { type: 'identityToken'; token: string }
  /** Token that the agent sends unchanged to the registry. */
  | { type: 'registryToken'; token: string };

/** A part of the configured credentials that cannot be used. It stops no request for which it is not needed. */
export interface CredentialFault {
  /** Reason of an error that this fault may have caused. If it is undefined, the error keeps its own reason. */
  reason: Reason | undefined;
  /** Text that names the Secret or file, and for an entry its number. It never contains any of their content. */
  message: string;
}

/** The fault of an entry, with the part of the entry's name that tells for which images the entry is. */
type EntryFault = CredentialFault & { place?: RegistryPath };

/** Host names that stand for Docker Hub in Docker configuration files. */
const DOCKER_HUB = new Set(['docker.io', 'index.docker.io', 'registry-1.docker.io']);

/** Images for which an entry is. */
export interface RegistryPath {
  host: string;
  port: string;
  /**
   * Segments of the path in the name of a Docker configuration's entry, for example `team` in `registry.example/team`. The credential is
   * valid only for repositories whose path begins with these segments.
   */
  path: string[];
}

export interface RegistryKey extends RegistryPath {
  credential: Credential;
}

/**
 * Reads a Docker configuration. Only the entries themselves count. Other parts, and fields of an entry that give no credential, are not
 * read. Null, an empty text and an absent value mean the same. Messages do not contain the errors of the parsers, because these errors would
 * quote the configuration, which contains passwords.
 */
function readConfig(text: string, which: string, faults: EntryFault[]): RegistryKey[] {
  const reason = 'PullSecretInvalid';
  const document = parseDocument(text);
  if (document === undefined) {
    faults.push({ reason, message: `${which} is not JSON` });
    return [];
  }
  if (!isObject(document)) {
    faults.push({ reason, message: `${which} is not a JSON object` });
    return [];
  }
  const auths = document['auths'] ?? {};
  if (!isObject(auths)) {
    faults.push({ reason, message: `${which} has auths that are not an object` });
    return [];
  }
  const helpers = ['credsStore', 'credHelpers'].filter((field) => !isEmpty(document[field]));
  if (isEmpty(auths) && helpers.length > 0) {
    const message = `${which} has no credentials in auths, and hosts cannot use its ${helpers.join(' and ')}`;
    faults.push({ reason, message });
  }
  return Object.entries(auths).flatMap(([name, entry], index) => {
    const place = readKey(name);
    const credential = readEntry(entry);
    if (typeof credential === 'string') {
      // The message contains the entry's number instead of its name, because people sometimes write passwords into the name.
      faults.push({ reason, place, message: `${which}, entry ${index + 1} of auths, ${credential}` });
      return [];
    }
    // Docker writes an empty entry if it stores the registry's credentials in another place. Such an entry gives no credential.
    return credential === undefined ? [] : [{ ...place, credential }];
  });
}

/** Returns the credential of an entry, undefined if the entry has none, or a text that tells the mistake. */
function readEntry(entry: unknown): Credential | string | undefined {
  if (isEmpty(entry)) {
    return undefined;
  }
  if (!isObject(entry)) {
    return 'is not an object';
  }
  const registryToken = textIn(entry, 'registrytoken');
  if (registryToken !== undefined) {
    return { type: 'registryToken', token: registryToken };
  }
  const identityToken = textIn(entry, 'identitytoken');
  if (identityToken !== undefined) {
    return { type: 'identityToken', token: identityToken };
  }
  return readAuth(textIn(entry, 'auth')) ?? readPassword(entry);
}

/** Reads the fields of an entry whose `auth` gives no credential. The result is as from {@link readEntry}. */
function readPassword(entry: Readonly<Record<string, unknown>>): Credential | string | undefined {
  const username = textIn(entry, 'username');
  const { password } = entry;
  if (username !== undefined && typeof password === 'string') {
    return { type: 'password', username, password };
  }
  const wrong = CREDENTIAL_FIELDS.find((field) => !isEmpty(entry[field]) && typeof entry[field] !== 'string');
  if (wrong !== undefined) {
    return `has a value of ${wrong} that is not a text`;
  }
  if (!isEmpty(entry['auth']) && !EMPTY_AUTHS.has(String(entry['auth']))) {
    return 'has an auth that is not the base64 of USER:PASSWORD';
  }
  return username === undefined && isEmpty(password) ? undefined : 'needs both a username and a password';
}

const CREDENTIAL_FIELDS = ['auth', 'username', 'password', 'identitytoken', 'registrytoken'];
/** The base64 of `:`, which tools write for an empty user name and an empty password. */
const EMPTY_AUTHS: ReadonlySet<string> = new Set(['Og==', 'Og']);

/**
 * Decodes the base64 of USER:PASSWORD. The text is split at its first colon, because a password can contain colons, but a user name cannot.
 * Returns undefined if there is no such text.
 */
function readAuth(auth = ''): Credential | undefined {
  const text = Buffer.from(auth, 'base64').toString('utf8');
  const colon = text.indexOf(':');
  return colon < 1
    ? undefined
    : { type: 'password', username: text.slice(0, colon), password: text.slice(colon + 1) };
}

/** Returns the text in a field of an entry, or undefined if there is none or it is empty. */
function textIn(entry: Readonly<Record<string, unknown>>, field: string): string | undefined {
  const value = entry[field];
  return typeof value === 'string' && value.trim() !== '' ? value : undefined;
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Returns whether a value stands for an absent one: null, an empty text or an empty object. */
function isEmpty(value: unknown): boolean {
  return (
    value === undefined ||
    value === null ||
    (typeof value === 'string' && value.trim() === '') ||
    (isObject(value) && Object.keys(value).length === 0)
  );
}

/**
 * Reads the name of an entry of `auths`: `host`, `host:port` or `host/path`. The function ignores a prefix (`https://`) and a path (`/v1`,
 * `/v2`) that Docker can add.
 */
function readKey(name: string): RegistryPath {
  const [registry = '', ...rest] = name.replace(/^https?:\/\//i, '').split('/');
  const path = rest.filter((segment) => segment !== '');
  if (path[0] === 'v1' || path[0] === 'v2') {
    path.shift();
  }
  return { ...splitHost(registry.toLowerCase()), path };
}

function splitHost(registry: string): { host: string; port: string } {
  const [, host = registry, port = ''] = /^(.*?)(?::(\d+))?$/.exec(registry) ?? [];
  return { host: DOCKER_HUB.has(host) ? 'docker.io' : host, port };
}

/** Largest number of faults that a message lists. */
const LISTED_FAULTS = 4;

/**
 * Credentials for registries. The class also contains the servers to which the agent may send these credentials over an insecure
 * connection.
 */
export class Keyring {
  readonly #keys: readonly RegistryKey[];
  readonly #insecure: InsecureServers | undefined;
  readonly #faults: readonly EntryFault[];

  private constructor(
    keys: readonly RegistryKey[],
    faults: readonly EntryFault[],
    insecure: InsecureServers | undefined,
  ) {
    this.#keys = keys;
    this.#faults = faults;
    this.#insecure = insecure;
  }

  /**
   * Reads the contents of `.dockerconfigjson` files. A file or an entry that cannot be read gives no credentials, but a fault. `insecure`
   * names the servers that need not prove their identity. `known` has the names of the files for messages, and faults of files without
   * content.
   */
  static parse(
    texts: readonly string[],
    insecure?: InsecureServers,
    known: { names?: readonly string[]; faults?: readonly CredentialFault[] } = {},
  ): Keyring {
    const faults: EntryFault[] = [...(known.faults ?? [])];
    const keys = texts.flatMap((text, index) => {
      const numbered =
        texts.length === 1 ? 'The Docker config' : `Docker config ${index + 1} of ${texts.length}`;
      return readConfig(text, known.names?.[index] ?? numbered, faults);
    });
    // The sort is stable: if two entries are equally specific, the entry of the earlier file comes first.
    keys.sort((a, b) => b.path.length - a.path.length || Number(isGlob(a)) - Number(isGlob(b)));
    return new Keyring(keys, faults, insecure);
  }

  /** All faults. */
  get faults(): readonly CredentialFault[] {
    return this.#faults;
  }

  /** Returns the faults that can be the cause if no credential opens this repository. Entries for other repositories are left out. */
  faultsFor(registry: string, repository: string): readonly CredentialFault[] {
    return this.#faults.filter(({ place }) => place === undefined || fits(place, registry, repository));
  }

  /**
   * Returns the scheme and the namespace for an insecure connection to a registry. Returns undefined if the connection to this registry
   * must be secure.
   */
  routeTo(registry: string): InsecureRoute | undefined {
    const { namespace = '', servers = [] } = this.#insecure ?? {};
    const server = servers.find((one) => one.registry === registry);
    return server && { scheme: server.scheme, namespace };
  }

  /**
   * Returns the credentials that fit a repository, the most specific first. Credentials with a longer path come first. If the paths have
   * the same length, credentials for an exact host come before credentials for a pattern of hosts.
   */
  candidates(registry: string, repository: string): Credential[] {
    const found = this.#keys.filter((key) => fits(key, registry, repository));
    const seen = new Set<string>();
    return found.flatMap(({ credential }) => {
      const print = fingerprint(credential);
      if (seen.has(print)) {
        return [];
      }
      seen.add(print);
      return [credential];
    });
  }
}

const fingerprintKey = randomBytes(32);

/**
 * Returns a text by which caches of this process distinguish credentials. The text reveals nothing about the credential, and it changes
 * with each start of the process.
 */
export function fingerprint(credential: Credential | undefined): string {
  if (credential === undefined) {
    return 'anonymous';
  }
  const parts =
    credential.type === 'password'
      ? [credential.type, credential.username, credential.password]
      : [credential.type, credential.token];
  return createHmac('sha256', fingerprintKey).update(JSON.stringify(parts)).digest('hex');
}

/** Returns one line that lists faults, at most {@link LISTED_FAULTS}. */
export function listFaults(faults: readonly CredentialFault[]): string {
  const shown = faults.slice(0, LISTED_FAULTS).map(({ message }) => message);
  const more = faults.length - shown.length;
  return [...shown, ...(more > 0 ? [`${more} more`] : [])].join('; ');
}

/** Returns whether an entry with this name is for a repository. */
function fits(place: RegistryPath, registry: string, repository: string): boolean {
  const path = repository.split('/');
  return (
    hostMatches(place, splitHost(registry.toLowerCase())) &&
    place.path.every((segment, index) => segment === path[index])
  );
}

function isGlob(key: Pick<RegistryKey, 'host'>): boolean {
  return key.host.includes('*');
}

/**
 * Returns whether the host and port of an entry fit the host and port of a registry. A star in the entry's host matches any text within one
 * label of the registry's host.
 */
function hostMatches(key: RegistryPath, asked: { host: string; port: string }): boolean {
  if (key.port !== asked.port) {
    return false;
  }
  if (!isGlob(key)) {
    return key.host === asked.host;
  }
  const patterns = key.host.split('.');
  const labels = asked.host.split('.');
  return (
    patterns.length === labels.length &&
    patterns.every((pattern, index) => labelMatches(pattern, labels[index] ?? ''))
  );
}

/**
 * Returns whether a label of a host name matches a pattern with stars. The function does not use a regular expression, because many stars
 * could make it extremely slow.
 */
function labelMatches(pattern: string, label: string): boolean {
  const [first = '', ...rest] = pattern.split('*');
  const last = rest.pop();
  if (last === undefined) {
    return pattern === label;
  }
  if (!label.startsWith(first) || !label.endsWith(last)) {
    return false;
  }
  let at = first.length;
  for (const part of rest) {
    const found = label.indexOf(part, at);
    if (found < 0) {
      return false;
    }
    at = found + part.length;
  }
  return at <= label.length - last.length;
}

/**
 * Returns the credentials of the files that the settings of registries name. A file that cannot be read gives no credentials for its own
 * registry, and does not stop the use of others.
 */
export function readStorageKeyring(
  registries: readonly { host: string; credentialsFile?: string | undefined }[],
  logger: Logger,
): Keyring {
  const texts: string[] = [];
  const names: string[] = [];
  const faults: CredentialFault[] = [];
  for (const { host, credentialsFile } of registries) {
    if (credentialsFile === undefined) {
      continue;
    }
    const name = `The credentialsFile of ${host} (images.registries)`;
    try {
      texts.push(readFileSync(credentialsFile, 'utf8'));
      names.push(name);
    } catch (error) {
      if (!isOfSystem(error)) {
        throw error;
      }
      faults.push({ reason: undefined, message: `${name} cannot be read: ${codeOf(error)}` });
    }
  }
  const keyring = Keyring.parse(texts, undefined, { names, faults });
  if (keyring.faults.length > 0) {
    logger.warn({ faults: listFaults(keyring.faults) }, 'Credentials of the image storage are not used');
  }
  return keyring;
}

/** An insecure connection: without TLS (`http`), or with TLS but without a check of the certificate (`https`). */
export interface InsecureRoute {
  readonly scheme: RegistryServer['scheme'];
  readonly namespace: string;
}

/** Servers that the Pods of one namespace may reach over an insecure connection. */
interface InsecureServers {
  readonly namespace: string;
  readonly servers: readonly RegistryServer[];
}

/**
 * Returns the prefix for the names and keys of data from a registry. The prefix is `insecure!NAMESPACE/` for an insecure connection, and
 * empty for a secure one. The name of a namespace contains no slash, so two namespaces never share a name or key. No reference can contain
 * `!`, so a reference without the prefix never equals a name with the prefix.
 */
export function scopeOf(route: InsecureRoute | undefined): string {
  return route === undefined ? '' : `insecure!${route.namespace}/`;
}
