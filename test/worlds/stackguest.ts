/**
 * A guest with the network stack of this machine's kernel, in a network namespace of its own. Two QEMUs without a machine pass frames
 * between the guest's tap on the host and a tap in the guest's namespace.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { waitFor } from '../../hack/wait.ts';
import { tapBackend } from './frameguest.ts';
import { killAll, type NatWorld, Worker } from './nat.ts';

export interface StackGuestOptions {
  net: NatWorld;
  name: string;
  /** Name of the guest's tap on the host. */
  tap: string;
  macAddress: string;
  address: string;
  gateway: string;
}

export class StackGuest implements AsyncDisposable {
  /** A process in the guest. */
  readonly worker: Worker;
  readonly #namespace: string;
  #parts: AsyncDisposableStack;

  private constructor(namespace: string, parts: AsyncDisposableStack) {
    this.#namespace = namespace;
    this.#parts = parts;
    this.worker = parts.adopt(new Worker(`/run/netns/${namespace}`), (worker) => worker.kill());
  }

  static async start({ net, name, tap, ...card }: StackGuestOptions): Promise<StackGuest> {
    await using parts = new AsyncDisposableStack();
    const namespace = `${net.host}-${name}`;
    execFileSync('ip', ['netns', 'add', namespace]);
    parts.defer(() => {
      killAll(namespace);
      execFileSync('ip', ['netns', 'delete', namespace]);
    });
    const path = join(net.directory, `${name}.sock`);
    rmSync(path, { force: true });
    const spawnInside = (file: string, args: string[]): ChildProcess =>
      spawn('ip', ['netns', 'exec', namespace, file, ...args], { stdio: ['ignore', 'ignore', 'inherit'] });
    parts.adopt(
      spawnHub(spawnInside, tapBackend('eth0'), `server=on,addr.type=unix,addr.path=${path}`),
      ended,
    );
    await waitFor('the tap in the guest', () => existsSync(path));
    const spawnOutside = (file: string, args: string[]): ChildProcess => net.spawnInHost(file, args);
    parts.adopt(
      spawnHub(spawnOutside, tapBackend(tap), `server=off,addr.type=unix,addr.path=${path}`),
      ended,
    );
    const guest = new StackGuest(namespace, parts);
    guest.run('ip', 'link', 'set', 'lo', 'up');
    guest.run('ip', 'link', 'set', 'eth0', 'address', card.macAddress, 'up');
    guest.run('ip', 'address', 'add', `${card.address}/20`, 'dev', 'eth0');
    guest.run('ip', 'route', 'add', 'default', 'via', card.gateway);
    guest.#parts = parts.move();
    return guest;
  }

  /** Runs a command in the guest and returns its standard output. */
  run(file: string, ...args: string[]): string {
    return execFileSync('ip', ['netns', 'exec', this.#namespace, file, ...args], { encoding: 'utf8' });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync();
  }
}

function spawnHub(
  start: (file: string, args: string[]) => ChildProcess,
  backend: string,
  stream: string,
): ChildProcess {
  const netdevs = [
    backend,
    `stream,id=stream,${stream}`,
    'hubport,id=h1,hubid=0,netdev=net',
    'hubport,id=h2,hubid=0,netdev=stream',
  ].flatMap((one) => ['-netdev', one]);
  return start('qemu-system-x86_64', ['-machine', 'none', '-display', 'none', '-nodefaults', ...netdevs]);
}

async function ended(qemu: ChildProcess): Promise<void> {
  if (qemu.exitCode === null && qemu.signalCode === null) {
    const exit = once(qemu, 'exit');
    qemu.kill('SIGKILL');
    await exit;
  }
}
