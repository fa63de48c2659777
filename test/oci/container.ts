/** Containers of an unpacked image, by runc, as a kubelet would have them run: unprivileged with a read-only root, or privileged. */
import { spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { waitFor } from '../../hack/wait.ts';
import type { ContainerHost } from './host.ts';
import type { UnpackedImage } from './image.ts';

/** What a kubelet gives a container to end in. */
const END_MILLISECONDS = 30_000;
/** A stack and some lines before it. */
const LAST_WORDS_CHARACTERS = 3_000;

export interface Mount {
  source: string;
  destination: string;
  writable?: boolean;
}

export interface ContainerOptions {
  /** Names its log in the host's folder. */
  name: string;
  image: UnpackedImage;
  /** In place of the image's own. */
  arguments?: readonly string[];
  environment?: Readonly<Record<string, string>>;
  mounts: readonly Mount[];
  /** With all rights, devices and processes of the host; else with none of them, and nowhere to write. */
  privileged?: boolean;
}

export class Container {
  readonly logFile: string;
  /** When the runtime was asked, in milliseconds since 1970. */
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

  /** Resolves when its first process runs, in the network of this machine, where the cluster is. */
  static async start(host: ContainerHost, options: ContainerOptions): Promise<Container> {
    const container = new Container(host, options);
    await mkdir(container.#bundle, { recursive: true });
    await writeFile(join(container.#bundle, 'config.json'), JSON.stringify(runtimeConfig(options)));
    await container.#run();
    return container;
  }

  /** Lines of its log that are JSON. */
  log(): { time: number; level: number; msg: string }[] {
    const lines = readFileSync(this.logFile, 'utf8').split('\n');
    return lines
      .filter((line) => line.startsWith('{'))
      .map((line) => JSON.parse(line) as { time: number; level: number; msg: string });
  }

  /** The end of its log, for messages: the file goes with the cluster. */
  lastWords(): string {
    return readFileSync(this.logFile, 'utf8').slice(-LAST_WORDS_CHARACTERS);
  }

  /** A file in `/proc` of its first process. */
  async proc(file: string): Promise<string> {
    return await readFile(this.#host.proc(String(this.#pid), file), 'utf8');
  }

  /** As a kubelet asks it to; resolves when its first process has ended. */
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

  /** Kills all of the container's control group, as runtimes do, and takes away what was made for it. */
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

  /** What it writes to its output. What a container writes, which goes where runc's does, is in the log. */
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
      // The host's network is shared in both: the test's cluster is at loopback.
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
  // The container's own, as in a cluster: what is outside of it is not to be seen here.
  { destination: '/sys/fs/cgroup', type: 'cgroup', source: 'cgroup', options: ['nosuid', 'noexec', 'rw'] },
];

/** In the kernel's order of their bits. */
const CAPABILITIES = (
  'CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE ' +
  'NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN ' +
  'SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE ' +
  'MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE'
).split(' ');

/** Privileged is what this machine's root may; where a machine itself is a container, that is not everything. */
function ownCapabilities(): string[] {
  const mask = /^CapBnd:\t([0-9a-f]+)$/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1] ?? '0';
  const bits = BigInt(`0x${mask}`);
  return CAPABILITIES.filter((_, bit) => (bits >> BigInt(bit)) & 1n).map((name) => `CAP_${name}`);
}
