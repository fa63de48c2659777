/** Tells people why a certificate request of this host has no certificate yet. */
import type { CertificateSigningRequest } from '../../kube/core.ts';

/**
 * Time after which the agent tells why it waits for a certificate, in milliseconds, and the time after which it tells the same again. A
 * running operator and a signer answer within a second.
 */
const TELL_MILLISECONDS = 3_000;
const TELL_AGAIN_MILLISECONDS = 10 * 60_000;

/** Tells why a request has no certificate yet. */
export class Obstacle {
  readonly #signerName: string;
  readonly #tell: ((words: string) => void) | undefined;
  #tellAt = performance.now() + TELL_MILLISECONDS;
  #told = '';

  /** @param tell is called with each sentence */
  constructor(signerName: string, tell: ((words: string) => void) | undefined) {
    this.#signerName = signerName;
    this.#tell = tell;
  }

  /** Looks at the request, which has no certificate. */
  seen({ metadata: { name }, status }: CertificateSigningRequest): void {
    const isApproved = status?.conditions?.some(({ type }) => type === 'Approved') === true;
    const words = isApproved
      ? `The certificate request ${name} is approved, but no signer issues the certificate. The cluster needs a signer for ${this.#signerName}`
      : `The certificate request ${name} waits for its approval. See the log of the operator, which approves the requests of hosts`;
    const now = performance.now();
    const isDue = now >= this.#tellAt || (this.#told !== '' && this.#told !== words);
    if (isDue) {
      this.#tell?.(words);
      this.#told = words;
      this.#tellAt = now + TELL_AGAIN_MILLISECONDS;
    }
  }
}
