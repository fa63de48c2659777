/** Credentials of registries, read from the content of `kubernetes.io/dockerconfigjson` Secrets. */
import { createHmac, randomBytes } from 'node:crypto';
import * as z from 'zod';
import { parseDocument } from '../../../api/v1alpha1/machine.ts';
import { mistakeIn } from './manifests.ts';
import type { InsecureRoute, InsecureServers } from './route.ts';

export type Credential =
  | { type: 'password'; username: string; password: string }
  /** Token that the agent sends only to the registry's token server, which returns access tokens in exchange. */
  | { type: 'identityToken'; token: string }
  /** Token that the agent sends unchanged to the registry. */
  | { type: 'registryToken'; token: string };

const entrySchema = z.object({
  auth: z.string().optional(),
  username: z.string().optional(),
  password: z.string().optional(),
  identitytoken: z.string().optional(),
  registrytoken: z.string().optional(),
});

const configSchema = z.object({ auths: z.record(z.string(), z.unknown()) });

/** Host names that stand for Docker Hub in Docker configuration files. */
const DOCKER_HUB = new Set(['docker.io', 'index.docker.io', 'registry-1.docker.io']);

interface Key {
  host: string;
  port: string;
  /**
   * Segments of the path in the name of a Docker configuration's entry, for example `team` in `registry.example/team`. The credential is
   * valid only for repositories whose path begins with these segments.
   */
  path: string[];
  credential: Credential;
}

/**
 * Credentials for registries. The class also contains the servers to which the agent may send these credentials over an insecure
 * connection.
 */
export class Keyring {
  readonly #keys: readonly Key[];
  readonly #insecure: InsecureServers | undefined;

  private constructor(keys: readonly Key[], insecure: InsecureServers | undefined) {
    this.#keys = keys;
    this.#insecure = insecure;
  }

  /**
   * Reads the contents of `.dockerconfigjson` files. `insecure` names the servers that need not prove their identity. If a file is invalid,
   * the error message gives the number of the file and the mistake, but does not quote any content.
   *
   * @throws Error when a file is invalid.
   */
  static parse(texts: readonly string[], insecure?: InsecureServers): Keyring {
    const keys = texts.flatMap((text, index) => {
      const which =
        texts.length === 1 ? 'The Docker config' : `Docker config ${index + 1} of ${texts.length}`;
      return readConfig(text, which);
    });
    // The sort is stable: if two entries are equally specific, the entry of the earlier file comes first.
    keys.sort((a, b) => b.path.length - a.path.length || Number(isGlob(a)) - Number(isGlob(b)));
    return new Keyring(keys, insecure);
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
    const asked = splitHost(registry.toLowerCase());
    const path = repository.split('/');
    const found = this.#keys.filter(
      (key) => hostMatches(key, asked) && key.path.every((segment, index) => segment === path[index]),
    );
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

function readConfig(text: string, which: string): Key[] {
  // The message does not contain the parser's own error, because that error would quote the configuration, which contains passwords.
  const document = parseDocument(text);
  if (document === undefined) {
    throw new Error(`${which} is not JSON`);
  }
  const result = configSchema.safeParse(document);
  if (!result.success) {
    throw new Error(`${which} ${mistakeIn(result.error)}`);
  }
  return Object.entries(result.data.auths).flatMap(([name, entry], index) => {
    // The message contains the entry's number instead of its name, because people sometimes write passwords into the name.
    const credential = readEntry(entry, `${which}, entry ${index + 1} of auths,`);
    // Docker writes an empty entry if it stores the registry's credentials in another place. Such an entry gives no credential.
    return credential === undefined ? [] : [{ ...readKey(name), credential }];
  });
}

function readEntry(document: unknown, where: string): Credential | undefined {
  const result = entrySchema.safeParse(document);
  if (!result.success) {
    throw new Error(`${where} ${mistakeIn(result.error)}`);
  }
  const entry = result.data;
  if (entry.registrytoken) {
    return { type: 'registryToken', token: entry.registrytoken };
  }
  if (entry.identitytoken) {
    return { type: 'identityToken', token: entry.identitytoken };
  }
  if (entry.auth) {
    return readAuth(entry.auth, where);
  }
  if (entry.username === undefined && entry.password === undefined) {
    return undefined;
  }
  if (!entry.username || entry.password === undefined) {
    throw new Error(`${where} needs both a username and a password`);
  }
  return { type: 'password', username: entry.username, password: entry.password };
}

/**
 * Decodes the base64 of USER:PASSWORD. The text is split at its first colon, because a password can contain colons, but a user name cannot.
 */
function readAuth(auth: string, where: string): Credential {
  const text = Buffer.from(auth, 'base64').toString('utf8');
  const colon = text.indexOf(':');
  if (colon < 1) {
    throw new Error(`${where} has an auth that is not the base64 of USER:PASSWORD`);
  }
  return { type: 'password', username: text.slice(0, colon), password: text.slice(colon + 1) };
}

/**
 * Reads the name of an entry of `auths`: `host`, `host:port` or `host/path`. The function ignores a prefix (`https://`) and a path (`/v1`,
 * `/v2`) that Docker can add.
 */
function readKey(name: string): Omit<Key, 'credential'> {
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

function isGlob(key: Key): boolean {
  return key.host.includes('*');
}

/**
 * Returns whether the host and port of an entry fit the host and port of a registry. A star in the entry's host matches any text within one
 * label of the registry's host.
 */
function hostMatches(key: Key, asked: { host: string; port: string }): boolean {
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
