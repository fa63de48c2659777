/**
 * Joins loopback TCP ports of two network namespaces. Sockets in the file system belong to no namespace, so a process on each side forwards
 * connections through such a socket. No route between the namespaces is needed.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';

/** End of a connection: a loopback port, or the path of a socket. */
type End = number | string;

export interface RelayOptions {
  /** Name of the other namespace (`ip netns`). */
  namespace: string;
  /** Direction of connections. With `in`, processes of the other namespace reach a port of this namespace; with `out`, the reverse. */
  direction: 'in' | 'out';
  /** Port in this namespace. */
  port: number;
  /** Port in the other namespace; the same number when absent. */
  portThere?: number;
  /** Address of the port in the other namespace, for direction `in`; loopback when absent. */
  addressThere?: string;
  /** Address of the port in this namespace, for direction `out`; 127.0.0.1 when absent. */
  addressHere?: string;
  /** Folder of the socket. Its path must be short, because a socket's path has at most 107 characters. */
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
    const { namespace, port, portThere = port, addressThere, addressHere, direction, directory } = options;
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
      await (direction === 'in' ? Forwarder.open(path, port) : Forwarder.open(port, path, addressHere)),
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

/** Accepts connections at one end and forwards them to the other end. */
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

  /** Listens at `from`. If `from` is a port, it listens at `address`. */
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

  /** Copies data from one socket to the other. When one connection ends or fails, the other is closed too. */
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
