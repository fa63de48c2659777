/** Requests to servers that are not the API server: the HTTP API before sign-in, and identity providers. */
import { once } from 'node:events';
import type { IncomingMessage, OutgoingHttpHeaders } from 'node:http';
import { getCACertificates } from 'node:tls';
import { codeOf, messageOf } from '../../base/errors.ts';
import { certificateMistake, CommandError, EXIT } from '../errors.ts';

/** Time limit of one request and its answer. People wait for it. */
export const ANSWER_MILLISECONDS = 20_000;
/** Largest answer in bytes. Keys and metadata of a provider have some 10 KiB. */
const ANSWER_LIMIT_BYTES = 1024 * 1024;
/** Statuses whose answers have no body. */
const EMPTY: readonly number[] = [101, 204, 205, 304];

type Fetch = (url: string, options: RequestInit) => Promise<Response>;

export interface FetchOptions {
  /** Who answers, in messages: `identity provider`. */
  readonly who: string;
  /** Private authority as PEM, besides those of the system and of Node.js. */
  readonly authority?: string | undefined;
  readonly signal: AbortSignal;
}

/** Returns a function that sends requests with limits of time and size. It follows no redirects. @throws CommandError; the signal's reason. */
export function fetchFrom({ who, authority, signal }: FetchOptions): Fetch {
  const own = authority === undefined ? [] : [authority];
  const ca = [...getCACertificates('default'), ...getCACertificates('system'), ...own];
  return async (url, { method = 'GET', headers, body }) => {
    const limits = AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MILLISECONDS)]);
    const { request } = url.startsWith('https:') ? await import('node:https') : await import('node:http');
    try {
      const sent = request(url, {
        method,
        headers: headers as OutgoingHttpHeaders,
        ca,
        agent: false,
        signal: limits,
      });
      // The wait for the answer and the answer itself tell of the same error.
      sent.on('error', () => undefined);
      sent.end(body === undefined || body === null ? undefined : String(body as string | URLSearchParams));
      const [answer] = (await once(sent, 'response')) as [IncomingMessage];
      const text = await textOf(answer);
      const { statusCode: status = 0, headers: received } = answer;
      return new Response(EMPTY.includes(status) ? null : text, {
        status,
        headers: Object.entries(received).map(([name, value]) => [name, String(value)]),
      });
    } catch (error) {
      signal.throwIfAborted();
      throw unreachable(`${who} ${new URL(url).origin}`, limits.aborted ? limits.reason : error);
    }
  };
}

async function textOf(body: AsyncIterable<Uint8Array>): Promise<string> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of body) {
    bytes += piece.length;
    if (bytes > ANSWER_LIMIT_BYTES) {
      throw new Error(`the answer has more than ${ANSWER_LIMIT_BYTES} bytes`);
    }
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString('utf8');
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
