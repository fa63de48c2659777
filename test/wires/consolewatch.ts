/** Watches objects as a page of the console does: all watches of a page over one WebSocket. */
import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { WebSocket } from 'ws';
import type { ServerProcess } from '../../hack/cluster/program.ts';

const PATH = '/console/watch';
const PROTOCOL = 'v1.watch.berth.dev';
const TOKEN_PROTOCOL = 'base64url.bearer.authorization.k8s.io.';
const ID_BYTES = 4;

/** End of a watch, as the server tells it. */
interface WatchEnd {
  readonly id: number;
  readonly code?: number;
  readonly message?: string;
}

interface PageOptions {
  readonly token: string;
  readonly origin?: string | undefined;
  readonly protocols?: readonly string[];
}

export class WatchingPage {
  readonly socket: WebSocket;
  /** Resolves with the code and the reason of the end. */
  readonly closed: Promise<[code: number, reason: string]>;
  readonly #texts = new Map<number, string>();
  readonly #ends = new Map<number, WatchEnd>();
  #last = 0;

  /** Begins the WebSocket as a browser does. */
  constructor({ url, authority }: ServerProcess, options: PageOptions) {
    const { token, protocols = [PROTOCOL] } = options;
    const secret = TOKEN_PROTOCOL + Buffer.from(token).toString('base64url');
    this.socket = new WebSocket(
      url.replace('https', 'wss') + PATH,
      [...protocols, ...(token === '' ? [] : [secret])],
      { ca: authority, origin: 'origin' in options ? options.origin : url, perMessageDeflate: false },
    );
    this.socket.on('error', () => undefined);
    this.socket.on('message', (message: Buffer, isBinary) => this.#take(message, isBinary));
    this.closed = once(this.socket, 'close').then(([code, reason]) => [code as number, String(reason)]);
  }

  static async open(server: ServerProcess, token: string): Promise<WatchingPage> {
    const page = new WatchingPage(server, { token });
    await once(page.socket, 'open');
    return page;
  }

  /** Returns the status and the message with which the WebSocket is refused. */
  async refusal(): Promise<[status: number | undefined, message: string]> {
    const [, response] = (await once(this.socket, 'unexpected-response')) as [unknown, IncomingMessage];
    const text = Buffer.concat((await response.toArray()) as Buffer[]).toString();
    return [response.statusCode, (JSON.parse(text) as { message: string }).message];
  }

  /** Asks for a watch. Returns its number. */
  start(path: string, resourceVersion: string): number {
    this.#last += 1;
    this.send({ start: { id: this.#last, path, resourceVersion } });
    return this.#last;
  }

  stop(id: number): void {
    this.send({ stop: id });
  }

  send(request: unknown): void {
    this.socket.send(JSON.stringify(request));
  }

  /** Waits until the watch has shown the text, and returns all that it has shown. @throws Error when the watch ends first. */
  async shows(id: number, text: string): Promise<string> {
    return await this.#until(() => {
      const shown = this.#texts.get(id) ?? '';
      if (!shown.includes(text) && this.#ends.has(id)) {
        throw new Error(`watch ${id} has ended: ${JSON.stringify(this.#ends.get(id))}`);
      }
      return shown.includes(text) ? shown : undefined;
    });
  }

  /** Waits for the end of the watch. */
  async ended(id: number): Promise<WatchEnd> {
    return await this.#until(() => this.#ends.get(id));
  }

  async #until<T>(find: () => T | undefined): Promise<T> {
    const closed = this.closed.then(([code, reason]) => {
      throw new Error(`the WebSocket has ended with ${code} ${reason}`);
    });
    for (;;) {
      const found = find();
      if (found !== undefined) {
        closed.catch(() => undefined);
        return found;
      }
      await Promise.race([once(this.socket, 'message'), closed]);
    }
  }

  #take(message: Buffer, isBinary: boolean): void {
    if (isBinary) {
      const id = message.readUInt32BE();
      this.#texts.set(id, (this.#texts.get(id) ?? '') + message.toString('utf8', ID_BYTES));
    } else {
      const end = JSON.parse(message.toString()) as WatchEnd;
      this.#ends.set(end.id, end);
    }
  }
}
