/** The agent's certificates: their requests and their files. The operator approves each CertificateSigningRequest. */
import { createHash, createPublicKey, X509Certificate } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Backoff } from '../../base/backoff.ts';
import { writeWholeSync } from '../../base/files.ts';
import {
  type Certificate,
  createKey,
  createSigningRequest,
  type PrivateKey,
} from '../../kube/certificates/certificate.ts';
import type { KubeClient } from '../../kube/client.ts';
import { CERTIFICATE_SIGNING_REQUESTS, type CertificateSigningRequest } from '../../kube/core.ts';
import { isAlreadyExists, isNotFound, isRefusal } from '../../kube/errors.ts';
import { Patience } from '../../kube/patience.ts';
import { selfMadeCertificate } from '../../kube/certificates/serving.ts';
import { pause } from '../../base/time.ts';

/**
 * Time between the first two checks of a certificate request, in milliseconds. This time is short, because a running operator approves the
 * request soon. If the operator is absent, the times between later checks become longer, up to {@link LOOK_CAP_MILLISECONDS}.
 */
const LOOK_FIRST_MILLISECONDS = 100;
const LOOK_CAP_MILLISECONDS = 5_000;

/** Number of hexadecimal digits in a request's name that distinguish the requests of one host. */
const FINGERPRINT_DIGITS = 20;

/** The settings that determine the agent's identity. */
export interface IdentitySettings {
  nodeName: string;
  /** Address in the serving certificate. */
  address: string;
  dataDirectory: string;
  /** Kubeconfig that the agent uses unchanged. */
  kubeconfig?: string | undefined;
  /** Kubeconfig with which the agent joins. */
  bootstrapKubeconfig?: string | undefined;
  /** Lifetimes of the certificates that the agent requests, in seconds. */
  certificates: { clientSeconds: number; servingSeconds: number; servingSigner?: string | undefined };
}

export interface CertificateRequest {
  nodeName: string;
  kind: 'client' | 'serving';
  /** Signer of the certificate. The default is the signer of Kubernetes for the certificates of kubelets. */
  signerName?: string | undefined;
  /** Addresses in a serving certificate. A client certificate has no addresses. */
  ipAddresses: readonly string[];
  expirationSeconds: number;
  /** Called with a sentence about the obstacle while the request waits for its approval or for a signer. */
  tell?: (sentence: string) => void;
  /**
   * Key of the certificate. The default is a new key. If an earlier attempt made a request with this key, and the request still exists, the
   * agent waits for that request. The agent must not make a second request, because the operator denies a second request for the same host.
   */
  key?: PrivateKey;
}

/** Error for a certificate request that was denied or could not be signed. A new request would fail in the same way until a person acts. */
export class CertificateRefusedError extends Error {
  override readonly name = 'CertificateRefusedError';
}

/**
 * Lifetime of the self-signed certificate, in days. The agent makes this certificate at each start, and uses it until a serving certificate
 * is approved.
 */
const SELF_SIGNED_DAYS = 365;

const SIGNERS = {
  client: { name: 'kubernetes.io/kube-apiserver-client-kubelet', usage: 'client auth' },
  serving: { name: 'kubernetes.io/kubelet-serving', usage: 'server auth' },
} as const;

/** Returns the user name of a Node's identity. */
export function nodeUser(nodeName: string): string {
  return `system:node:${nodeName}`;
}

/** Returns the name of the Node to which a certificate belongs. The result is undefined if it belongs to no Node. */
function nodeNameIn({ subject }: Pick<X509Certificate, 'subject'>): string | undefined {
  return /^CN=system:node:(.+)$/m.exec(subject)?.[1];
}

/**
 * Makes a key, requests a certificate for it, and waits without a time limit until somebody approves or denies the request.
 *
 * @throws CertificateRefusedError when the request is denied or cannot be signed; the message contains the reason from the request's
 * status. ApiError when the API server refuses to create the request, or refuses for more than 20 s to let the agent read the request.
 */
export async function requestCertificate(
  client: KubeClient,
  request: CertificateRequest,
  signal: AbortSignal,
): Promise<Certificate> {
  const key = request.key ?? (await createKey('ECDSA'));
  for (;;) {
    const name = await submit(client, request, key, signal);
    const certificate = await waitForCertificate(client, name, { request, signal });
    if (certificate !== undefined) {
      return { certificate, key: key.pem };
    }
  }
}

function signerOf({ kind, signerName }: CertificateRequest): string {
  return signerName ?? SIGNERS[kind].name;
}

async function submit(
  client: KubeClient,
  request: CertificateRequest,
  key: PrivateKey,
  signal: AbortSignal,
): Promise<string> {
  const pem = await createSigningRequest({
    key,
    commonName: nodeUser(request.nodeName),
    organizations: ['system:nodes'],
    ipAddresses: request.ipAddresses,
  });
  const name = `berth-${request.kind}-${request.nodeName}-${fingerprint(key)}`;
  try {
    const created = await client.create(
      CERTIFICATE_SIGNING_REQUESTS,
      {
        metadata: { name },
        spec: {
          request: Buffer.from(pem).toString('base64'),
          signerName: signerOf(request),
          usages: ['digital signature', SIGNERS[request.kind].usage],
          expirationSeconds: request.expirationSeconds,
        },
      },
      { signal },
    );
    return created.metadata.name;
  } catch (error) {
    // If the request already exists, an earlier attempt made it with this key, but did not get the answer. The agent then waits for that
    // request.
    if (!isAlreadyExists(error)) {
      throw error;
    }
    return name;
  }
}

/**
 * Returns the part of a certificate request's name that identifies the key. With this part in the name, the cluster never has two requests
 * for the same key. A kubelet names its requests in the same way.
 */
function fingerprint(key: PrivateKey): string {
  const publicKey = createPublicKey(key.pem).export({ type: 'spki', format: 'der' });
  return createHash('sha256').update(publicKey).digest('hex').slice(0, FINGERPRINT_DIGITS);
}

/**
 * Waits for a request's certificate. Returns undefined if the request no longer exists. The cluster deletes a request after a day if nobody
 * has decided on it.
 */
async function waitForCertificate(
  client: KubeClient,
  name: string,
  { request, signal }: { request: CertificateRequest; signal: AbortSignal },
): Promise<string | undefined> {
  const obstacle = new Obstacle(signerOf(request), request.tell);
  const backoff = new Backoff({
    firstMilliseconds: LOOK_FIRST_MILLISECONDS,
    capMilliseconds: LOOK_CAP_MILLISECONDS,
  });
  const patience = new Patience();
  for (;;) {
    try {
      const stored = await client.get(CERTIFICATE_SIGNING_REQUESTS, { name }, { signal });
      const issued = outcome(stored);
      patience.reset();
      if (issued !== undefined) {
        return issued;
      }
      obstacle.seen(stored);
    } catch (error) {
      if (isNotFound(error)) {
        return undefined;
      }
      if (error instanceof CertificateRefusedError || patience.endsWith(error) || signal.aborted) {
        throw error;
      }
    }
    await pause(backoff.next(), signal);
  }
}

/**
 * Reports whether the error of a certificate request is final, so that a new attempt cannot succeed before a person acts. An error is not
 * final if the API server cannot be reached or is too busy, because the request can still be approved.
 */
export function isFinal(error: unknown): boolean {
  return isRefusal(error) || error instanceof CertificateRefusedError;
}

function outcome(request: CertificateSigningRequest): string | undefined {
  const refusal = request.status?.conditions?.find(({ type }) => type === 'Denied' || type === 'Failed');
  if (refusal !== undefined) {
    const why = [refusal.reason, refusal.message]
      .filter((text) => text !== undefined && text !== '')
      .join(': ');
    throw new CertificateRefusedError(
      `The certificate request ${request.metadata.name} was ${refusal.type === 'Denied' ? 'denied' : 'not signed'}: ${why}`,
    );
  }
  const certificate = request.status?.certificate;
  return certificate === undefined || certificate === ''
    ? undefined
    : Buffer.from(certificate, 'base64').toString('utf8');
}

/** Returns the paths of the files with a node's identity. A certificate shares one file with its key, so that both change at once. */
export function identityFiles(dataDirectory: string) {
  return {
    kubeconfig: path.join(dataDirectory, 'kubeconfig'),
    client: path.join(dataDirectory, 'pki', 'client.pem'),
    serving: path.join(dataDirectory, 'pki', 'serving.pem'),
    /** File with the key of the request to join. The file exists until the host has joined. */
    joining: path.join(dataDirectory, 'pki', 'joining.pem'),
  };
}

/** Returns a certificate and its key from one file. The result is undefined if the file does not exist or has no key. */
export function readPair(file: string): Certificate | undefined {
  if (!existsSync(file)) {
    return undefined;
  }
  const text = readFileSync(file, 'utf8');
  const keyAt = text.search(/-----BEGIN [A-Z ]*PRIVATE KEY-----/);
  return keyAt < 0 ? undefined : { certificate: text.slice(0, keyAt), key: text.slice(keyAt) };
}

export function writePair(file: string, pair: Certificate): void {
  writeSecretFile(file, `${pair.certificate.trimEnd()}\n${pair.key.trimEnd()}\n`);
}

/**
 * Reports whether a certificate belongs to this Node and is still valid. `address` is the IP address that a serving certificate must have.
 * For a client certificate, `address` is undefined, because a client certificate has no addresses.
 *
 * @throws Error when the text of the certificate is not a certificate.
 */
export function isUsable(pair: Certificate | undefined, nodeName: string, address?: string): boolean {
  if (pair === undefined) {
    return false;
  }
  const certificate = new X509Certificate(pair.certificate);
  const isOwn = nodeNameIn(certificate) === nodeName;
  const isForAddress = address === undefined || certificate.checkIP(address) !== undefined;
  return isOwn && isForAddress && Date.parse(certificate.validTo) > Date.now();
}

/** Returns the approved certificate of an earlier start if it is valid for the configured address; otherwise a self-signed certificate. */
export async function servingCertificate(
  config: Pick<IdentitySettings, 'dataDirectory' | 'nodeName' | 'address'>,
): Promise<Certificate> {
  const stored = readPair(identityFiles(config.dataDirectory).serving);
  if (stored !== undefined && isUsable(stored, config.nodeName, config.address)) {
    return stored;
  }
  const make = selfMadeCertificate({
    algorithm: 'ECDSA',
    commonName: config.nodeName,
    dnsNames: [],
    ipAddresses: [config.address],
    days: SELF_SIGNED_DAYS,
  });
  return await make();
}

/** Writes a file in a folder that only the agent can access. */
export function writeSecretFile(file: string, text: string): void {
  mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  writeWholeSync(file, text);
}

/**
 * Time after which the agent tells why it waits for a certificate, in milliseconds, and the time after which it tells the same again. A
 * running operator and a signer answer within a second.
 */
const TELL_MILLISECONDS = 3_000;
const TELL_AGAIN_MILLISECONDS = 10 * 60_000;

/** Tells why a request has no certificate yet. */
class Obstacle {
  readonly #signerName: string;
  readonly #tell: ((sentence: string) => void) | undefined;
  #tellAt = performance.now() + TELL_MILLISECONDS;
  #reported = '';

  /** @param tell is called with each sentence */
  constructor(signerName: string, tell: ((sentence: string) => void) | undefined) {
    this.#signerName = signerName;
    this.#tell = tell;
  }

  /** Looks at the request, which has no certificate. */
  seen({ metadata: { name }, status }: CertificateSigningRequest): void {
    const isApproved = status?.conditions?.some(({ type }) => type === 'Approved') === true;
    const sentence = isApproved
      ? `The certificate request ${name} is approved, but no signer issues the certificate. The cluster needs a signer for ${this.#signerName}`
      : `The certificate request ${name} waits for its approval. See the log of the operator, which approves the requests of hosts`;
    const now = performance.now();
    const isDue = now >= this.#tellAt || (this.#reported !== '' && this.#reported !== sentence);
    if (isDue) {
      this.#tell?.(sentence);
      this.#reported = sentence;
      this.#tellAt = now + TELL_AGAIN_MILLISECONDS;
    }
  }
}
