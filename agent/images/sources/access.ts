/** Whether somebody may have an image of a registry: what the registry itself says to his own credentials. */
import { LRUCache } from 'lru-cache';
import { type Credential, fingerprint, type Keyring } from '../oci/credentials.ts';
import type { Registries } from '../oci/repository.ts';
import type { Reference } from '../../../api/v1alpha1/reference.ts';
import { type Reason, ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { Repository } from '../oci/types.ts';

/**
 * So long an answer counts, also the one that everybody may have it: a secret that was withdrawn and a repository that was made
 * private open what is on the host no longer. A fleet's deployments ask the registry no more often.
 */
export const REMEMBERED_MILLISECONDS = 5 * 60_000;
/** The oldest is forgotten, and asked again. */
const REMEMBERED_LIMIT = 4_096;

/** How registries answer about what is private to somebody without credentials: some do not admit that it is there. */
const CLOSED: ReadonlySet<Reason> = new Set(['ImageAccessDenied', 'ImageNotFound']);

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
  let denial: ReasonedError | undefined;
  for (const credential of credentialsFor(reference, keyring)) {
    const repository = registries.repository(reference, credential);
    try {
      return { answer: await question(repository), repository, credential };
    } catch (error) {
      if (!(error instanceof ReasonedError) || error.reason !== 'ImageAccessDenied') {
        throw error;
      }
      denial ??= error;
    }
  }
  throw denial ?? new TypeError('nothing was tried, not even to ask without credentials');
}

export class Access {
  readonly #registries: Registries;
  readonly #clock: () => number;
  /** By repository and credential: when it was seen to be open, on the clock. */
  readonly #seen = new LRUCache<string, number>({ max: REMEMBERED_LIMIT });

  /** `clock`: milliseconds since any moment, never going back. */
  constructor(registries: Registries, clock: () => number = () => performance.now()) {
    this.#registries = registries;
    this.#clock = clock;
  }

  /** As {@link ask}; which credential opened it is remembered. */
  async ask<T>(
    reference: Reference,
    keyring: Keyring | undefined,
    question: (repository: Repository) => Promise<T>,
  ): Promise<Opened<T>> {
    const opened = await ask(this.#registries, { reference, keyring }, question);
    this.#seen.set(keyOf(reference, opened.credential), this.#clock());
    return opened;
  }

  /** Whether the registry has lately opened the repository to everybody, or to one of the credentials. */
  isKnown(reference: Reference, keyring?: Keyring): boolean {
    const oldest = this.#clock() - REMEMBERED_MILLISECONDS;
    return [undefined, ...credentialsFor(reference, keyring)].some((credential) => {
      return (this.#seen.peek(keyOf(reference, credential)) ?? Number.NEGATIVE_INFINITY) > oldest;
    });
  }

  /**
   * Whether everybody may still have a manifest of a repository that was open when it was last asked. Only an answer of the
   * registry closes it: while the registry is away, what it said last counts, and it is not asked again at each deployment.
   */
  async isStillOpen(reference: Reference, digest: string, signal: AbortSignal): Promise<boolean> {
    if (this.isKnown(reference)) {
      return true;
    }
    try {
      await this.ask(reference, undefined, (repository) => repository.head(digest, signal));
    } catch (error) {
      if (!(error instanceof ReasonedError)) {
        throw error;
      }
      if (CLOSED.has(error.reason)) {
        return false;
      }
      this.#seen.set(keyOf(reference, undefined), this.#clock());
    }
    return true;
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
