/** Sends requests to servers that are not trusted: the size of each answer has a limit, and redirects are not followed. */
import { once } from 'node:events';
import type { IncomingMessage, OutgoingHttpHeaders } from 'node:http';
import type { Proxy } from './proxy.ts';

/** Largest answer in bytes. The keys and metadata of an identity provider are about 10 KiB long. */
const ANSWER_LIMIT_BYTES = 1024 * 1024;
/** Statuses whose answers have no body. */
export const EMPTY: readonly number[] = [101, 204, 205, 304];

export type Fetch = (url: string, options: RequestInit) => Promise<Response>;

export interface FetchLimits {
  /** Certificate authorities as PEM, in place of those of Node.js. */
  readonly ca?: readonly string[];
  /** Proxy of the request. It is undefined if the server is reached directly. */
  readonly proxy: Proxy | undefined;
  readonly signal: AbortSignal;
}

/** Sends a request over a connection of its own. @throws the error of the network, or Error when the answer is too long. */
export async function fetchWithLimits(
  url: string,
  { method = 'GET', headers, body }: RequestInit,
  { ca, proxy, signal }: FetchLimits,
): Promise<Response> {
  const { request, Agent } = url.startsWith('https:')
    ? await import('node:https')
    : await import('node:http');
  const proxyEnv = proxy === undefined ? {} : { HTTP_PROXY: proxy.href, HTTPS_PROXY: proxy.href };
  const sent = request(url, {
    method,
    headers: headers as OutgoingHttpHeaders,
    ...(ca !== undefined && { ca: [...ca] }),
    // With this agent, each request has a connection of its own.
    agent: new Agent({ proxyEnv }),
    signal,
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
