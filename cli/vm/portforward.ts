/** Forwards ports of this computer to ports of a VM. */
import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { codeOf, messageOf } from '../../base/errors.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import { CommandError, described, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { runningVM } from '../streams/machine.ts';
import { carry } from '../streams/ports.ts';
import type { Terminal } from '../terminal.ts';
import type { PortPair } from './portpair.ts';

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
export class Forwards implements AsyncDisposable {
  readonly #terminal: Terminal;
  readonly #cluster: Cluster;
  readonly #vm: VM;
  readonly #servers: Server[] = [];
  readonly #stop = new AbortController();
  readonly #open = new Set<Promise<void>>();

  constructor(terminal: Terminal, cluster: Cluster, vm: VM) {
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
