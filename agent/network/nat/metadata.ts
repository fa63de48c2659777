/**
 * Serves guests their metadata at 169.254.169.254. The rules translate that address to a port of the gateway. The address is not an
 * address of the host, because a host in a cloud reaches the metadata service of its cloud there.
 *
 * The rules bind a guest's address to its tap and let only guests reach the port. So the sender's address identifies the machine.
 */
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Logger } from 'pino';
import {
  createServer,
  HttpError,
  listen,
  reply,
  type RunningServer,
} from '../../../kube/serving/httpserver.ts';

/** Limit of open connections of one guest. Programs in a guest ask for one page after another; more connections mean an attack. */
const CONNECTIONS_PER_GUEST = 16;

/** Returns the page with this path for the machine with this uid; undefined if the machine has no such page. */
export type MetadataPages = (uid: string, path: string) => Promise<string | undefined>;

export interface MetadataOptions {
  pages: MetadataPages;
  /** Returns the uid of the attached machine with this address; undefined if no attached machine has it. */
  uidOf(address: string): string | undefined;
  logger: Logger;
}

export class MetadataServer {
  readonly #options: MetadataOptions;
  /** Open connections, each with the machine that opened it. */
  readonly #connections = new Map<Socket, string>();
  #server: Server | undefined;
  #running: RunningServer | undefined;

  constructor(options: MetadataOptions) {
    this.#options = options;
  }

  get listens(): boolean {
    return this.#server?.listening === true;
  }

  /**
   * Listens on an address of this host, in the form `host:port`, and returns the port. Port 0 chooses a free one.
   *
   * @throws Error when the address cannot be used.
   */
  async open(address: string): Promise<number> {
    await this.close();
    const server = createServer(
      (request, response, url) => this.#answer(request, response, url),
      this.#options,
    );
    // Each guest has a limit of its own. With a common limit, some guests could take all connections.
    server.maxConnections = Number.POSITIVE_INFINITY;
    // The rules limit new connections, so with one request per connection they also limit requests.
    server.maxRequestsPerSocket = 1;
    server.on('dropRequest', (_request, socket) => socket.destroy());
    server.on('connection', (socket: Socket) => this.#admit(socket));
    this.#running = await listen(server, address);
    this.#server = server;
    return this.#running.port;
  }

  /** Ends the connections of a machine at once. The next owner of the machine's address must get no rest of an answer. */
  forget(uid: string): void {
    for (const [socket, owner] of this.#connections) {
      if (owner === uid) {
        socket.resetAndDestroy();
      }
    }
  }

  async close(): Promise<void> {
    const running = this.#running;
    this.#running = undefined;
    await running?.close();
  }

  #admit(socket: Socket): void {
    const uid = this.#options.uidOf(socket.remoteAddress ?? '');
    const open = [...this.#connections.values()].filter((one) => one === uid).length;
    if (uid === undefined || open >= CONNECTIONS_PER_GUEST) {
      socket.destroy();
      return;
    }
    this.#connections.set(socket, uid);
    socket.once('close', () => this.#connections.delete(socket));
  }

  async #answer(request: IncomingMessage, response: ServerResponse, url: URL): Promise<void> {
    const uid = this.#connections.get(request.socket);
    if (uid === undefined) {
      request.socket.destroy();
      return;
    }
    if (request.method !== 'GET' && request.method !== 'HEAD') {
      response.setHeader('allow', 'GET, HEAD');
      throw new HttpError(405, 'Use GET or HEAD');
    }
    const page = await this.#options.pages(uid, url.pathname);
    reply(response, page === undefined ? 404 : 200, page ?? '');
  }
}
