/** Whether somebody may have an image of a registry: what the registry itself says to his own credentials. */
import { type Credential, fingerprint, type Keyring } from './registry/credentials.ts';
import type { Registries } from './registry/client.ts';
import type { Reference } from './registry/reference.ts';
import type { Repository } from './registry/types.ts';
import { ImageError } from './store.ts';

/** A secret that was withdrawn opens what is on the host for so long; a fleet's deployments ask the registry no more often. */
const REMEMBERED_MILLISECONDS = 5 * 60_000;
/** The oldest is forgotten, and asked again. */
const REMEMBERED_LIMIT = 4_096;

export interface Opened<T> {
  answer: T;
  repository: Repository;
  /** Undefined: everybody may have it. */
  credential: Credential | undefined;
}

/** Asks a repository with each of the credentials that fit, until one opens it. */
export async function ask<T>(
  registries: Registries,
  { reference, keyring }: { reference: Reference; keyring: Keyring | undefined },
  question: (repository: Repository) => Promise<T>,
): Promise<Opened<T>> {
  let denial: ImageError | undefined;
  for (const credential of credentialsFor(reference, keyring)) {
    const repository = registries.repository(reference, credential);
    try {
      return { answer: await question(repository), repository, credential };
    } catch (error) {
      if (!(error instanceof ImageError) || error.reason !== 'ImageAccessDenied') throw error;
      denial ??= error;
    }
  }
  throw denial ?? new TypeError('nothing was tried, not even to ask without credentials');
}

export class Access {
  readonly #registries: Registries;
  /** By repository and credential: when it was seen to be open, in milliseconds since the process began. */
  readonly #seen = new Map<string, number>();

  constructor(registries: Registries) {
    this.#registries = registries;
  }

  /** As {@link ask}; which credential opened it is remembered. */
  async ask<T>(
    reference: Reference,
    keyring: Keyring | undefined,
    question: (repository: Repository) => Promise<T>,
  ): Promise<Opened<T>> {
    const opened = await ask(this.#registries, { reference, keyring }, question);
    this.#remember(keyOf(reference, opened.credential));
    return opened;
  }

  /** Whether the registry has lately opened the repository to one of the credentials. */
  isKnown(reference: Reference, keyring: Keyring | undefined): boolean {
    const oldest = performance.now() - REMEMBERED_MILLISECONDS;
    return credentialsFor(reference, keyring).some((credential) => {
      return (this.#seen.get(keyOf(reference, credential)) ?? Number.NEGATIVE_INFINITY) > oldest;
    });
  }

  #remember(key: string): void {
    // The map's order is that of the answers.
    this.#seen.delete(key);
    this.#seen.set(key, performance.now());
    for (const oldest of this.#seen.keys()) {
      if (this.#seen.size <= REMEMBERED_LIMIT) return;
      this.#seen.delete(oldest);
    }
  }
}

function credentialsFor(
  { registry, repository }: Reference,
  keyring: Keyring | undefined,
): (Credential | undefined)[] {
  const found = keyring?.candidates(registry, repository) ?? [];
  return found.length === 0 ? [undefined] : found;
}

function keyOf({ registry, repository }: Reference, credential: Credential | undefined): string {
  return `${registry}/${repository} ${fingerprint(credential)}`;
}
