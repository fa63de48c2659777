/** Reads Docker configuration files, which contain the credentials of registries. */
import { parseDocument } from '../../../api/v1alpha1/machine.ts';
import type { Reason } from '../../../api/v1alpha1/reasons.ts';

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
export type EntryFault = CredentialFault & { place?: Place };

/** Host names that stand for Docker Hub in Docker configuration files. */
const DOCKER_HUB = new Set(['docker.io', 'index.docker.io', 'registry-1.docker.io']);

/** Images for which an entry is. */
export interface Place {
  host: string;
  port: string;
  /**
   * Segments of the path in the name of a Docker configuration's entry, for example `team` in `registry.example/team`. The credential is
   * valid only for repositories whose path begins with these segments.
   */
  path: string[];
}

export interface Key extends Place {
  credential: Credential;
}

/**
 * Reads a Docker configuration. Only the entries themselves count. Other parts, and fields of an entry that give no credential, are not
 * read. Null, an empty text and an absent value mean the same. Messages do not contain the errors of the parsers, because these errors would
 * quote the configuration, which contains passwords.
 */
export function readConfig(text: string, which: string, faults: EntryFault[]): Key[] {
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
function readKey(name: string): Place {
  const [registry = '', ...rest] = name.replace(/^https?:\/\//i, '').split('/');
  const path = rest.filter((segment) => segment !== '');
  if (path[0] === 'v1' || path[0] === 'v2') {
    path.shift();
  }
  return { ...splitHost(registry.toLowerCase()), path };
}

export function splitHost(registry: string): { host: string; port: string } {
  const [, host = registry, port = ''] = /^(.*?)(?::(\d+))?$/.exec(registry) ?? [];
  return { host: DOCKER_HUB.has(host) ? 'docker.io' : host, port };
}
