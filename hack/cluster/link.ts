/** A way for connections from one end to another, which can be interrupted: nothing is refused, nothing arrives, as when a cable is pulled. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

/** A loopback port, or the path of a socket. */
export type End = number | string;

/** Passes every connection that is taken at one end on to the other. */
export class Link {
  readonly #server: Server;
  readonly #to: End;
  readonly #sockets = new Set<Socket>();
  readonly #hung = new Set<Socket>();
  #isCut = false;

  private constructor(server: Server, to: End) {
    this.#server = server;
    this.#to = to;
    server.on('connection', (near) => this.#take(near));
  }

  /** From port 0: from any that is free. A port is one of `address`. */
  static async open(from: End, to: End, address = '127.0.0.1'): Promise<Link> {
    const server = createServer({ pauseOnConnect: true });
    const link = new Link(server, to);
    if (typeof from === 'number') {
      server.listen(from, address);
    } else {
      server.listen(from);
    }
    await once(server, 'listening');
    return link;
  }

  /** The same address, over this link. */
  addressOf(url: string): string {
    const through = new URL(url);
    through.port = String((this.#server.address() as AddressInfo).port);
    return through.origin;
  }

  cut(): void {
    this.#isCut = true;
    for (const socket of this.#sockets) {
      socket.unpipe();
      socket.pause();
      this.#hung.add(socket);
    }
  }

  /** New connections go through; those that hang do so until `dropHung`, as both their ends may believe for long. */
  mend(): void {
    this.#isCut = false;
  }

  dropHung(): void {
    for (const socket of this.#hung) {
      socket.destroy();
    }
    this.#hung.clear();
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) {
      socket.destroy();
    }
  }

  #take(near: Socket): void {
    this.#keep(near);
    if (this.#isCut) {
      this.#hung.add(near);
      return;
    }
    const far = typeof this.#to === 'number' ? connect(this.#to, '127.0.0.1') : connect(this.#to);
    this.#keep(far);
    pass(near, far);
    pass(far, near);
  }

  #keep(socket: Socket): void {
    this.#sockets.add(socket);
    // Its end follows, and is passed on to the other side.
    socket.on('error', () => undefined);
    socket.once('close', () => this.#sockets.delete(socket));
  }
}

/** One side breaking off is told to the other by breaking off too. */
function pass(from: Socket, to: Socket): void {
  from.pipe(to);
  from.once('error', () => to.destroy());
  from.once('close', () => to.destroySoon());
}
