/** The certificate of an HTTPS server, replaced while it runs. */
import { readFile } from 'node:fs/promises';
import type { Server } from 'node:https';
import { createSecureContext } from 'node:tls';
import type { Logger } from 'pino';
import { type Certificate, createKey, type KeyAlgorithm, selfSigned, validityOf } from './certificates.ts';
import { rest } from '../base/time.ts';

/** A new certificate is served at most so long after it is there; reading two small files costs nothing. */
const LOOK_MILLISECONDS = 10_000;
/** A certificate made here. Readers that pin one would have to look once a month or so. */
const SELF_MADE_DAYS = 90;
const DAY_MILLISECONDS = 24 * 60 * 60 * 1000;
/** The share of its life after which a certificate made here is replaced, as kubelet does with its own. */
const RENEW_AFTER = 2 / 3;

/** Asked again and again for the certificate to serve with; what it answers may change. */
export type CertificateProvider = () => Promise<Certificate>;

/** A certificate and key kept in two files, as a mounted Secret has them. RSA and ECDSA alike. */
export function certificateFromFiles(o: { certificateFile: string; keyFile: string }): CertificateProvider {
  return async () => {
    const [certificate, key] = await Promise.all([
      readFile(o.certificateFile, 'utf8'),
      readFile(o.keyFile, 'utf8'),
    ]);
    return { certificate, key };
  };
}

/** A certificate that vouches for itself, made anew when two thirds of its life are over. */
export function selfMadeCertificate(o: {
  commonName: string;
  dnsNames: readonly string[];
  ipAddresses?: readonly string[];
  algorithm?: KeyAlgorithm;
  days?: number;
  /** Milliseconds since 1970. */
  clock?: () => number;
}): CertificateProvider {
  const { days = SELF_MADE_DAYS, clock = Date.now } = o;
  let current: (Certificate & { renewAt: number }) | undefined;
  return async () => {
    if (current === undefined || clock() >= current.renewAt) {
      const key = await createKey(o.algorithm);
      const certificate = await selfSigned({ ...o, key, days });
      const end = validityOf(certificate).notAfter.getTime();
      current = { certificate, key: key.pem, renewAt: end - days * DAY_MILLISECONDS * (1 - RENEW_AFTER) };
    }
    return current;
  };
}

export interface ServeCertificateOptions {
  provider: CertificateProvider;
  logger: Logger;
  signal: AbortSignal;
  lookMilliseconds?: number | undefined;
  /** Told when what is served ends, at the start and after each change. */
  onServed?: (notAfter: Date) => void;
}

/**
 * Serves with what the provider has, from now on and as it changes; connections that are open stay.
 *
 * @throws Error when there is no usable certificate at the start; later a bad one (half-written, say) is logged and the old
 * one stays.
 */
export async function serveCertificate(server: Server, o: ServeCertificateOptions): Promise<void> {
  let current = await o.provider();
  useCertificate(server, current);
  o.onServed?.(validityOf(current.certificate).notAfter);
  void follow();

  async function follow(): Promise<void> {
    while (!o.signal.aborted) {
      await rest(o.lookMilliseconds ?? LOOK_MILLISECONDS, o.signal);
      try {
        current = replaced(await o.provider());
      } catch (error) {
        o.logger.error({ err: error }, 'serving certificate not usable, keeping the old one');
      }
    }
  }

  function replaced(next: Certificate): Certificate {
    if (next.certificate !== current.certificate || next.key !== current.key) {
      useCertificate(server, next);
      const { notAfter } = validityOf(next.certificate);
      o.onServed?.(notAfter);
      o.logger.info({ notAfter }, 'serving certificate replaced');
    }
    return next;
  }
}

/**
 * New connections get this certificate. `clientAuthorities`, in PEM, vouch for the certificates of callers, where the server
 * asks for these.
 *
 * @throws Error when key and certificate do not belong together; the old one stays.
 */
export function useCertificate(
  server: Server,
  { certificate, key }: Certificate,
  clientAuthorities?: Buffer[],
): void {
  const authorities = clientAuthorities === undefined ? {} : { ca: clientAuthorities };
  const context = { cert: certificate, key, minVersion: 'TLSv1.2', ...authorities } as const;
  // Throws when key and certificate do not belong together, before anything is replaced.
  createSecureContext(context);
  server.setSecureContext(context);
}
