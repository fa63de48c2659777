/** Keeps a certificate young: a new one is asked for at 70 to 90 % of the old one's life, as a kubelet does. */
import type { Logger } from 'pino';
import { Backoff } from '../../base/backoff.ts';
import { validityOf } from '../../kube/certificates.ts';
import { pause } from '../../base/time.ts';
import type { Certificate } from './certificate.ts';

/** A kubelet's window; spread, so that hosts that joined together do not renew together. */
const RENEW_FROM_SHARE = 0.7;
const RENEW_SPREAD_SHARE = 0.2;
/** Node's timers hold at most 24.8 days. */
const LONGEST_SLEEP_MILLISECONDS = 24 * 3600 * 1000;
const RETRY_FIRST_MILLISECONDS = 1_000;
/** A refusal is mostly the work of a person, who wants to see the next try within minutes. */
const RETRY_CAP_MILLISECONDS = 60_000;

export interface RotationOptions {
  /** What is in use; undefined when there is none yet, and the first is wanted at once. */
  current: Certificate | undefined;
  /** Asks for the next. */
  request: (signal: AbortSignal) => Promise<Certificate>;
  /** Puts it to use. */
  use: (certificate: Certificate) => Promise<void>;
  logger: Logger;
  signal: AbortSignal;
  now?: () => number;
  random?: () => number;
  sleep?: (milliseconds: number, signal: AbortSignal) => Promise<void>;
}

/** When the next certificate is to be asked for, in milliseconds since the epoch. `random` is between 0 and 1. */
export function renewalTime(certificate: string, random: number): number {
  const { notBefore, notAfter } = validityOf(certificate);
  const life = notAfter.getTime() - notBefore.getTime();
  return notBefore.getTime() + life * (RENEW_FROM_SHARE + RENEW_SPREAD_SHARE * random);
}

/** Runs until the signal aborts; failures are tried again for ever, since an expired certificate cuts the host off. */
export async function keepRenewed(options: RotationOptions): Promise<void> {
  const { logger, signal, now = Date.now, random = Math.random, sleep = pause } = options;
  const backoff = new Backoff({
    firstMilliseconds: RETRY_FIRST_MILLISECONDS,
    capMilliseconds: RETRY_CAP_MILLISECONDS,
  });
  let renewAt = options.current === undefined ? now() : renewalTime(options.current.certificate, random());
  while (!signal.aborted) {
    try {
      for (let left = renewAt - now(); left > 0; left = renewAt - now()) {
        await sleep(Math.min(left, LONGEST_SLEEP_MILLISECONDS), signal);
      }
      const certificate = await options.request(signal);
      await options.use(certificate);
      renewAt = renewalTime(certificate.certificate, random());
      backoff.reset();
      logger.info({ renewAt: new Date(renewAt).toISOString() }, 'certificate renewed');
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      const wait = backoff.next();
      logger.error({ err: error, retryInMilliseconds: wait }, 'certificate not renewed');
      renewAt = now() + wait;
    }
  }
}
