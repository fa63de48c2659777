/** The agent's certificates: how one is asked for (by a CertificateSigningRequest that the operator approves), and where they lie. */
import { createHash, createPublicKey, X509Certificate } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Backoff } from '../../base/backoff.ts';
import { writeWholeSync } from '../../base/files.ts';
import { type Certificate, createKey, createSigningRequest, type Key } from '../../kube/certificates.ts';
import type { KubeClient } from '../../kube/client.ts';
import { CERTIFICATE_SIGNING_REQUESTS, type CertificateSigningRequest } from '../../kube/core.ts';
import { ApiError, isAlreadyExists, isNotFound } from '../../kube/errors.ts';
import { selfMadeCertificate } from '../../kube/servingcertificate.ts';
import { pause } from '../../base/time.ts';

/** Approval takes milliseconds when the operator runs, and for ever when it does not: soon at first, then rarely. */
const LOOK_FIRST_MILLISECONDS = 100;
const LOOK_CAP_MILLISECONDS = 5_000;

/** Hexadecimal digits of the part of a name that tells requests of one host apart. */
const FINGERPRINT_DIGITS = 20;

/** The settings that say who the agent is. */
export interface IdentitySettings {
  nodeName: string;
  /** The address in the serving certificate. */
  address: string;
  dataDirectory: string;
  /** Used as it is. */
  kubeconfig?: string | undefined;
  /** Used to join. */
  bootstrapKubeconfig?: string | undefined;
  /** The lives that are asked for. */
  certificates: { clientSeconds: number; servingSeconds: number };
}

export interface CertificateRequest {
  nodeName: string;
  kind: 'client' | 'serving';
  /** Addresses that a serving certificate is for; a client certificate has none. */
  ipAddresses: readonly string[];
  expirationSeconds: number;
  /**
   * A new one when absent. With the key of an earlier try the request of that try is taken up again, if it is still there:
   * a second one for the same name would be denied.
   */
  key?: Key;
}

/** The request was denied, or could not be signed: asking again brings the same answer until a person acts. */
class CertificateRefusedError extends Error {
  override readonly name = 'CertificateRefusedError';
}

/** A stand-in until the operator has approved a serving certificate; another one with every start of the agent. */
const SELF_SIGNED_DAYS = 365;

const SIGNERS = {
  client: { name: 'kubernetes.io/kube-apiserver-client-kubelet', usage: 'client auth' },
  serving: { name: 'kubernetes.io/kubelet-serving', usage: 'server auth' },
} as const;

/** The user name of a Node's identity. */
export function nodeUser(nodeName: string): string {
  return `system:node:${nodeName}`;
}

/**
 * Makes a key, asks for its certificate and waits, for as long as it takes, until somebody approves or denies it.
 *
 * @throws CertificateRefusedError with the reason that stands in the request.
 */
export async function requestCertificate(
  client: KubeClient,
  request: CertificateRequest,
  signal: AbortSignal,
): Promise<Certificate> {
  const key = request.key ?? (await createKey('ECDSA'));
  for (;;) {
    const name = await submit(client, request, key, signal);
    const certificate = await waitForCertificate(client, name, signal);
    if (certificate !== undefined) {
      return { certificate, key: key.pem };
    }
  }
}

async function submit(
  client: KubeClient,
  request: CertificateRequest,
  key: Key,
  signal: AbortSignal,
): Promise<string> {
  const pem = await createSigningRequest({
    key,
    commonName: nodeUser(request.nodeName),
    organizations: ['system:nodes'],
    ipAddresses: request.ipAddresses,
  });
  const signer = SIGNERS[request.kind];
  const name = `berth-${request.kind}-${request.nodeName}-${fingerprint(key)}`;
  try {
    const created = await client.create(
      CERTIFICATE_SIGNING_REQUESTS,
      {
        metadata: { name },
        spec: {
          request: Buffer.from(pem).toString('base64'),
          signerName: signer.name,
          usages: ['digital signature', signer.usage],
          expirationSeconds: request.expirationSeconds,
        },
      },
      { signal },
    );
    return created.metadata.name;
  } catch (error) {
    // Made with this key by an earlier try, whose answer did not arrive.
    if (!isAlreadyExists(error)) {
      throw error;
    }
    return name;
  }
}

/** Names the key, as a kubelet names its requests: the same key never asks twice. */
function fingerprint(key: Key): string {
  const publicKey = createPublicKey(key.pem).export({ type: 'spki', format: 'der' });
  return createHash('sha256').update(publicKey).digest('hex').slice(0, FINGERPRINT_DIGITS);
}

/** Undefined when the request vanished: the control plane removes what nobody decided within a day. */
async function waitForCertificate(
  client: KubeClient,
  name: string,
  signal: AbortSignal,
): Promise<string | undefined> {
  const backoff = new Backoff({
    firstMilliseconds: LOOK_FIRST_MILLISECONDS,
    capMilliseconds: LOOK_CAP_MILLISECONDS,
  });
  for (;;) {
    try {
      const issued = outcome(await client.get(CERTIFICATE_SIGNING_REQUESTS, { name }, { signal }));
      if (issued !== undefined) {
        return issued;
      }
    } catch (error) {
      if (isNotFound(error)) {
        return undefined;
      }
      if (isFinal(error) || signal.aborted) {
        throw error;
      }
    }
    await pause(backoff.next(), signal);
  }
}

/** Not the API server's being away for a while, in which somebody may well decide. */
export function isFinal(error: unknown): boolean {
  const refused = error instanceof ApiError && error.status < 500;
  return refused || error instanceof CertificateRefusedError;
}

function outcome(request: CertificateSigningRequest): string | undefined {
  const refusal = request.status?.conditions?.find(({ type }) => type === 'Denied' || type === 'Failed');
  if (refusal !== undefined) {
    const why = [refusal.reason, refusal.message]
      .filter((text) => text !== undefined && text !== '')
      .join(': ');
    throw new CertificateRefusedError(
      `certificate request ${request.metadata.name} was ${refusal.type === 'Denied' ? 'denied' : 'not signed'}: ${why}`,
    );
  }
  const certificate = request.status?.certificate;
  return certificate === undefined || certificate === ''
    ? undefined
    : Buffer.from(certificate, 'base64').toString('utf8');
}

/** Where a node's identity lies: certificate and key in one file, so that both are replaced at once. */
export function identityFiles(dataDirectory: string): {
  kubeconfig: string;
  client: string;
  serving: string;
  /** The key that the host asks to join with, until it has. */
  joining: string;
} {
  return {
    kubeconfig: path.join(dataDirectory, 'kubeconfig'),
    client: path.join(dataDirectory, 'pki', 'client.pem'),
    serving: path.join(dataDirectory, 'pki', 'serving.pem'),
    joining: path.join(dataDirectory, 'pki', 'joining.pem'),
  };
}

/** A certificate and its key from one file; undefined when there is none. */
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

/** Whether a certificate is this Node's and still valid. */
export function isUsable(pair: Certificate | undefined, nodeName: string): boolean {
  if (pair === undefined) {
    return false;
  }
  const { subject, validTo } = new X509Certificate(pair.certificate);
  return subject.split('\n').includes(`CN=${nodeUser(nodeName)}`) && Date.parse(validTo) > Date.now();
}

/** The approved one from an earlier start, else one that vouches for itself. */
export async function servingCertificate(
  config: Pick<IdentitySettings, 'dataDirectory' | 'nodeName' | 'address'>,
): Promise<Certificate> {
  const stored = readPair(identityFiles(config.dataDirectory).serving);
  if (stored !== undefined && isUsable(stored, config.nodeName)) {
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

/** Its folder is the agent's alone. */
export function writeSecretFile(file: string, text: string): void {
  mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  writeWholeSync(file, text);
}
