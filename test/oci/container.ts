/** Containers of an unpacked image, run by runc as a kubelet would run them: unprivileged with a read-only root, or privileged. */
import { spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { waitFor } from '../../hack/wait.ts';
import { type LogLine, readLogLines } from '../support/loglines.ts';
import type { ContainerHost } from './host.ts';
import type { UnpackedImage } from './image.ts';

/** Time that a kubelet gives a container to end, in milliseconds. */
const END_MILLISECONDS = 30_000;
/** Number of characters for a stack trace and some lines before it. */
const LOG_TAIL_CHARACTERS = 3_000;

export interface Mount {
  source: string;
  destination: string;
  writable?: boolean;
}

export interface ContainerOptions {
  /** Name of the container and of its log in the host's folder. */
  name: string;
  image: UnpackedImage;
  /** Arguments that replace those of the image. */
  arguments?: readonly string[];
  environment?: Readonly<Record<string, string>>;
  mounts: readonly Mount[];
  /** If true, the container has all rights, devices and processes of the host. Otherwise it has none of them, and cannot write anywhere. */
  privileged?: boolean;
}

export class Container {
  readonly logFile: string;
  /** Time of the request to the runtime, in milliseconds since 1970. */
  readonly askedAt: number;
  readonly #host: ContainerHost;
  readonly #options: ContainerOptions;
  readonly #bundle: string;
  #pid = 0;

  private constructor(host: ContainerHost, options: ContainerOptions) {
    this.#host = host;
    this.#options = options;
    this.#bundle = join(host.directory, 'containers', options.name);
    this.logFile = join(host.directory, `${options.name}.log`);
    this.askedAt = Date.now();
  }

  /** Resolves when the first process runs. It uses the network of this machine, in which the cluster is. */
  static async start(host: ContainerHost, options: ContainerOptions): Promise<Container> {
    const container = new Container(host, options);
    await mkdir(container.#bundle, { recursive: true });
    await writeFile(join(container.#bundle, 'config.json'), JSON.stringify(runtimeConfig(options)));
    await container.#run();
    return container;
  }

  /** Returns the lines of the log that are JSON. */
  log(): LogLine[] {
    return readLogLines(readFileSync(this.logFile, 'utf8'));
  }

  /** Returns the end of the log, for messages, because the file is removed with the cluster. */
  readLogTail(): string {
    return readFileSync(this.logFile, 'utf8').slice(-LOG_TAIL_CHARACTERS);
  }

  /** Reads a file in `/proc` of the first process. */
  async proc(file: string): Promise<string> {
    return await readFile(this.#host.proc(String(this.#pid), file), 'utf8');
  }

  /** Asks the container to end, as a kubelet does. Resolves when its first process has ended. */
  async stop(): Promise<void> {
    await this.#runc('kill', this.#id, 'TERM');
    const ended = async (): Promise<boolean> => {
      const state = JSON.parse(await this.#runc('state', this.#id)) as { status: string };
      return state.status === 'stopped';
    };
    await waitFor(`container ${this.#options.name} to end`, ended, {
      deadlineMilliseconds: END_MILLISECONDS,
    });
  }

  /** Kills the control group of the container, as runtimes do, and removes its files. */
  async remove(): Promise<void> {
    await this.#runc('delete', '--force', this.#id);
    await rm(this.#bundle, { recursive: true, force: true });
  }

  get #id(): string {
    return `berth-${process.pid}-${this.#options.name}`;
  }

  async #run(): Promise<void> {
    const pidFile = join(this.#bundle, 'pid');
    await this.#runc('run', '--detach', '--pid-file', pidFile, '--bundle', this.#bundle, this.#id);
    this.#pid = Number(await readFile(pidFile, 'utf8'));
  }

  /** Returns the output of runc. The output of the container is in the log. */
  async #runc(...parameters: string[]): Promise<string> {
    const root = ['--root', join(this.#host.directory, 'runc')];
    const isRun = parameters[0] === 'run';
    const log = openSync(this.logFile, 'a', 0o600);
    try {
      const [file, ...rest] = this.#host.command('runc', ...root, ...parameters);
      const child = spawn(file, rest, { stdio: ['ignore', isRun ? log : 'pipe', log] });
      const output = child.stdout === null ? '' : text(child.stdout);
      const code = await new Promise<number | null>((resolve, reject) => {
        child.once('error', reject);
        child.once('close', resolve);
      });
      if (code !== 0) {
        throw new Error(`runc ${parameters.join(' ')} ended with ${code} (see ${this.logFile})`);
      }
      return await output;
    } finally {
      closeSync(log);
    }
  }
}

function runtimeConfig({ image, privileged = false, ...options }: ContainerOptions): object {
  const [uid = 0, gid = 0] = (image.config.User ?? '0:0').split(':').map(Number);
  const capabilities = privileged ? ownCapabilities() : [];
  const kinds = ['bounding', 'effective', 'permitted', 'inheritable'];
  const environment = Object.entries(options.environment ?? {}).map(([name, value]) => `${name}=${value}`);
  return {
    ociVersion: '1.0.2',
    process: {
      user: { uid, gid },
      args: [...image.config.Entrypoint, ...(options.arguments ?? image.config.Cmd)],
      env: [...image.config.Env, ...environment],
      cwd: '/',
      capabilities: Object.fromEntries(kinds.map((kind) => [kind, capabilities])),
      noNewPrivileges: !privileged,
    },
    root: { path: image.root, readonly: !privileged },
    mounts: [
      ...(privileged ? PRIVILEGED_MOUNTS : UNPRIVILEGED_MOUNTS),
      ...options.mounts.map(({ source, destination, writable = false }) => ({
        type: 'bind',
        source,
        destination,
        options: ['rbind', writable ? 'rw' : 'ro'],
      })),
    ],
    linux: {
      // Both kinds share the host's network, because the test's cluster is at a loopback address.
      namespaces: (privileged ? ['mount'] : ['mount', 'pid', 'ipc', 'uts']).map((type) => ({ type })),
      resources: privileged ? { devices: [{ allow: true, access: 'rwm' }] } : {},
      maskedPaths: privileged ? [] : ['/proc/kcore', '/proc/keys', '/proc/timer_list'],
      readonlyPaths: privileged ? [] : ['/proc/sys', '/proc/sysrq-trigger'],
    },
  };
}

const PROC = { destination: '/proc', type: 'proc', source: 'proc' };
const UNPRIVILEGED_MOUNTS = [
  PROC,
  {
    destination: '/dev',
    type: 'tmpfs',
    source: 'tmpfs',
    options: ['nosuid', 'strictatime', 'mode=755', 'size=64k'],
  },
];
const PRIVILEGED_MOUNTS = [
  PROC,
  { destination: '/dev', type: 'bind', source: '/dev', options: ['rbind', 'rw'] },
  { destination: '/sys', type: 'sysfs', source: 'sysfs', options: ['nosuid', 'noexec', 'nodev', 'rw'] },
  // Like in a cluster, the container sees only its own control group.
  { destination: '/sys/fs/cgroup', type: 'cgroup', source: 'cgroup', options: ['nosuid', 'noexec', 'rw'] },
];

/** Names of capabilities in the order of their bits in the kernel. */
const CAPABILITIES = (
  'CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE ' +
  'NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN ' +
  'SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE ' +
  'MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE'
).split(' ');

/**
 * Returns the capabilities of this machine's root, which a privileged container gets. If this machine is a container, these are not all.
 */
function ownCapabilities(): string[] {
  const mask = /^CapBnd:\t([0-9a-f]+)$/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1] ?? '0';
  const bits = BigInt(`0x${mask}`);
  return CAPABILITIES.filter((_, bit) => (bits >> BigInt(bit)) & 1n).map((name) => `CAP_${name}`);
}
