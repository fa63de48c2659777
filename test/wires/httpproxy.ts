/** An HTTP proxy on loopback. It knows the addresses of names that nobody else knows, as a proxy at the edge of a closed network does. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, request, type Server, type ServerResponse } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';

export interface HttpProxyOptions {
  /** Loopback port of each server, by the server's `HOST:PORT`. The proxy answers 403 for other servers. */
  servers: Readonly<Record<string, number>>;
  /** `USER:PASSWORD` that clients must send. */
  credentials?: string;
}

export class HttpProxy implements AsyncDisposable {
  /** Requests that the proxy got, for example `CONNECT registry.test:443` or `GET http://web.test/disk`. */
  readonly requests: string[] = [];
  /** If set, the proxy answers every request with this status. */
  status: number | undefined;
  readonly #options: HttpProxyOptions;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(options: HttpProxyOptions) {
    this.#options = options;
    this.#server = createServer((incoming, response) => this.#pass(incoming, response));
    this.#server.on('connect', (incoming: IncomingMessage, socket: Socket) => this.#open(incoming, socket));
    this.#server.on('connection', (socket: Socket) => this.#keep(socket));
  }

  static async open(options: HttpProxyOptions): Promise<HttpProxy> {
    const proxy = new HttpProxy(options);
    proxy.#server.listen(0, '127.0.0.1');
    await once(proxy.#server, 'listening');
    return proxy;
  }

  /** Address for the environment of clients, with the credentials. */
  get url(): string {
    const { credentials } = this.#options;
    const { port } = this.#server.address() as AddressInfo;
    return `http://${credentials === undefined ? '' : `${credentials}@`}127.0.0.1:${port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#sockets.forEach((socket) => socket.destroy());
    this.#server.close();
    await once(this.#server, 'close');
  }

  #keep(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on('error', () => socket.destroy());
    socket.once('close', () => this.#sockets.delete(socket));
  }

  /** Returns the status with which the proxy refuses a request to `target`, or the loopback port of the server. */
  #decide({ method, url, headers }: IncomingMessage, target: string): { refused: number } | { port: number } {
    this.requests.push(`${method} ${url}`);
    const { credentials, servers } = this.#options;
    const wanted = credentials && `Basic ${Buffer.from(credentials).toString('base64')}`;
    if (headers['proxy-authorization'] !== wanted) {
      return { refused: 407 };
    }
    const port = servers[target];
    return this.status !== undefined || port === undefined ? { refused: this.status ?? 403 } : { port };
  }

  #open(incoming: IncomingMessage, socket: Socket): void {
    const decision = this.#decide(incoming, incoming.url ?? '');
    if ('refused' in decision) {
      socket.end(`HTTP/1.1 ${decision.refused} No\r\n\r\n`);
      return;
    }
    const server = connect(decision.port, '127.0.0.1', () => {
      socket.write('HTTP/1.1 200 Connection established\r\n\r\n');
      socket.pipe(server).pipe(socket);
    });
    this.#keep(server);
    socket.once('close', () => server.destroy());
    server.once('close', () => socket.destroy());
  }

  #pass(incoming: IncomingMessage, response: ServerResponse): void {
    const url = URL.parse(incoming.url ?? '');
    const decision = this.#decide(incoming, `${url?.hostname}:${url?.port || 80}`);
    if ('refused' in decision) {
      response.writeHead(decision.refused).end();
      return;
    }
    const { method, headers } = incoming;
    const { 'proxy-authorization': _, ...rest } = headers;
    const path = `${url?.pathname}${url?.search}`;
    const sent = request(
      { host: '127.0.0.1', port: decision.port, method, path, headers: rest },
      (answer) => {
        response.writeHead(answer.statusCode ?? 502, answer.headers);
        answer.pipe(response);
      },
    );
    sent.on('error', () => response.destroy());
    incoming.pipe(sent);
  }
}
