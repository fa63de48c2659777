/** Sends requests to servers other than the API server: to the HTTP API before the sign-in, and to identity providers. */
import { getCACertificates } from 'node:tls';
import { codeOf, messageOf } from '../../base/errors.ts';
import { type Fetch, fetchWithLimits } from '../../base/fetch.ts';
import type { ProxyEnvironment } from '../../base/proxy.ts';
import { certificateMistake, CommandError, EXIT } from '../errors.ts';
import { proxyFor } from '../proxy.ts';

/** Time limit of one request and its answer. It is short, because people wait for the answer. */
export const ANSWER_MILLISECONDS = 20_000;

export interface FetchOptions {
  /** Name of the server in messages, for example `identity provider`. */
  readonly who: string;
  /** Private certificate authority as PEM. The authorities of the system and of Node.js are trusted, too. */
  readonly authority?: string | undefined;
  readonly signal: AbortSignal;
  /** Variables of the command. They can name a proxy. */
  readonly environment: ProxyEnvironment;
}

/**
 * Returns a function that sends a request. The time and the size of the answer are limited, and redirects are not followed. When the server
 * does not answer, the function throws a CommandError. When `signal` aborts, the function throws the signal's reason.
 */
export function fetchFrom({ who, authority, signal, environment }: FetchOptions): Fetch {
  const own = authority === undefined ? [] : [authority];
  const ca = [...getCACertificates('default'), ...getCACertificates('system'), ...own];
  return async (url, options) => {
    const limits = AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MILLISECONDS)]);
    const proxy = proxyFor(url, environment);
    try {
      return await fetchWithLimits(url, options, { ca, proxy, signal: limits });
    } catch (error) {
      signal.throwIfAborted();
      throw unreachable(`${who} ${new URL(url).origin}`, limits.aborted ? limits.reason : error);
    }
  };
}

function unreachable(server: string, error: unknown): CommandError {
  const message = messageOf(error) || (codeOf(error) ?? '');
  const mistake = certificateMistake(error);
  return mistake !== undefined
    ? new CommandError(
        `The certificate of the ${server} is not trusted: ${mistake}. Give the certificate of its authority with --certificate-authority`,
      )
    : new CommandError(
        `The ${server} does not answer: ${message}. Check the address and the network`,
        EXIT.noAnswer,
      );
}
