/**
 * Two connected network namespaces for a NAT test. The network under test runs in `host`, and `world` is outside of it. The
 * machine's own network is not changed. All processes in the namespaces end with the test.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { codeOf } from '../../base/errors.ts';
import { forbiddenNetworks, METADATA_NETWORKS } from '../../agent/networkdriver.ts';
import { portRulesSchema } from '../../api/v1alpha1/ports.ts';
import type { NatOptions } from '../../agent/network/nat/layout.ts';
import type { Answer, actions, Request } from './natworker.ts';

type Actions = typeof actions;

/** Programs that the tests need, each with the name of its package. */
const PROGRAMS = {
  ip: 'iproute2',
  nft: 'nftables',
  conntrack: 'conntrack',
  dnsmasq: 'dnsmasq-base',
  'qemu-system-x86_64': 'qemu-system-x86',
};

/** Returns the reason why the network cannot be tested on this machine. The result is undefined if it can. */
export function whyNotHere(): string | undefined {
  if (process.getuid?.() !== 0) {
    return 'tests in network namespaces of their own need root';
  }
  for (const [program, packageName] of Object.entries(PROGRAMS)) {
    try {
      execFileSync('which', [program], { stdio: 'ignore' });
    } catch {
      return `tests of the network need ${program} (package ${packageName})`;
    }
  }
  return undefined;
}

/** A worker process in a namespace. */
export class Worker {
  readonly process: ChildProcess;
  readonly #waiting = new Map<number, { resolve: (result: never) => void; reject: (error: Error) => void }>();
  #next = 0;

  /** Starts a worker in the namespace that this file holds. */
  constructor(namespace: string) {
    const script = new URL('./natworker.ts', import.meta.url).pathname;
    this.process = spawn('nsenter', [`--net=${namespace}`, process.execPath, script], {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
    this.process.on('message', (answer: Answer) => {
      const waiting = this.#waiting.get(answer.id);
      this.#waiting.delete(answer.id);
      if ('error' in answer) {
        waiting?.reject(Object.assign(new Error(answer.error.message), answer.error));
      } else {
        waiting?.resolve(answer.result as never);
      }
    });
  }

  do<A extends keyof Actions>(action: A, ...args: Parameters<Actions[A]>): ReturnType<Actions[A]> {
    const id = this.#next++;
    const answered = new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
    this.process.send({ id, action, args } satisfies Request);
    return answered as ReturnType<Actions[A]>;
  }

  async kill(): Promise<void> {
    if (this.process.exitCode !== null || this.process.signalCode !== null) {
      return;
    }
    const ended = once(this.process, 'exit');
    this.process.kill('SIGKILL');
    await ended;
  }
}

/** Networks of Pods and Services of a cluster to which the host belongs. */
export const CLUSTER_NETWORKS = ['10.244.0.0/16', '10.96.0.0/12'];
export const CONNECTIONS_PER_GUEST = 200;
/** Time limit for a page that is blocked, or that is requested again and again, in milliseconds. A blocked request takes the whole time. */
export const BLOCKED_MILLISECONDS = 1_500;
/** Time limit for an answer or a connection that must come, in milliseconds. It is long, because the machine may be busy. */
export const OPEN_MILLISECONDS = 20_000;
/** Linux users of hypervisors in the form of nftables. */
const MACHINE_USERS = '1900000000-1900000099';
export const HOST_ADDRESS = '192.0.2.1';
export const WORLD_ADDRESS = '192.0.2.2';

export class NatWorld implements AsyncDisposable {
  readonly directory: string;
  readonly host: string;
  readonly world: string;
  #parts: AsyncDisposableStack;

  private constructor(name: string, parts: AsyncDisposableStack) {
    this.#parts = parts;
    this.directory = mkdtempSync(join(tmpdir(), `berth-${name}-`));
    parts.defer(() => rmSync(this.directory, { recursive: true, force: true }));
    parts.defer(() => releaseNamespaces(join(this.directory, 'network/namespaces')));
    chmodSync(this.directory, 0o755); // dnsmasq reads its files as the user nobody.
    this.host = `${name}-${process.pid}-h`;
    this.world = `${name}-${process.pid}-w`;
  }

  static async make(name: string): Promise<NatWorld> {
    await using parts = new AsyncDisposableStack();
    const net = new NatWorld(name, parts);
    net.#connect();
    net.#parts = parts.move();
    return net;
  }

  #connect(): void {
    for (const namespace of [this.host, this.world]) {
      execFileSync('ip', ['netns', 'add', namespace]);
      this.#parts.defer(() => {
        killAll(namespace);
        execFileSync('ip', ['netns', 'delete', namespace]);
      });
    }
    // A new namespace begins with the machine's own setting, which other programs may have changed.
    this.inHost('sysctl', '--quiet', '--write', 'net.ipv4.ip_forward=0');
    this.inHost('ip', 'link', 'set', 'lo', 'up');
    this.inHost('ip', 'link', 'add', 'uplink', 'type', 'veth', 'peer', 'name', 'uplink', 'netns', this.world);
    this.inHost('ip', 'address', 'add', `${HOST_ADDRESS}/24`, 'dev', 'uplink');
    this.inHost('ip', 'link', 'set', 'uplink', 'up');
    this.#inside(this.world, 'ip', ['link', 'set', 'lo', 'up']);
    this.#inside(this.world, 'ip', ['address', 'add', `${WORLD_ADDRESS}/24`, 'dev', 'uplink']);
    this.#inside(this.world, 'ip', ['link', 'set', 'uplink', 'up']);
  }

  natOptions(): NatOptions {
    return {
      directory: join(this.directory, 'network'),
      runtimeDirectory: join(this.directory, 'run'),
      bridge: 'berth0',
      table: 'berth',
      subnet: '10.213.0.0/20',
      probeSubnet: '198.18.213.0/24',
      hostAddress: HOST_ADDRESS,
      forbidden: forbiddenNetworks({ guestsMayNotReach: METADATA_NETWORKS, clusterCIDRs: CLUSTER_NETWORKS })
        .ipv4,
      connectionsPerGuest: CONNECTIONS_PER_GUEST,
      users: [MACHINE_USERS],
      ports: portRulesSchema.parse({}),
      dnsServers: [WORLD_ADDRESS],
    };
  }

  worker(where: 'host' | 'world'): Worker {
    return this.workerIn(`/run/netns/${this[where]}`);
  }

  /** Starts a worker in the namespace that this file holds. */
  workerIn(path: string): Worker {
    return this.#parts.adopt(new Worker(path), (worker) => worker.kill());
  }

  /** Returns the standard output of a command in the host's namespace. */
  inHost(file: string, ...args: string[]): string {
    return this.#inside(this.host, file, args);
  }

  /** Returns the standard output of a command in the world's namespace. */
  inWorld(file: string, ...args: string[]): string {
    return this.#inside(this.world, file, args);
  }

  spawnInHost(file: string, args: string[]): ChildProcess {
    const enter = [`--net=/run/netns/${this.host}`, file, ...args];
    return spawn('nsenter', enter, { stdio: ['ignore', 'ignore', 'inherit'] });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync();
  }

  #inside(namespace: string, file: string, args: string[]): string {
    return execFileSync('nsenter', [`--net=/run/netns/${namespace}`, file, ...args], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'],
    });
  }
}

/** Unmounts the namespaces that a failed test left in a folder of the network. A mounted file cannot be removed. */
function releaseNamespaces(folder: string): void {
  for (const name of existsSync(folder) ? readdirSync(folder) : []) {
    try {
      execFileSync('umount', ['--lazy', join(folder, name)], { stdio: 'ignore' });
    } catch {
      // Nothing is mounted there.
    }
  }
}

/** Kills all processes in the test's own namespace. A failed test leaves guests, and processes that intentionally outlive an agent. */
export function killAll(namespace: string): void {
  const pids = execFileSync('ip', ['netns', 'pids', namespace], { encoding: 'utf8' });
  for (const pid of pids.split('\n').filter((one) => one !== '')) {
    try {
      process.kill(Number(pid), 'SIGKILL');
    } catch (error) {
      if (codeOf(error) !== 'ESRCH') {
        throw error;
      }
    }
  }
}
