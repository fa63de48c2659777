/** A way to a loopback port that counts what goes over it, and that a test can hold, interrupt or break off. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

/** The caller's socket, and the one to the port that belongs to it. */
interface Pair {
  near: Socket;
  /** Undefined when the wire was cut before the caller came. */
  far: Socket | undefined;
  /** Nothing passes any more, and neither end is told. */
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
  /** Bytes of every connection: what came back from the port, and what went to it. TLS adds about 1 %. */
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

  /** The same address, over this wire. */
  addressOf(url: string): string {
    const through = new URL(url);
    through.port = String(this.port);
    return through.origin;
  }

  /** Nothing is refused and nothing arrives from now on, as when a cable is pulled. */
  cut(): void {
    this.#isCut = true;
    for (const pair of this.#pairs) {
      pair.hangs = true;
      pair.near.pause();
      pair.far?.pause();
    }
  }

  /** New connections go through. Those that hang do so until `dropHung`, as both their ends may believe for long. */
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

  /** When so many more bytes have come from the port or gone to it, every connection breaks off, once. */
  breakAfter(bytes: number): void {
    this.#breaksAfter = bytes;
  }

  /** The break that was asked for has been made. */
  get hasBroken(): boolean {
    return this.#breaksAfter === undefined;
  }

  /** From now on nothing more comes from callers, who wait; until `release`. */
  hold(): void {
    this.#isHeld = true;
    this.#hasHeld = false;
    for (const { near } of this.#pairs) {
      near.pause();
    }
  }

  /** Somebody has come since `hold`, and waits. */
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

  /** What has come this way arrives, and nothing after it. */
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

/** One side's end or failure ends the other. */
function join(socket: Socket, other: Socket): void {
  // Its end follows.
  socket.on('error', () => undefined);
  socket.once('end', () => other.end());
  socket.once('close', () => other.destroySoon());
}
