/**
 * Joins loopback TCP ports of two network namespaces. Sockets in the file system belong to no namespace: a process on
 * either side passes connections on through one, and neither namespace needs a way to the other.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';

/** A loopback port, or the path of a socket. */
type End = number | string;

export interface RelayOptions {
  /** Name of the other namespace (`ip netns`). */
  namespace: string;
  /** `in`: processes of the other namespace reach a port of this one. `out`: the other way round. */
  direction: 'in' | 'out';
  /** In this namespace. */
  port: number;
  /** In the other one; the same when absent. */
  portThere?: number;
  /** The address of that port, for direction `in`; loopback when absent. */
  addressThere?: string;
  /** Holds the socket; short, since a socket's path has 107 characters at most. */
  directory: string;
}

export class Relay implements AsyncDisposable {
  readonly #here: Forwarder;
  readonly #there: ChildProcess;

  private constructor(here: Forwarder, there: ChildProcess) {
    this.#here = here;
    this.#there = there;
  }

  static async open(options: RelayOptions): Promise<Relay> {
    const { namespace, port, portThere = port, addressThere, direction, directory } = options;
    const path = join(directory, `${direction}-${port}.sock`);
    const [from, to] = direction === 'in' ? [portThere, path] : [path, portThere];
    const script = new URL(import.meta.url).pathname;
    const ends = [String(from), String(to), ...(direction === 'in' && addressThere ? [addressThere] : [])];
    const inside = [`--net=/run/netns/${namespace}`, process.execPath, script, ...ends];
    const child = spawn('nsenter', inside, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    const ready = once(child, 'message');
    const ended = once(child, 'exit').then(() => Promise.reject(new Error(`no relay in ${namespace}`)));
    await Promise.race([ready, ended]);
    ended.catch(() => undefined);
    return new Relay(
      await (direction === 'in' ? Forwarder.open(path, port) : Forwarder.open(port, path)),
      child,
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const ended = once(this.#there, 'exit');
    if (this.#there.exitCode === null && this.#there.signalCode === null) {
      this.#there.kill('SIGKILL');
      await ended;
    }
    this.#here.close();
  }
}

/** Passes every connection that is taken at one end on to the other. */
class Forwarder {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(server: Server, to: End) {
    this.#server = server;
    server.on('connection', (near) => {
      const far = typeof to === 'number' ? connect(to, '127.0.0.1') : connect(to);
      this.#pass(near, far);
      this.#pass(far, near);
    });
  }

  /** A port is one of `address`. */
  static async open(from: End, to: End, address = '127.0.0.1'): Promise<Forwarder> {
    const server = createServer();
    const forwarder = new Forwarder(server, to);
    if (typeof from === 'number') {
      server.listen(from, address);
    } else {
      server.listen(from);
    }
    await once(server, 'listening');
    return forwarder;
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) {
      socket.destroy();
    }
  }

  /** One side breaking off is told to the other by breaking off too. */
  #pass(from: Socket, to: Socket): void {
    this.#sockets.add(from);
    from.pipe(to);
    from.on('error', () => to.destroy());
    from.once('close', () => {
      this.#sockets.delete(from);
      to.destroySoon();
    });
  }
}

function parseEnd(text: string | undefined): End {
  if (text === undefined) {
    throw new Error('usage: relay FROM TO [ADDRESS]');
  }
  return /^\d+$/.test(text) ? Number(text) : text;
}

if (import.meta.main) {
  await Forwarder.open(parseEnd(process.argv[2]), parseEnd(process.argv[3]), process.argv[4]);
  process.send?.('ready');
  process.once('disconnect', () => process.exit());
}
