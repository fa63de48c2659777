/** Connects ports of this computer to ports of VMs, and opens viewers for their screens. */
import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { type Readable, type Transform, Transform as TransformStream, type Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { spawn } from 'node:child_process';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { codeOf, messageOf } from '../../base/errors.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { CommandError, described, EXIT } from '../errors.ts';
import type { PortPair } from '../flags.ts';
import type { Globals } from '../globals.ts';
import { readMessage } from '../../actions/session.ts';
import { runningVM, streamPath, withoutPod } from './machine.ts';
import type { Terminal } from '../terminal.ts';
import { PORT_CHANNEL, PORT_PROTOCOL } from '../../kube/channelprotocol.ts';
import { printable } from '../text.ts';
import { SCREEN_PORT } from '../../api/v1alpha1/names.ts';

/** Address that only programs on this computer can reach. */
const LOOPBACK = '127.0.0.1';
/** Largest number of connections to one local port at the same time. The host allows even fewer connections to one VM. */
const CONNECTIONS = 64;

/**
 * Forwards the ports until the user ends the command.
 *
 * @throws CommandError when a port is in use, or when the VM does not exist any more; ApiError, for example when the user lacks rights.
 */
export async function portForward(
  terminal: Terminal,
  globals: Globals,
  { name, pairs }: { name: string; pairs: readonly PortPair[] },
): Promise<void> {
  await withCluster(terminal, globals, async (cluster) => {
    const vm = await runningVM(cluster, name, terminal.signal);
    await using forwards = new Forwards(terminal, cluster, vm);
    for (const pair of pairs) {
      const port = await forwards.open(pair);
      terminal.out(`Forwarding ${LOOPBACK}:${port} to port ${pair.remote} of VM ${name}\n`);
    }
    await forwards.ended();
  });
}

/** Carries one connection over the standard input and output, for programs like ssh. */
export async function forwardInput(
  terminal: Terminal,
  globals: Globals,
  { name, port }: { name: string; port: number },
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    await runningVM(cluster, name, signal);
    await carry(cluster, { name, port }, { from: process.stdin, to: process.stdout }, signal);
  });
}

/** Ports of this computer that lead to one VM. */
class Forwards implements AsyncDisposable {
  readonly #terminal: Terminal;
  readonly #cluster: UserCluster;
  readonly #vm: VM;
  readonly #servers: Server[] = [];
  readonly #stop = new AbortController();
  readonly #open = new Set<Promise<void>>();

  constructor(terminal: Terminal, cluster: UserCluster, vm: VM) {
    this.#terminal = terminal;
    this.#cluster = cluster;
    this.#vm = vm;
    terminal.signal.addEventListener('abort', () => this.#stop.abort());
  }

  /** Listens on a port of this computer, and returns the port. @throws CommandError when the port cannot be used. */
  async open({ local, remote }: PortPair): Promise<number> {
    const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
      const carried = this.#carry(socket, remote);
      this.#open.add(carried);
      void carried.finally(() => this.#open.delete(carried));
    });
    server.maxConnections = CONNECTIONS;
    this.#servers.push(server);
    try {
      await once(server.listen(local, LOOPBACK), 'listening');
    } catch (error) {
      throw new CommandError(
        codeOf(error) === 'EADDRINUSE'
          ? `Port ${local} of this computer is in use. Choose another local port, or :${remote} for a free local port`
          : `Port ${local} of this computer: ${messageOf(error)}`,
      );
    }
    return (server.address() as AddressInfo).port;
  }

  /** Resolves when the user ends the command. @throws the error after which no connection can work. */
  async ended(): Promise<void> {
    const { signal } = this.#stop;
    if (!signal.aborted) {
      await once(signal, 'abort');
    }
    if (signal.reason instanceof FinalError) {
      throw signal.reason.cause;
    }
  }

  /** Ends the forwarding of all ports. Then {@link ended} resolves, as if the user had ended the command. */
  end(): void {
    this.#stop.abort();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    for (const server of this.#servers) {
      server.close();
    }
    await Promise.all(this.#open);
  }

  /** Carries one connection. Never rejects. */
  async #carry(socket: Socket, port: number): Promise<void> {
    const { signal } = this.#stop;
    // Without this listener, an error of the socket would end the process. Later, the pipelines in `carry` handle such errors.
    socket.on('error', () => undefined);
    const { name } = this.#vm.metadata;
    try {
      await this.#requireSameVM(signal);
      await carry(this.#cluster, { name, port }, { from: socket, to: socket }, signal);
    } catch (error) {
      if (!signal.aborted) {
        this.#tell(error);
      }
    } finally {
      socket.destroy();
    }
  }

  /**
   * Checks that the VM with this name is still the VM for which the forwarding began.
   *
   * @throws CommandError when the VM was replaced, does not exist or does not run; ApiError.
   */
  async #requireSameVM(signal: AbortSignal): Promise<void> {
    const { name, uid } = this.#vm.metadata;
    const { metadata } = await runningVM(this.#cluster, name, signal);
    if (metadata.uid !== uid) {
      throw new CommandError(
        `VM ${name} was deleted, and another VM has its name now. Connect again`,
        EXIT.notFound,
      );
    }
  }

  #tell(error: unknown): void {
    const { exitCode, message } = described(error);
    if (exitCode === EXIT.denied || exitCode === EXIT.notFound) {
      this.#stop.abort(new FinalError('', { cause: error }));
      return;
    }
    this.#terminal.err(`error: ${message}\n`);
  }
}

/** Error after which no connection can work any more, so the forwarding of all ports ends. `cause` is the error for the user. */
class FinalError extends Error {
  override readonly name = 'FinalError';
}

/** Length in bytes of the port number at the beginning of each channel. */
const PORT_BYTES = 2;
/**
 * Time without data after which a half-open connection ends. A connection is half-open if one end has closed its direction and the other
 * end has not. The protocol cannot tell the guest that the caller has closed its direction, so the guest might never close its direction.
 * Guests usually answer within this time.
 */
const HALF_OPEN_MILLISECONDS = 10_000;
/** Close code that a WebSocket reports if the connection is lost before either end has closed it. */
const LOST = 1006;

interface Ends {
  readonly from: Readable;
  readonly to: Writable;
}

/**
 * Carries the data of one connection until both ends have closed it.
 *
 * @throws CommandError with the message of the host, or when the connection is lost; ApiError; the signal's reason when the signal aborts.
 */
async function carry(
  cluster: UserCluster,
  { name, port }: { name: string; port: number },
  { from, to }: Ends,
  signal: AbortSignal,
): Promise<void> {
  const path = streamPath(cluster, name, 'portforward', [['ports', port]]);
  const numbers = Object.values(PORT_CHANNEL);
  const request = { path, protocol: PORT_PROTOCOL, numbers, signal };
  const channels = await cluster.watches.channels(request).catch((error: unknown) => {
    throw withoutPod(error, name);
  });
  const data = channels.channel(PORT_CHANNEL.data);
  let isOver = false;
  const over = (): void => {
    isOver = true;
    channels.close();
    from.destroy();
  };
  const timer = new HalfOpenTimer(over);
  const text = readMessage(channels.channel(PORT_CHANNEL.error), PORT_BYTES);
  const sent = pipeline(from, data).finally(() => timer.start());
  const received = pipeline(
    data,
    withoutPort(() => timer.used()),
    to,
  ).finally(() => {
    // If `from` and `to` are the same socket, this code must not destroy the socket. Otherwise the program at the other end would lose data
    // that it has not read yet.
    if ((from as unknown) !== to) {
      over();
    }
    timer.start();
  });
  const [up, down] = await Promise.allSettled([sent, received]);
  timer.stop();
  // If one direction failed, the program at the caller's end already sees the error. Therefore this function does not also report a lost
  // connection.
  isOver ||= up.status === 'rejected' || down.status === 'rejected';
  channels.close();
  const [{ code }, message] = await Promise.all([channels.ended, text]);
  signal.throwIfAborted();
  if (message !== '') {
    throw new CommandError(printable(message));
  }
  if (code === LOST && !isOver) {
    throw new CommandError(`The connection to VM ${name} was lost`, EXIT.noAnswer);
  }
}

/** Ends a half-open connection after {@link HALF_OPEN_MILLISECONDS} without data. */
class HalfOpenTimer {
  readonly #over: () => void;
  #timer: NodeJS.Timeout | undefined;

  constructor(over: () => void) {
    this.#over = over;
  }

  start(): void {
    this.#timer ??= setTimeout(this.#over, HALF_OPEN_MILLISECONDS);
  }

  used(): void {
    this.#timer?.refresh();
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}

/** Returns a stream that drops the port number at the beginning. It calls `onData` for each piece of data. */
function withoutPort(onData: () => void = () => undefined): Transform {
  let left = PORT_BYTES;
  return new TransformStream({
    transform(chunk: Buffer, _, done) {
      const skipped = Math.min(left, chunk.length);
      left -= skipped;
      onData();
      done(null, chunk.subarray(skipped));
    },
  });
}

interface Viewer {
  readonly program: string;
  readonly argument: (port: number) => string;
  /** Whether the program runs until the user closes the viewer. */
  readonly stays: boolean;
}

const address = (port: number): string => `vnc://127.0.0.1:${port}`;
/** Viewers in the order in which they are tried. */
const VIEWERS: readonly Viewer[] = [
  // `vncviewer` reads a number after two colons as a port. It reads a number after one colon as the number of a display.
  { program: 'vncviewer', argument: (port) => `127.0.0.1::${port}`, stays: true },
  { program: 'remote-viewer', argument: address, stays: true },
  { program: process.platform === 'darwin' ? 'open' : 'xdg-open', argument: address, stays: false },
];

/**
 * Opens a viewer, and writes the address of the screen for other viewers. Resolves when the user closes the viewer or ends this command.
 * Some programs only start a viewer, and then end at once. The end of such a program does not end this command.
 */
export async function vnc(terminal: Terminal, globals: Globals, name: string): Promise<void> {
  await withCluster(terminal, globals, async (cluster) => {
    const vm = await runningVM(cluster, name, terminal.signal);
    await using forwards = new Forwards(terminal, cluster, vm);
    const port = await forwards.open({ local: 0, remote: SCREEN_PORT });
    terminal.out(`The screen of VM ${name} is at ${address(port)}\n`);
    const viewer = hasScreen(terminal) ? await openViewer(port) : undefined;
    if (viewer === undefined) {
      terminal.err(
        'No viewer was found. Open this address in a VNC viewer. Press Ctrl+C to end this command\n',
      );
    } else if (viewer.stays) {
      void viewer.ended.then(() => forwards.end());
    }
    await forwards.ended();
  });
}

/** Reports whether a viewer can show a window on this computer. */
function hasScreen({ environment }: Terminal): boolean {
  const { DISPLAY: x11 = '', WAYLAND_DISPLAY: wayland = '' } = environment;
  return process.platform === 'darwin' || x11 + wayland !== '';
}

/** Starts the first viewer that exists. The viewer can run longer than this command. The result is undefined if no viewer exists. */
async function openViewer(port: number): Promise<{ stays: boolean; ended: Promise<unknown> } | undefined> {
  for (const { program, argument, stays } of VIEWERS) {
    const child = spawn(program, [argument(port)], { stdio: 'ignore' });
    try {
      await once(child, 'spawn');
      // With `unref`, this command can end before the viewer, for example after the VM was deleted.
      child.unref();
      return { stays, ended: once(child, 'exit') };
    } catch {
      // This viewer cannot be started, so the loop tries the next one.
    }
  }
  return undefined;
}
