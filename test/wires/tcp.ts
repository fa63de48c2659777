/** A TCP proxy to a loopback port. It counts bytes, and a test can hold, interrupt or break its connections. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

/** The client's socket, and the socket to the port for this client. */
interface Pair {
  near: Socket;
  /** Undefined if the wire was already cut when the client connected. */
  far: Socket | undefined;
  /** Whether no more bytes pass, without a notice to either end. */
  hangs: boolean;
}

export class Wire implements Disposable {
  readonly #server: Server;
  readonly #to: number;
  readonly #pairs = new Set<Pair>();
  #isCut = false;
  #breaksAfter: number | undefined;
  #isHeld = false;
  #hasHeld = false;
  /** Bytes from the port, of all connections. TLS adds about 1 %. {@link sent} counts the bytes to the port. */
  received = 0;
  sent = 0;

  private constructor(server: Server, to: number) {
    this.#server = server;
    this.#to = to;
    server.on('connection', (near) => this.#take(near));
  }

  static async open(to: number): Promise<Wire> {
    const server = createServer({ pauseOnConnect: true }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new Wire(server, to);
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** Number of open connections of clients. */
  get connections(): number {
    return this.#pairs.size;
  }

  /** Returns the origin of a URL with the port of this wire. */
  addressOf(url: string): string {
    const through = new URL(url);
    through.port = String(this.port);
    return through.origin;
  }

  /** Stops all bytes without closing or refusing connections, as when a cable is pulled. */
  cut(): void {
    this.#isCut = true;
    for (const pair of this.#pairs) {
      pair.hangs = true;
      pair.near.pause();
      pair.far?.pause();
    }
  }

  /**
   * Lets new connections through. Connections that were interrupted hang until `dropHung` is called, because their ends may not notice
   * the fault for a long time.
   */
  mend(): void {
    this.#isCut = false;
  }

  dropHung(): void {
    for (const pair of this.#pairs) {
      if (pair.hangs) {
        destroy(pair);
      }
    }
  }

  /** Breaks every connection once, when this number of further bytes has passed in both directions together. */
  breakAfter(bytes: number): void {
    this.#breaksAfter = bytes;
  }

  /** Whether the break of {@link breakAfter} has happened. */
  get hasBroken(): boolean {
    return this.#breaksAfter === undefined;
  }

  /** Stops reading bytes from clients until `release` is called. */
  hold(): void {
    this.#isHeld = true;
    this.#hasHeld = false;
    for (const { near } of this.#pairs) {
      near.pause();
    }
  }

  /** Whether a client has connected since `hold` was called. */
  get hasHeld(): boolean {
    return this.#hasHeld;
  }

  release(): void {
    this.#isHeld = false;
    for (const pair of this.#pairs) {
      resume(pair, pair.near);
    }
  }

  [Symbol.dispose](): void {
    this.#server.close();
    for (const pair of this.#pairs) {
      destroy(pair);
    }
  }

  #take(near: Socket): void {
    const pair: Pair = { near, far: undefined, hangs: this.#isCut };
    this.#pairs.add(pair);
    near.once('close', () => this.#pairs.delete(pair));
    if (pair.hangs) {
      near.on('error', () => undefined);
      return;
    }
    const far = connect(this.#to, '127.0.0.1');
    pair.far = far;
    join(near, far);
    join(far, near);
    near.on('data', (chunk: Buffer) => {
      this.sent += chunk.length;
      this.#pass(chunk, pair, [near, far]);
    });
    far.on('data', (chunk: Buffer) => {
      this.received += chunk.length;
      this.#pass(chunk, pair, [far, near]);
    });
    if (this.#isHeld) {
      near.pause();
      this.#hasHeld = true;
    } else {
      near.resume();
    }
  }

  #pass(chunk: Buffer, pair: Pair, [from, to]: readonly [Socket, Socket]): void {
    if (this.#breaksAfter !== undefined) {
      this.#breaksAfter -= chunk.length;
      if (this.#breaksAfter <= 0) {
        this.#breaksAfter = undefined;
        this.#breakOff();
        return;
      }
    }
    if (!to.write(chunk)) {
      from.pause();
      to.once('drain', () => resume(pair, from));
    }
  }

  /** Breaks all connections. Bytes that were already sent to the client arrive. Later bytes do not. */
  #breakOff(): void {
    for (const { near, far } of this.#pairs) {
      far?.resetAndDestroy();
      near.destroySoon();
    }
  }
}

function resume(pair: Pair, socket: Socket): void {
  if (!pair.hangs) {
    socket.resume();
  }
}

function destroy({ near, far }: Pair): void {
  near.destroy();
  far?.destroy();
}

/** Ends the other socket when this socket ends or fails. */
function join(socket: Socket, other: Socket): void {
  // The event close follows, and its handler ends the other socket.
  socket.on('error', () => undefined);
  socket.once('end', () => other.end());
  socket.once('close', () => other.destroySoon());
}
