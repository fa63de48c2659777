/** A way to a port that counts what goes over it and breaks connections off on cue. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

export class ByteCounter {
  readonly #server: Server;
  readonly #to: number;
  /** The caller's, and the one to the port that belongs to it. */
  readonly #sockets = new Map<Socket, Socket>();
  #cutAfter: number | undefined;
  #isHeld = false;
  #hasHeld = false;
  /** Of every connection: what came back from the port, and what went to it. TLS adds about 1 %. */
  received = 0;
  sent = 0;

  private constructor(server: Server, to: number) {
    this.#server = server;
    this.#to = to;
    server.on('connection', (near) => this.#take(near));
  }

  static async open(to: number): Promise<ByteCounter> {
    const server = createServer({ pauseOnConnect: true }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new ByteCounter(server, to);
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** When so many more bytes have come from the port or gone to it, every connection breaks off, once. */
  cutAfter(bytes: number): void {
    this.#cutAfter = bytes;
  }

  /** The cut that was asked for has been made. */
  get hasCut(): boolean {
    return this.#cutAfter === undefined;
  }

  /** From now on nothing more comes from callers, who wait; until `release`. */
  hold(): void {
    this.#isHeld = true;
    this.#hasHeld = false;
    for (const near of this.#sockets.keys()) {
      near.pause();
    }
  }

  /** Somebody has come since `hold`, and waits. */
  get hasHeld(): boolean {
    return this.#hasHeld;
  }

  release(): void {
    this.#isHeld = false;
    for (const near of this.#sockets.keys()) {
      near.resume();
    }
  }

  close(): void {
    this.#server.close();
    for (const pair of this.#sockets) {
      for (const socket of pair) {
        socket.destroy();
      }
    }
  }

  #take(near: Socket): void {
    const far = connect(this.#to, '127.0.0.1');
    this.#sockets.set(near, far);
    join(near, far);
    join(far, near);
    near.once('close', () => this.#sockets.delete(near));
    near.on('data', (chunk: Buffer) => {
      this.sent += chunk.length;
      this.#pass(chunk, near, far);
    });
    far.on('data', (chunk: Buffer) => {
      this.received += chunk.length;
      this.#pass(chunk, far, near);
    });
    if (this.#isHeld) {
      this.#hasHeld = true;
    } else {
      near.resume();
    }
  }

  #pass(chunk: Buffer, from: Socket, to: Socket): void {
    if (this.#cutAfter !== undefined) {
      this.#cutAfter -= chunk.length;
      if (this.#cutAfter <= 0) {
        this.#cutAfter = undefined;
        this.#breakOff();
        return;
      }
    }
    if (to.write(chunk)) {
      return;
    }
    from.pause();
    to.once('drain', () => from.resume());
  }

  /** What has come this way arrives, and nothing after it. */
  #breakOff(): void {
    for (const [near, far] of this.#sockets) {
      far.resetAndDestroy();
      near.destroySoon();
    }
  }
}

function join(socket: Socket, other: Socket): void {
  // Its end follows.
  socket.on('error', () => undefined);
  socket.once('end', () => other.end());
  socket.once('close', () => other.destroySoon());
}
