/** Runs a server on the loopback address for one request. With this request, the browser brings the answer of the identity provider. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';

const PATH = '/callback';
/** Time limit for a browser to send its request, or to read the response of this server. */
const REQUEST_MILLISECONDS = 10_000;
/** Largest number of connections. A browser opens two or three connections, so many more can only come from other programs. */
const CONNECTIONS = 8;
const HEADERS = {
  'content-type': 'text/html; charset=utf-8',
  'content-security-policy': "default-src 'none'",
  'cache-control': 'no-store',
  'referrer-policy': 'no-referrer',
  connection: 'close',
};

export interface Arrival {
  /** URL of the browser's request. The query of the URL contains the provider's answer. */
  readonly url: URL;
  /** Answers the browser with a page about the result of the sign-in. */
  readonly end: (isDone: boolean) => void;
}

export class Loopback implements AsyncDisposable {
  readonly #server: Server;
  readonly #state: string;
  readonly #arrival = Promise.withResolvers<Arrival>();
  readonly #sockets = new Set<Socket>();
  /** Connection of the browser. It is undefined until the browser brings the answer of the provider. */
  #taken: Socket | undefined;

  private constructor(state: string) {
    this.#state = state;
    this.#server = createServer({ requestTimeout: REQUEST_MILLISECONDS }, (request, response) =>
      this.#take(request, response),
    );
    this.#server.maxConnections = CONNECTIONS;
    this.#server.on('connection', (socket: Socket) => {
      this.#sockets.add(socket);
      socket.once('close', () => this.#sockets.delete(socket));
    });
    // This listener prevents an unhandled rejection when no caller waits for the browser's request.
    this.#arrival.promise.catch(() => undefined);
  }

  /**
   * Listens on a free port. Only a request with this `state` counts as the answer of the identity provider, because only this provider and
   * the user's browser know the `state`.
   */
  static async open(state: string): Promise<Loopback> {
    const loopback = new Loopback(state);
    loopback.#server.listen(0, '127.0.0.1');
    await once(loopback.#server, 'listening');
    return loopback;
  }

  /** Address to which the provider sends the browser. */
  get address(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}${PATH}`;
  }

  /** Resolves with the request of the browser. @throws the signal's reason when the signal aborts. */
  async arrival(signal: AbortSignal): Promise<Arrival> {
    const onAbort = () => this.#arrival.reject(signal.reason as Error);
    signal.addEventListener('abort', onAbort, { once: true });
    if (signal.aborted) {
      onAbort();
    }
    try {
      return await this.#arrival.promise;
    } finally {
      signal.removeEventListener('abort', onAbort);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    for (const socket of this.#sockets) {
      // Browsers also keep unused connections open. This loop closes them, because the server cannot close before all its connections are
      // closed.
      if (socket !== this.#taken) {
        socket.destroy();
      }
    }
    // A browser that does not read the response must not delay the end of the command for long.
    setTimeout(() => this.#taken?.destroy(), REQUEST_MILLISECONDS).unref();
    await closed;
  }

  #take(request: IncomingMessage, response: ServerResponse): void {
    const url = URL.parse(request.url ?? '', this.address);
    const isOwn = request.headers.host === new URL(this.address).host;
    if (request.method !== 'GET' || !isOwn || url?.pathname !== PATH) {
      answer(response, 404, 'There is nothing here.');
    } else if (url.searchParams.get('state') !== this.#state || this.#taken) {
      // Other pages and programs can guess the port, but not the state. Their requests do not end the sign-in.
      answer(response, 400, 'This address does not belong to a sign-in that is under way.');
    } else {
      this.#taken = request.socket;
      this.#arrival.resolve({
        url,
        end: (isDone) =>
          isDone
            ? answer(response, 200, 'You are signed in. You can close this window.')
            : answer(response, 400, 'The sign-in failed. The terminal shows the reason.'),
      });
    }
  }
}

function answer(response: ServerResponse, status: number, words: string): void {
  response.writeHead(status, HEADERS).end(`<!doctype html><title>berth</title><p>${words}</p>\n`);
}
