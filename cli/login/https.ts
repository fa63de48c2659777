/** Sends requests to servers other than the API server: to the HTTP API before the sign-in, and to identity providers. */
import { once } from 'node:events';
import type { IncomingMessage, OutgoingHttpHeaders } from 'node:http';
import { getCACertificates } from 'node:tls';
import { codeOf, messageOf } from '../../base/errors.ts';
import type { ProxyEnvironment } from '../../base/proxy.ts';
import { certificateMistake, CommandError, EXIT } from '../errors.ts';
import { proxyFor } from '../proxy.ts';

/** Time limit of one request and its answer. It is short, because people wait for the answer. */
export const ANSWER_MILLISECONDS = 20_000;
/** Largest answer in bytes. The keys and metadata of an identity provider are about 10 KiB long. */
const ANSWER_LIMIT_BYTES = 1024 * 1024;
/** Statuses whose answers have no body. */
export const EMPTY: readonly number[] = [101, 204, 205, 304];

export type Fetch = (url: string, options: RequestInit) => Promise<Response>;

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
  return async (url, { method = 'GET', headers, body }) => {
    const limits = AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MILLISECONDS)]);
    const { request, Agent } = url.startsWith('https:')
      ? await import('node:https')
      : await import('node:http');
    // With these agents, each request has a connection of its own.
    const agent = new Agent({ proxyEnv: proxyEnvironment(url, environment) });
    try {
      const sent = request(url, {
        method,
        headers: headers as OutgoingHttpHeaders,
        ca,
        agent,
        signal: limits,
      });
      // Without a listener, an error of the request would end the process. The listener does nothing, because the code below also gets the
      // error: `once` or `readText` rejects.
      sent.on('error', () => undefined);
      sent.end(body === undefined || body === null ? undefined : String(body as string | URLSearchParams));
      const [answer] = (await once(sent, 'response')) as [IncomingMessage];
      const text = await readText(answer);
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

/** Returns the variables from which Node.js takes the proxy of a server. They are empty if the server is reached directly. */
function proxyEnvironment(url: string, environment: ProxyEnvironment): Record<string, string> {
  const proxy = proxyFor(url, environment);
  return proxy === undefined ? {} : { HTTP_PROXY: proxy.href, HTTPS_PROXY: proxy.href };
}

async function readText(body: AsyncIterable<Uint8Array>): Promise<string> {
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
