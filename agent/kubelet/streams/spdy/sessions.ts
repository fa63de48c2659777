/** Sessions over SPDY/3.1, the protocol between the API server and kubelets. */
import { rest } from '../../../../base/time.ts';
import { HttpError } from '../../../../kube/serving/httperror.ts';
import type { Upgrade } from '../../../../kube/serving/upgrades.ts';
import {
  chooseProtocol,
  ClientGoneError,
  type CommandSession,
  COMMAND_PROTOCOLS,
  parsePortNumber,
  type PortConnection,
  type StreamSession,
  SessionEnd,
  type SessionLimits,
  type StreamStatus,
  type WantedStreams,
  endStreams,
  untilEnd,
} from '../session.ts';
import { SpdyConnection, type SpdyStream } from './connection.ts';

const PORT_PROTOCOL = 'portforward.k8s.io';
/** Time in which a client must open the streams that it has announced. A kubelet has the same limit. */
const STREAMS_MILLISECONDS = 30_000;

interface Link extends StreamSession {
  connection: SpdyConnection;
}

function protocolOf({ request }: Upgrade, ours: readonly string[]): string {
  return chooseProtocol(request.headers['x-stream-protocol-version'], ours);
}

function accept(
  { socket, head }: Upgrade,
  protocol: string,
  o: { streams: number; limits: SessionLimits; onStream: (stream: SpdyStream) => void },
): Link {
  const lost = new AbortController();
  const end = new SessionEnd(o.limits, (reason) => lost.abort(reason));
  socket.setTimeout(0);
  socket.setNoDelay(true);
  if (head.length > 0) {
    socket.unshift(head);
  }
  socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: ${protocol}\r\n\r\n`,
  );
  const { streams, onStream } = o;
  const connection = new SpdyConnection(socket, { streams, onStream, onData: () => end.used() });
  const run = async (): Promise<void> => {
    try {
      await connection.run();
      lost.abort(new ClientGoneError());
    } catch (error) {
      lost.abort(error);
    }
    end.release();
  };
  return { connection, signal: lost.signal, ended: run() };
}

/**
 * Accepts a session for `exec` or `attach`. @throws HttpError 400 when the client offers no known protocol, or does not open the announced
 * streams.
 */
export async function acceptCommand(
  upgrade: Upgrade,
  wanted: WantedStreams,
  limits: SessionLimits,
): Promise<CommandSession> {
  const names = [
    'error',
    ...(['stdin', 'stdout', 'stderr', 'resize'] as const).filter((name) => wanted[name]),
  ];
  const streams = new Map<string, SpdyStream>();
  const complete = Promise.withResolvers<void>();
  const onStream = (stream: SpdyStream): void => {
    const type = stream.headers.get('streamtype') ?? '';
    if (!names.includes(type) || streams.has(type)) {
      stream.destroy();
      return;
    }
    streams.set(type, stream);
    if (type !== 'stdin') {
      // The agent uses only the content of stdin. It reads the other streams only to notice their end, and drops what clients send there:
      // the sizes of their terminals. A serial console has no size, so the agent does not need these sizes.
      stream.resume();
    }
    if (streams.size === names.length) {
      complete.resolve();
    }
  };
  const protocol = protocolOf(upgrade, COMMAND_PROTOCOLS);
  const link = accept(upgrade, protocol, { streams: names.length, limits, onStream });
  const enough = new AbortController();
  await Promise.race([complete.promise, link.ended, rest(STREAMS_MILLISECONDS, enough.signal)]);
  enough.abort();
  if (streams.size < names.length) {
    throw new HttpError(400, `The client opened ${streams.size} of ${names.length} streams`);
  }
  return commandSession(link, streams);
}

function commandSession(
  { connection, signal, ended }: Link,
  streams: ReadonlyMap<string, SpdyStream>,
): CommandSession {
  const [stdin, stdout, stderr, error] = ['stdin', 'stdout', 'stderr', 'error'].map((name) =>
    streams.get(name),
  );
  const sendAll = async (): Promise<void> => {
    await endStreams([error, stdout, stderr]);
    connection.end();
    // The operating system can still have data for the client. If the agent closed the connection now, a ping of the client would make the
    // operating system drop this data. So the client closes the connection.
    await ended;
  };
  return {
    stdin,
    stdout,
    stderr,
    signal,
    ended,
    finish: async (status: StreamStatus) => {
      error?.end(JSON.stringify(status));
      // If nobody read the input, a full stream would keep the agent from noticing that the client closes the connection.
      stdin?.resume();
      await untilEnd(sendAll(), signal);
      connection.close();
    },
  };
}

interface Pair {
  data?: SpdyStream;
  error?: SpdyStream;
}

/** Collects the two streams of each connection to a port: one stream for data and one for errors. */
class PortPairs {
  readonly #incomplete = new Map<string, Pair>();
  readonly #onConnection: (connection: PortConnection) => void;

  constructor(onConnection: (connection: PortConnection) => void) {
    this.#onConnection = onConnection;
  }

  add(stream: SpdyStream): void {
    const { headers } = stream;
    const [type, id, port] = ['streamtype', 'requestid', 'port'].map((name) => headers.get(name) ?? '');
    const number = parsePortNumber(port ?? '');
    const pair = this.#incomplete.get(id ?? '') ?? {};
    if (!isPairType(type) || !id || number === undefined || pair[type] !== undefined) {
      stream.destroy();
      return;
    }
    pair[type] = stream;
    if (pair.data !== undefined && pair.error !== undefined) {
      this.#incomplete.delete(id);
      this.#onConnection(portConnection(number, pair.data, pair.error));
      return;
    }
    this.#expect(id, stream, pair);
  }

  /** Keeps a stream until the other stream of the same connection opens. If the other stream does not open in time, destroys the stream. */
  #expect(id: string, stream: SpdyStream, pair: Pair): void {
    this.#incomplete.set(id, pair);
    const timer = setTimeout(() => {
      if (this.#incomplete.get(id) === pair) {
        stream.destroy();
      }
    }, STREAMS_MILLISECONDS).unref();
    stream.once('close', () => {
      clearTimeout(timer);
      if (this.#incomplete.get(id) === pair) {
        this.#incomplete.delete(id);
      }
    });
  }
}

function isPairType(type: string | undefined): type is 'data' | 'error' {
  return type === 'data' || type === 'error';
}

function portConnection(port: number, data: SpdyStream, error: SpdyStream): PortConnection {
  // Clients send no data on the stream for errors, and end this stream at once. The agent drops data that arrives nevertheless.
  error.resume();
  return {
    port,
    data,
    end: (message = '') => {
      error.end(message);
      data.destroy();
    },
  };
}

/** Accepts a session for connections to ports. @throws HttpError 400 when the client does not offer the agent's protocol. */
export function acceptPorts(
  upgrade: Upgrade,
  limits: SessionLimits,
  onConnection: (connection: PortConnection) => void,
): StreamSession {
  const protocol = protocolOf(upgrade, [PORT_PROTOCOL]);
  const pairs = new PortPairs(onConnection);
  const onStream = (stream: SpdyStream): void => pairs.add(stream);
  const link = accept(upgrade, protocol, { streams: 2 * limits.connections, limits, onStream });
  link.signal.addEventListener('abort', () => link.connection.close());
  return link;
}
