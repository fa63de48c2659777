/**
 * A loopback port whose connections begin in a guest. The guest's SSH server forwards them, so they have the address and the network of the
 * guest.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { sshOptions } from '../../hack/login.ts';
import { waitFor } from '../../hack/wait.ts';

/** Time limit for the key exchange with an emulated guest. */
const LOGIN = { deadlineMilliseconds: 60_000 };

export interface TunnelOptions {
  /** Network namespace in which ssh runs (`ip netns`). */
  namespace: string;
  /** Where the guest's SSH server answers. */
  server: { address: string; port: number };
  /** Path of the private key of root in the guest. */
  key: string;
  /** Port on the loopback address of the namespace. */
  port: number;
  /** Address and port to which the guest connects. */
  target: string;
}

export class GuestTunnel implements AsyncDisposable {
  readonly #ssh: ChildProcess;

  private constructor(ssh: ChildProcess) {
    this.#ssh = ssh;
  }

  /** Resolves when the port accepts connections. */
  static async open({ namespace, server, key, port, target }: TunnelOptions): Promise<GuestTunnel> {
    const forward = ['-N', '-o', 'ExitOnForwardFailure=yes', '-L', `127.0.0.1:${port}:${target}`];
    const inside = [`--net=/run/netns/${namespace}`];
    const login = [...sshOptions(key, server.port), ...forward, `root@${server.address}`];
    const tunnel = new GuestTunnel(spawn('nsenter', [...inside, 'ssh', ...login], { stdio: 'inherit' }));
    await waitFor(
      `a tunnel through the guest at port ${server.port}`,
      () => {
        if (tunnel.#ssh.exitCode !== null) {
          throw new Error(`ssh has ended with code ${tunnel.#ssh.exitCode}`);
        }
        const sockets = execFileSync('nsenter', [...inside, 'ss', '-Hltn', `sport = :${port}`], {
          encoding: 'utf8',
        });
        return sockets !== '';
      },
      LOGIN,
    );
    return tunnel;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#ssh.exitCode === null && this.#ssh.signalCode === null) {
      const ended = once(this.#ssh, 'exit');
      this.#ssh.kill('SIGKILL');
      await ended;
    }
  }
}
