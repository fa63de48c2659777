/**
 * Checks whether a requester has the right to use an image from a registry. The agent sends a request with the requester's own credentials,
 * and the registry's answer decides.
 */
import { LRUCache } from 'lru-cache';
import {
  type Credential,
  type CredentialFault,
  fingerprint,
  type Keyring,
  listFaults,
  scopeOf,
} from './credentials.ts';
import type { Registries, Repository } from './repository.ts';
import type { Reference } from '../../../api/v1alpha1/reference.ts';
import { type Reason, ReasonedError } from '../../../api/v1alpha1/reasons.ts';

/**
 * Time in milliseconds for which the agent relies on a registry's permission without a new request. Within this time, further deployments
 * from the same repository send no request. After this time, the agent asks the registry again. The answer shows whether the credentials
 * were revoked or the repository became private in the meantime.
 */
export const REMEMBERED_MILLISECONDS = 5 * 60_000;
/**
 * Time limit in milliseconds for a registry's answer to {@link Access.isStillOpen}, with all tries. A registry that restarts usually
 * answers within this time. Without the limit, a registry that accepts connections but never answers would delay a VM by 12 minutes.
 */
const ANSWER_TIMEOUT_MILLISECONDS = 15_000;
/** The agent remembers at most this number of permissions, and forgets the oldest first. It must request a forgotten permission again. */
const REMEMBERED_LIMIT = 4_096;

/**
 * Reasons of the errors that a request for a private image can cause if its credentials are missing or not sufficient. `ImageNotFound` is
 * among them, because some registries answer that a private image does not exist.
 */
const CLOSED: ReadonlySet<Reason> = new Set(['ImageAccessDenied', 'ImageNotFound']);

interface Opened<T> {
  answer: T;
  repository: Repository;
  /** Credential that the repository accepted. Undefined when everybody has the right to use the image. */
  credential: Credential | undefined;
}

/**
 * Calls `question` with one fitting credential after another, until the repository accepts a credential. At last, calls `question` without
 * a credential, because everybody may use a public image, even if the given credentials are wrong.
 *
 * @throws ReasonedError when the repository denies access or finds no image in all calls, or when a call fails for another reason. If
 * credentials were skipped that might open the repository, the message lists them, and the reason is that of the first.
 */
export async function ask<T>(
  registries: Registries,
  { reference, keyring }: { reference: Reference; keyring: Keyring | undefined },
  question: (repository: Repository) => Promise<T>,
): Promise<Opened<T>> {
  const refusals: Refusal[] = [];
  for (const credential of [...credentialsFor(reference, keyring), undefined]) {
    const repository = registries.repository(reference, credential, keyring?.routeTo(reference.registry));
    try {
      return { answer: await question(repository), repository, credential };
    } catch (error) {
      if (!(error instanceof ReasonedError) || !CLOSED.has(error.reason)) {
        throw error;
      }
      refusals.push({ error, credential });
    }
  }
  const faults = keyring?.faultsFor(reference.registry, reference.repository) ?? [];
  throw refusalWith(refusals, faults);
}

interface Refusal {
  error: ReasonedError;
  credential: Credential | undefined;
}

/** Returns the refusal that says most, with the credentials that were skipped. */
function refusalWith(refusals: readonly Refusal[], faults: readonly CredentialFault[]): Error {
  // The refusal without a credential only counts if there was no credential: registries hide private images from everybody else.
  const withCredential = refusals.filter(({ credential }) => credential !== undefined);
  // If a registry denies access to some credentials, the others usually have access, and then their answer says more.
  const notFound = withCredential.find(({ error }) => error.reason === 'ImageNotFound');
  const { error } = notFound ?? refusals[0] ?? {};
  if (error === undefined) {
    return new TypeError('No request was sent');
  }
  if (faults.length === 0) {
    return error;
  }
  const reason =
    notFound === undefined ? faults.find((fault) => fault.reason !== undefined)?.reason : undefined;
  const message = `${error.message}. Credentials were skipped: ${listFaults(faults)}`;
  return new ReasonedError(reason ?? error.reason, message, { cause: error });
}

export class Access {
  readonly #registries: Registries;
  readonly #clock: () => number;
  /** Times at which registries gave permissions, as `#clock` returned them. The key contains the repository and the credential. */
  readonly #seen = new LRUCache<string, number>({ max: REMEMBERED_LIMIT });
  /**
   * Times at which registries gave no answer to {@link isStillOpen}. The key contains the repository and the digest. These times are apart
   * from the permissions, because a failure must not give access to other images of the repository.
   */
  readonly #unanswered = new LRUCache<string, number>({ max: REMEMBERED_LIMIT });

  /** `clock` returns milliseconds since an arbitrary moment, and never goes back. */
  constructor(registries: Registries, clock: () => number = () => performance.now()) {
    this.#registries = registries;
    this.#clock = clock;
  }

  /** Does the same as {@link ask}, and remembers which credential the repository accepted. */
  async ask<T>(
    reference: Reference,
    keyring: Keyring | undefined,
    question: (repository: Repository) => Promise<T>,
  ): Promise<Opened<T>> {
    const opened = await ask(this.#registries, { reference, keyring }, question);
    this.#seen.set(keyOf(reference, opened.credential, keyring), this.#clock());
    return opened;
  }

  /**
   * Returns whether the registry has recently given access to the repository. The access can be for everybody, or for one of the
   * credentials in `keyring`.
   */
  isKnown(reference: Reference, keyring?: Keyring): boolean {
    return [undefined, ...credentialsFor(reference, keyring)].some((credential) => {
      return this.#isRecent(this.#seen.peek(keyOf(reference, credential, keyring)));
    });
  }

  /**
   * Returns whether everybody still has the right to read a manifest. Call this function only for repositories that everybody could read at
   * the last check. The result is false only if the registry refuses access. If the registry cannot be reached or does not answer in time,
   * the function relies on the registry's previous answer. The agent sends the next request no sooner than
   * {@link REMEMBERED_MILLISECONDS} after such a failure.
   */
  async isStillOpen(reference: Reference, digest: string, signal: AbortSignal): Promise<boolean> {
    const unanswered = `${keyOf(reference, undefined)} ${digest}`;
    if (this.isKnown(reference) || this.#isRecent(this.#unanswered.peek(unanswered))) {
      return true;
    }
    const late = AbortSignal.timeout(ANSWER_TIMEOUT_MILLISECONDS);
    const either = AbortSignal.any([signal, late]);
    try {
      await this.ask(reference, undefined, (repository) => repository.head(digest, either));
    } catch (error) {
      signal.throwIfAborted();
      if (!(error instanceof ReasonedError || late.aborted)) {
        throw error;
      }
      if (error instanceof ReasonedError && CLOSED.has(error.reason)) {
        return false;
      }
      this.#unanswered.set(unanswered, this.#clock());
    }
    return true;
  }

  #isRecent(time = Number.NEGATIVE_INFINITY): boolean {
    return time > this.#clock() - REMEMBERED_MILLISECONDS;
  }
}

function credentialsFor({ registry, repository }: Reference, keyring: Keyring | undefined): Credential[] {
  return keyring?.candidates(registry, repository) ?? [];
}

/**
 * Returns the key under which a permission is remembered. For an insecure connection, the key contains the namespace. The registry did not
 * prove its identity, so other namespaces must not rely on its answer.
 */
function keyOf(
  { registry, repository }: Reference,
  credential: Credential | undefined,
  keyring?: Keyring,
): string {
  return `${scopeOf(keyring?.routeTo(registry))}${registry}/${repository} ${fingerprint(credential)}`;
}
