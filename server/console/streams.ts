/**
 * Streams of the console: the serial console and the screen of a VM, over a WebSocket of a browser. The handshake goes on to the API server
 * with the token of the caller, and the messages of both sides pass unchanged. They are those of `kubectl attach` and `port-forward`.
 */
import type { FastifyRequest } from 'fastify';
import type { WebSocket } from 'ws';
import * as z from 'zod';
import { MACHINE_CONTAINER, SCREEN_PORT } from '../../api/v1alpha1/names.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { hostMessage } from '../../actions/session.ts';
import { rest } from '../../base/time.ts';
import { COMMAND_PROTOCOL, PORT_PROTOCOL } from '../../kube/channelprotocol.ts';
import { PODS } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import { pathOf } from '../../kube/objects.ts';
import { accountNamespaceOf } from '../../kube/serving/connections.ts';
import { getAs, type NamespacedRef } from '../callers/objects.ts';
import type { App } from '../http/app.ts';
import { StatusError } from '../http/errors.ts';
import { objectParams } from '../http/namespaces.ts';
import { SAMPLE } from '../http/samples.ts';
import { WaitEnd, type WaitingRequests } from '../http/waiting.ts';
import type { Rights } from '../own/rights.ts';
import type { Services } from '../services.ts';
import {
  acceptBrowser,
  type AcceptedRequest,
  refuseOtherOrigins,
  requireWebSocket,
  STREAMS_PATH,
} from '../http/websockets.ts';
import { CLOSE, closeSocket, LEAVING, MESSAGE_BYTES, relay, type StreamEnd } from './relay.ts';

/** Largest number of streams at the same time. A stream needs two connections, and at the worst one and a half megabytes of memory. */
export const STREAMS = 128;
/** Largest number of streams of one user. A host allows as many for one VM. */
export const USER_STREAMS = 16;
/**
 * Interval in milliseconds at which the rights of the caller are asked for again. The API server asks for them only when a stream begins, so a
 * token or a right that was withdrawn has a stream no longer than this.
 */
const RIGHTS_MILLISECONDS = 300_000;
/** Time in milliseconds after which the rights are asked for again if nobody could tell. */
const UNDECIDED_MILLISECONDS = 10_000;
/**
 * Number of questions in a row without an answer after which a stream ends. A caller that asks for very many rights gets no answer about its
 * own, and must not keep a stream by that.
 */
const UNDECIDED = 3;
const UNKNOWN: StreamEnd = {
  code: CLOSE.refused,
  reason: 'Nobody can tell whether you still have the right to this stream. Connect again',
};
/** Verbs that API servers require for a stream. Those before 1.35 require only `get`. */
const VERBS = ['get', 'create'] as const;

/** A kind of stream. */
interface StreamKind {
  /** Subresource of the Pod. */
  readonly subresource: 'attach' | 'portforward';
  readonly protocol: string;
  readonly query: Readonly<Record<string, string>>;
}

const KINDS: Readonly<Record<string, StreamKind>> = {
  console: {
    subresource: 'attach',
    protocol: COMMAND_PROTOCOL,
    query: { container: MACHINE_CONTAINER, stdin: 'true', stdout: 'true', stderr: 'false', tty: 'false' },
  },
  vnc: { subresource: 'portforward', protocol: PORT_PROTOCOL, query: { ports: String(SCREEN_PORT) } },
};

type StreamRequest = FastifyRequest<{ Params: NamespacedRef }>;

/** Adds the routes. `streams` counts the open streams. */
export function addConsoleStreams(app: App, { own }: Pick<Services, 'own'>, streams: WaitingRequests): void {
  for (const [name, kind] of Object.entries(KINDS)) {
    app.get(
      `${STREAMS_PATH}namespaces/:namespace/vms/:name/${name}`,
      {
        exposeHeadRoute: false,
        schema: { hide: true, params: objectParams('VM', SAMPLE.vm), response: { 200: z.any() } },
        onRequest: refuseOtherOrigins,
      },
      async (request, reply) => {
        const mayStream = async () => await requireStream(own.rights, kind, request);
        const { client } = request.fullCaller();
        const user = await client.username();
        await getAs(client, VMS, request.params);
        await mayStream();
        const owner = { user, namespace: accountNamespaceOf(user) ?? request.params.namespace };
        streams.check(owner);
        const upgrade = requireWebSocket(request, reply, kind.protocol);
        await streams.run(reply.raw, owner, async ({ signal }) => {
          await serve(kind, { request, reply, upgrade, signal, mayStream });
        });
      },
    );
  }
}

/** @throws StatusError 403 when the caller lacks one of the rights to the stream, 401 when the API server does not know the caller. */
async function requireStream(
  rights: Rights,
  { subresource }: StreamKind,
  { headers, params }: StreamRequest,
): Promise<void> {
  const { namespace, name } = params;
  for (const verb of VERBS) {
    await rights.require(headers, { verb, group: '', resource: PODS.plural, subresource, namespace, name });
  }
}

interface Accepted extends AcceptedRequest {
  readonly request: StreamRequest;
  /** Aborts with a {@link WaitEnd} when the client is gone or the server stops. */
  readonly signal: AbortSignal;
  /** Rejects with a StatusError when the caller has no right to the stream any more. */
  readonly mayStream: () => Promise<void>;
}

/** Accepts the WebSocket, connects it to the host, and resolves when the stream has ended. */
async function serve(kind: StreamKind, accepted: Accepted): Promise<void> {
  const { request, signal, mayStream } = accepted;
  const { watches } = request.fullCaller();
  const path = `${pathOf(PODS, request.params, kind.subresource)}?${new URLSearchParams(kind.query).toString()}`;
  // The browser is not read before the host is connected. So its messages wait in the kernel, not here.
  const browser = acceptBrowser(accepted, kind.protocol, MESSAGE_BYTES);
  try {
    const socket = { path, protocol: kind.protocol, messageBytes: MESSAGE_BYTES, signal };
    const host = await watches.webSocket(socket, paused);
    await relay(browser, host, { signal, end: endOfRight(mayStream, signal) });
  } catch (error) {
    closeSocket(browser, endFor(error));
  }
}

/** Returns the socket, which is not read yet. Its errors need a listener, and its end tells of them. */
function paused(socket: WebSocket): WebSocket {
  socket.on('error', () => undefined);
  socket.pause();
  return socket;
}

/**
 * Resolves when the caller has lost the right, when nobody could tell {@link UNDECIDED} times in a row, or when the signal aborts. Until then
 * the stream goes on.
 */
export async function endOfRight(mayStream: () => Promise<void>, signal: AbortSignal): Promise<StreamEnd> {
  let undecided = 0;
  while (undecided < UNDECIDED) {
    await rest(undecided === 0 ? RIGHTS_MILLISECONDS : UNDECIDED_MILLISECONDS, signal);
    if (signal.aborted) {
      return LEAVING;
    }
    try {
      await mayStream();
      undecided = 0;
    } catch (error) {
      if (error instanceof StatusError) {
        return { code: CLOSE.refused, reason: error.message };
      }
      undecided += 1;
    }
  }
  return UNKNOWN;
}

/** Returns how a stream ends that does not begin, in the words of the host if it says why. */
function endFor(error: unknown): StreamEnd {
  if (error instanceof WaitEnd) {
    return LEAVING;
  }
  const reason = error instanceof ApiError ? hostMessage(error) : 'The host cannot be reached';
  return { code: CLOSE.failed, reason };
}
