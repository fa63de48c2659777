/** Checks whether a requester may have an image of a registry. The registry's answer to the requester's own credentials decides. */
import { LRUCache } from 'lru-cache';
import { type Credential, fingerprint, type Keyring } from '../oci/credentials.ts';
import type { Registries } from '../oci/repository.ts';
import type { Reference } from '../../../api/v1alpha1/reference.ts';
import { type Reason, ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { Repository } from '../oci/types.ts';

/**
 * Time in milliseconds for which a registry's answer is used, also the answer that everybody may have an image. Afterwards,
 * withdrawn Secrets and repositories that became private no longer open images on this host. Within this time, deployments of
 * a fleet do not repeat the request.
 */
export const REMEMBERED_MILLISECONDS = 5 * 60_000;
/** Limit of the answers that are remembered. The oldest answer is forgotten and requested again. */
const REMEMBERED_LIMIT = 4_096;

/**
 * Reasons with which registries refuse a private image to requests without credentials. Some registries do not admit that the
 * image exists.
 */
const CLOSED: ReadonlySet<Reason> = new Set(['ImageAccessDenied', 'ImageNotFound']);

export interface Opened<T> {
  answer: T;
  repository: Repository;
  /** Credential that opened the repository; undefined when everybody may have the image. */
  credential: Credential | undefined;
}

/**
 * Runs `question` with each of the credentials that fit, until the repository accepts one.
 *
 * @throws ReasonedError when it accepts none.
 */
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
  throw denial ?? new TypeError('No credential was tried');
}

export class Access {
  readonly #registries: Registries;
  readonly #clock: () => number;
  /** Times of the clock at which a repository opened, by repository and credential. */
  readonly #seen = new LRUCache<string, number>({ max: REMEMBERED_LIMIT });

  /** `clock` returns milliseconds since an arbitrary moment, and never goes back. */
  constructor(registries: Registries, clock: () => number = () => performance.now()) {
    this.#registries = registries;
    this.#clock = clock;
  }

  /** Does the same as {@link ask}, and remembers which credential opened the repository. */
  async ask<T>(
    reference: Reference,
    keyring: Keyring | undefined,
    question: (repository: Repository) => Promise<T>,
  ): Promise<Opened<T>> {
    const opened = await ask(this.#registries, { reference, keyring }, question);
    this.#seen.set(keyOf(reference, opened.credential), this.#clock());
    return opened;
  }

  /** Returns whether the registry has recently opened the repository to everybody, or to one of the credentials. */
  isKnown(reference: Reference, keyring?: Keyring): boolean {
    const oldest = this.#clock() - REMEMBERED_MILLISECONDS;
    return [undefined, ...credentialsFor(reference, keyring)].some((credential) => {
      return (this.#seen.peek(keyOf(reference, credential)) ?? Number.NEGATIVE_INFINITY) > oldest;
    });
  }

  /**
   * Returns whether everybody may still have a manifest of a repository that was open at the last check. Only an answer of the
   * registry closes the repository. While the registry cannot be reached, its last answer is used, and deployments do not
   * repeat the request.
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
