/**
 * Serves guests their metadata at 169.254.169.254. The nftables rules translate this address to a port of the gateway. The host itself does
 * not have this address, because a host in a cloud reaches the metadata service of the cloud at the same address.
 *
 * The rules bind a guest's address to its tap and let only guests reach the port. So the sender's address identifies the machine.
 *
 * The server reads the first line of one short request and answers it. The agent does not use the HTTP server of Node.js here, because that
 * server parses everything that a client sends. Thousands of requests in one packet would keep the agent busy.
 */
import { once } from 'node:events';
import { STATUS_CODES } from 'node:http';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import type { Logger } from 'pino';

/**
 * Limit of open connections of one guest. A program in a guest normally requests one page after another. So a guest that exceeds this limit
 * is probably attacking the host.
 */
const CONNECTIONS_PER_GUEST = 16;
/**
 * Time limit of a connection, from its start until the guest has its answer. The limit can be short, because a page has at most a few
 * hundred KiB, and its bytes never leave the host.
 */
const CONNECTION_MILLISECONDS = 10_000;
/**
 * Limits of the head of a request: the number of its characters, and the number of parts in which it arrives. Usual clients send about 100
 * characters in one part.
 */
const HEAD_LENGTH = 8192;
const HEAD_PARTS = 32;
const END_OF_HEAD = '\r\n\r\n';
const METHOD_NOT_ALLOWED = 405;
/** Request line with a method and a path, perhaps with a query. */
const REQUEST_LINE = /^([A-Z]{1,16}) (\/[!->@-~]*)(?:\?[!-~]*)? HTTP\/1\.[01]$/;

/** Returns the page with this path for the machine with this uid; undefined if the machine has no such page. */
export type MetadataPages = (uid: string, path: string) => Promise<string | undefined>;

export interface MetadataOptions {
  pages: MetadataPages;
  /** Returns the uid of the attached machine that has this address; undefined if there is no such machine. */
  uidOf(address: string): string | undefined;
  logger: Logger;
}

interface Answer {
  status: number;
  body: string;
}

export class MetadataServer {
  readonly #options: MetadataOptions;
  /** Open connections, each with the machine that opened it. */
  readonly #connections = new Map<Socket, string>();
  #server: Server | undefined;

  constructor(options: MetadataOptions) {
    this.#options = options;
  }

  get listens(): boolean {
    return this.#server?.listening === true;
  }

  /**
   * Listens on an IPv4 address of this host, and returns the port. If `port` is 0, the system chooses a free port.
   *
   * @throws Error when the address or the port cannot be used.
   */
  async open(host: string, port: number): Promise<number> {
    const server = createServer((socket) => this.#admit(socket));
    server.listen({ host, port });
    await once(server, 'listening');
    // Without this listener for errors, an error of accept(2) would end the process. Such an error occurs, for example, when too many files
    // are open.
    server.on('error', (error) =>
      this.#options.logger.error({ err: error }, 'A connection for metadata was not accepted'),
    );
    this.#server = server;
    return (server.address() as AddressInfo).port;
  }

  /** Ends the connections of a machine at once, so that the next machine with the same address does not get the rest of an answer. */
  forget(uid: string): void {
    for (const [socket, owner] of this.#connections) {
      if (owner === uid) {
        socket.resetAndDestroy();
      }
    }
  }

  async close(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    for (const socket of this.#connections.keys()) {
      socket.destroy();
    }
    if (server !== undefined) {
      await new Promise<void>((resolve) => server.close(() => resolve()));
    }
  }

  #admit(socket: Socket): void {
    const uid = this.#options.uidOf(socket.remoteAddress ?? '');
    const open = [...this.#connections.values()].filter((one) => one === uid).length;
    if (uid === undefined || open >= CONNECTIONS_PER_GUEST) {
      socket.destroy();
      return;
    }
    this.#connections.set(socket, uid);
    const timer = setTimeout(() => socket.destroy(), CONNECTION_MILLISECONDS);
    // A guest can break its connection at any time. Without this listener for errors, the resulting error would end the process.
    socket.on('error', () => undefined);
    socket.once('close', () => {
      clearTimeout(timer);
      this.#connections.delete(socket);
    });
    this.#receive(socket, uid);
  }

  /** Reads until the head of the request is complete or exceeds a limit. */
  #receive(socket: Socket, uid: string): void {
    const parts: Buffer[] = [];
    const take = (part: Buffer): void => {
      parts.push(part);
      const head = Buffer.concat(parts).toString('latin1', 0, HEAD_LENGTH);
      const isWhole = head.includes(END_OF_HEAD);
      if (isWhole || head.length === HEAD_LENGTH || parts.length === HEAD_PARTS) {
        socket.off('data', take);
        socket.pause();
        void this.#send(socket, uid, isWhole ? head : '');
      }
    };
    socket.on('data', take);
  }

  async #send(socket: Socket, uid: string, head: string): Promise<void> {
    const [line = ''] = head.split('\r\n', 1);
    const { status, body } = await this.#answerTo(line, uid);
    const lines = [
      `HTTP/1.1 ${status} ${STATUS_CODES[status]}`,
      'content-type: text/plain; charset=utf-8',
      `content-length: ${Buffer.byteLength(body)}`,
      'connection: close',
      ...(status === METHOD_NOT_ALLOWED ? ['allow: GET, HEAD'] : []),
    ];
    const hasBody = !line.startsWith('HEAD ');
    socket.end(`${lines.join('\r\n')}${END_OF_HEAD}${hasBody ? body : ''}`, () => socket.destroy());
  }

  async #answerTo(line: string, uid: string): Promise<Answer> {
    const [, method, path] = REQUEST_LINE.exec(line) ?? [];
    if (path === undefined) {
      return { status: 400, body: '' };
    }
    if (method !== 'GET' && method !== 'HEAD') {
      return { status: METHOD_NOT_ALLOWED, body: '' };
    }
    try {
      const page = await this.#options.pages(uid, path);
      return page === undefined ? { status: 404, body: '' } : { status: 200, body: page };
    } catch (error) {
      this.#options.logger.error({ err: error, uid }, 'The metadata of a guest could not be read');
      return { status: 500, body: '' };
    }
  }
}
