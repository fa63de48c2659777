/** Serves a certificate over HTTPS and replaces it while the server runs. */
import { readFile } from 'node:fs/promises';
import type { Server } from 'node:https';
import { createSecureContext } from 'node:tls';
import type { Logger } from 'pino';
import { type Certificate, createKey, type KeyAlgorithm, selfSigned, parseValidity } from './certificate.ts';
import type { CertificateFiles } from '../../base/config.ts';
import { messageOf } from '../../base/errors.ts';
import { rest } from '../../base/time.ts';

/**
 * Interval in milliseconds between two reads of the certificate. It can be short, because a read of two small files costs almost nothing.
 */
const LOOK_MILLISECONDS = 10_000;
/** Validity in days of a certificate that this process creates. The process replaces the certificate after two thirds of this time. */
const SELF_MADE_DAYS = 90;
const DAY_MILLISECONDS = 24 * 60 * 60 * 1000;
/** Part of the validity after which this process replaces a certificate that it made itself. */
const RENEW_AFTER = 2 / 3;

/**
 * Function that returns the certificate to serve. The server calls this function at regular intervals, because the certificate can change.
 */
export type CertificateProvider = () => Promise<Certificate>;

/** Returns a provider that reads a certificate and its key from two files, for example of a mounted Secret. The key can be RSA or ECDSA. */
export function certificateFromFiles(o: { certificateFile: string; keyFile: string }): CertificateProvider {
  return async () => {
    const [certificate, key] = await Promise.all([
      readFile(o.certificateFile, 'utf8'),
      readFile(o.keyFile, 'utf8'),
    ]);
    return { certificate, key };
  };
}

/** Returns a provider that reads the configured files. If no files are configured, returns the result of `selfMade`. */
export function configuredCertificate(
  { certificateFile, keyFile }: CertificateFiles,
  selfMade: () => CertificateProvider,
): CertificateProvider {
  return certificateFile === undefined || keyFile === undefined
    ? selfMade()
    : certificateFromFiles({ certificateFile, keyFile });
}

/**
 * Returns a provider that makes a self-signed certificate. It is valid for `days` days. After two thirds of this time, the provider makes a
 * new one.
 */
export function selfMadeCertificate(o: {
  commonName: string;
  dnsNames: readonly string[];
  ipAddresses?: readonly string[];
  algorithm?: KeyAlgorithm;
  days?: number;
  /** Returns the current time in milliseconds since 1970. */
  clock?: () => number;
}): CertificateProvider {
  const { days = SELF_MADE_DAYS, clock = Date.now } = o;
  let current: (Certificate & { renewAt: number }) | undefined;
  return async () => {
    if (current === undefined || clock() >= current.renewAt) {
      const key = await createKey(o.algorithm);
      const certificate = await selfSigned({ ...o, key, days });
      const end = parseValidity(certificate).notAfter.getTime();
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
  /** Called at the start and after each change. `notAfter` is the time at which the served certificate expires. */
  onServed: (notAfter: Date) => void;
}

/**
 * Serves the provider's certificate and follows its changes. Open connections stay open. If a later certificate is not usable, for example
 * because its file is half written, the server logs this and keeps the old certificate.
 *
 * @throws Error when there is no usable certificate at the start.
 */
export async function serveCertificate(server: Server, o: ServeCertificateOptions): Promise<void> {
  let current = await o.provider();
  useCertificate(server, current);
  o.onServed(parseValidity(current.certificate).notAfter);
  void follow();

  async function follow(): Promise<void> {
    let logged: string | undefined;
    while (!o.signal.aborted) {
      await rest(o.lookMilliseconds ?? LOOK_MILLISECONDS, o.signal);
      try {
        current = replaced(await o.provider());
        logged = undefined;
      } catch (error) {
        // The same error is logged only once, because it stays until a person corrects the certificate.
        if (messageOf(error) !== logged) {
          logged = messageOf(error);
          o.logger.error(
            { err: error },
            'the new certificate of the server is not usable, so the server keeps the old one',
          );
        }
      }
    }
  }

  function replaced(next: Certificate): Certificate {
    if (next.certificate !== current.certificate || next.key !== current.key) {
      useCertificate(server, next);
      const { notAfter } = parseValidity(next.certificate);
      o.onServed(notAfter);
      o.logger.info({ notAfter }, 'serving certificate replaced');
    }
    return next;
  }
}

/**
 * Uses this certificate for new connections. `clientAuthorities` contains CA certificates as PEM. If the server requests certificates of
 * clients, it accepts only certificates that these authorities issued.
 *
 * @throws Error when key and certificate do not belong together. The server then keeps the old certificate.
 */
export function useCertificate(
  server: Server,
  { certificate, key }: Certificate,
  clientAuthorities?: Buffer[],
): void {
  const authorities = clientAuthorities === undefined ? {} : { ca: clientAuthorities };
  const context = { cert: certificate, key, minVersion: 'TLSv1.2', ...authorities } as const;
  // `createSecureContext` throws if key and certificate do not belong together. The call comes before `setSecureContext`, so that the
  // server keeps its old certificate in this case.
  createSecureContext(context);
  server.setSecureContext(context);
}
