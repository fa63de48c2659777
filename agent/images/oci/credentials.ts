/** Chooses credentials for registries, read from the content of `kubernetes.io/dockerconfigjson` Secrets. */
import { createHmac, randomBytes } from 'node:crypto';
import {
  type Credential,
  type CredentialFault,
  type EntryFault,
  type Key,
  type Place,
  readConfig,
  splitHost,
} from './dockerconfig.ts';
import type { InsecureRoute, InsecureServers } from './route.ts';

/** Largest number of faults that a message lists. */
const LISTED_FAULTS = 4;

/**
 * Credentials for registries. The class also contains the servers to which the agent may send these credentials over an insecure
 * connection.
 */
export class Keyring {
  readonly #keys: readonly Key[];
  readonly #insecure: InsecureServers | undefined;
  readonly #faults: readonly EntryFault[];

  private constructor(
    keys: readonly Key[],
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
function fits(place: Place, registry: string, repository: string): boolean {
  const path = repository.split('/');
  return (
    hostMatches(place, splitHost(registry.toLowerCase())) &&
    place.path.every((segment, index) => segment === path[index])
  );
}

function isGlob(key: Pick<Key, 'host'>): boolean {
  return key.host.includes('*');
}

/**
 * Returns whether the host and port of an entry fit the host and port of a registry. A star in the entry's host matches any text within one
 * label of the registry's host.
 */
function hostMatches(key: Place, asked: { host: string; port: string }): boolean {
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
