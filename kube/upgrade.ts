/** Opens upgraded connections through the API server, for example to a Pod. */
import { addAbortListener } from 'node:events';
import { request } from 'node:https';
import type { Socket } from 'node:net';
import type { Readable } from 'node:stream';
import type { Connection } from './credentials.ts';
import { type ApiError, apiErrorFrom, DeadlineError } from './errors.ts';
import { tlsOptionsOf } from './pool.ts';
import { type JsonLimits, parseJson } from '../base/json.ts';

/**
 * Time limit in milliseconds for the connection attempt and the answer. The answer can be slow, because the API server waits for the host.
 */
const ANSWER_MILLISECONDS = 30_000;
/** Largest number of characters of a refusal that are read. A Status usually has a few hundred characters. */
const REFUSAL_CHARACTERS = 16 * 1024;
/** Limits of a refusal. A character has up to four bytes, and the last piece can exceed the number of characters. */
const REFUSAL_LIMITS: JsonLimits = { bytes: 256 * 1024, items: 1_024 };
/** Time limit in milliseconds for reading the body of a refusal. Most servers send the body immediately. */
const REFUSAL_MILLISECONDS = 5_000;

export interface UpgradeRequest {
  /** Path with its query. */
  readonly path: string;
  /** Name of the protocol in the header Upgrade. */
  readonly protocol: string;
  readonly headers: Readonly<Record<string, string>>;
  /** If this signal aborts, the attempt ends. The signal does not close a connection that is already open. */
  readonly signal: AbortSignal;
}

/**
 * Sends a POST with an upgrade over a new connection. Resolves with the connection after the server has switched the protocol. The method
 * is POST, because the API server then requires only the permission `create` from the caller.
 *
 * @throws ApiError when the server does not switch the protocol, DeadlineError when it does not answer in 30 s, the signal's reason when the
 * signal aborts, or the network's error when the connection fails.
 */
export async function requestUpgrade(
  connection: Connection,
  { path, protocol, headers, signal }: UpgradeRequest,
): Promise<Socket> {
  signal.throwIfAborted();
  const { promise, resolve, reject } = Promise.withResolvers<Socket>();
  const asked = request(new URL(path, connection.server), {
    method: 'POST',
    headers: { ...headers, connection: 'Upgrade', upgrade: protocol, 'content-length': 0 },
    // The request uses a separate connection, because an upgraded connection cannot return to a pool.
    agent: false,
    ...tlsOptionsOf(connection),
  });
  const late = (): void =>
    void asked.destroy(new DeadlineError(`POST ${path.split('?')[0]}: no answer in time`));
  const timer = setTimeout(late, ANSWER_MILLISECONDS);
  using _listener = addAbortListener(signal, () => asked.destroy(signal.reason as Error));
  // This listener is never removed, because an error without a listener would end the process.
  asked.on('error', reject);
  asked.once('upgrade', (_response, socket: Socket, head: Buffer) => {
    socket.unshift(head);
    resolve(socket);
  });
  asked.once('response', (response) => {
    readRefusal(response, response.statusCode).then(reject, reject);
  });
  try {
    asked.end();
    return await promise;
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Reads the body of a refusal and returns it as an error. The body can be slow or endless, so its time and its length have limits. The
 * returned error contains the given `retryAfterMilliseconds`.
 *
 * @throws the error of the connection.
 */
export async function readRefusal(
  body: Readable,
  status = 500,
  retryAfterMilliseconds?: number,
): Promise<ApiError> {
  let text = '';
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    body.destroy();
  }, REFUSAL_MILLISECONDS);
  try {
    for await (const chunk of body.setEncoding('utf8') as AsyncIterable<string>) {
      text += chunk;
      if (text.length > REFUSAL_CHARACTERS) {
        break;
      }
    }
  } catch (error) {
    if (!isLate) {
      throw error;
    }
    // If the time limit ended the reading, the error is built from the text that arrived before.
  } finally {
    clearTimeout(timer);
  }
  return apiErrorFrom(parsed(text), status, retryAfterMilliseconds);
}

function parsed(text: string): unknown {
  try {
    return parseJson(text, REFUSAL_LIMITS);
  } catch {
    return text.trim();
  }
}
