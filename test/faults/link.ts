/** A host's way to the API server, which can be interrupted: nothing is refused, nothing arrives, as when a cable is pulled. */
import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import type { AddressInfo } from 'node:net';

export class Link {
  readonly #server: Server;
  readonly #port: number;
  readonly #sockets = new Set<Socket>();
  readonly #hung = new Set<Socket>();
  #isCut = false;

  private constructor(server: Server, port: number) {
    this.#server = server;
    this.#port = port;
    server.on('connection', (near) => this.#join(near));
  }

  /** Passes connections on to a loopback port. */
  static async to(port: number): Promise<Link> {
    const server = createServer({ pauseOnConnect: true });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new Link(server, port);
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
    for (const socket of this.#hung) socket.destroy();
    this.#hung.clear();
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  #join(near: Socket): void {
    this.#keep(near);
    if (this.#isCut) {
      this.#hung.add(near);
      return;
    }
    const far = connect(this.#port, '127.0.0.1');
    this.#keep(far);
    near.once('close', () => far.destroy());
    far.once('close', () => near.destroy());
    near.pipe(far);
    far.pipe(near);
  }

  #keep(socket: Socket): void {
    this.#sockets.add(socket);
    // Its end follows, and is passed on to the other side.
    socket.on('error', () => undefined);
    socket.once('close', () => this.#sockets.delete(socket));
  }
}
