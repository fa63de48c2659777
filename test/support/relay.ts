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
  /** Holds the socket; short, since a socket's path has 107 characters at most. */
  directory: string;
}

export class Relay {
  readonly #pass: Pass;
  readonly #process: ChildProcess;

  private constructor(pass: Pass, process: ChildProcess) {
    this.#pass = pass;
    this.#process = process;
  }

  static async open(options: RelayOptions): Promise<Relay> {
    const { namespace, port, portThere = port, direction, directory } = options;
    const path = join(directory, `${direction}-${port}.sock`);
    const [from, to] = direction === 'in' ? [portThere, path] : [path, portThere];
    const script = new URL(import.meta.url).pathname;
    const inside = [`--net=/run/netns/${namespace}`, process.execPath, script, String(from), String(to)];
    const child = spawn('nsenter', inside, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    const ready = once(child, 'message');
    const ended = once(child, 'exit').then(() => Promise.reject(new Error(`no relay in ${namespace}`)));
    await Promise.race([ready, ended]);
    ended.catch(() => undefined);
    return new Relay(await (direction === 'in' ? Pass.open(path, port) : Pass.open(port, path)), child);
  }

  async close(): Promise<void> {
    const ended = once(this.#process, 'exit');
    if (this.#process.exitCode === null && this.#process.signalCode === null) {
      this.#process.kill('SIGKILL');
      await ended;
    }
    this.#pass.close();
  }
}

/** Passes every connection that is taken at one end on to the other. */
class Pass {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(to: End) {
    this.#server = createServer((socket) => {
      const other = typeof to === 'number' ? connect(to, '127.0.0.1') : connect(to);
      this.#join(socket, other);
      this.#join(other, socket);
    });
  }

  static async open(from: End, to: End): Promise<Pass> {
    const pass = new Pass(to);
    if (typeof from === 'number') pass.#server.listen(from, '127.0.0.1');
    else pass.#server.listen(from);
    await once(pass.#server, 'listening');
    return pass;
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  #join(from: Socket, to: Socket): void {
    this.#sockets.add(from);
    from.pipe(to);
    // One side breaking off is told to the other by breaking off too.
    from.once('error', () => to.destroy());
    from.once('close', () => {
      this.#sockets.delete(from);
      to.destroySoon();
    });
  }
}

function parseEnd(text: string | undefined): End {
  if (text === undefined) throw new Error('usage: relay FROM TO');
  return /^\d+$/.test(text) ? Number(text) : text;
}

if (import.meta.main) {
  await Pass.open(parseEnd(process.argv[2]), parseEnd(process.argv[3]));
  process.send?.('ready');
  process.once('disconnect', () => process.exit());
}
