/**
 * Checks the packages of the distribution that the demo and the tests need. Missing packages are installed with apt-get. On a terminal the
 * user must agree first; without a terminal or with CI=true there is no question. Missing packages that cannot be installed are all listed.
 */
import { spawnSync } from 'node:child_process';
import { accessSync, constants, existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { createInterface } from 'node:readline/promises';
import { isCloudMade } from './cloud.ts';
import { type GuestArchitecture, isGuestMade } from './guest.ts';
import { isBaseMade } from './images/base.ts';
import { runCommand } from './command.ts';

/** Packages, each with one of its programs or files. This file shows that the package is present, whatever name the distribution uses. */
type Packages = Readonly<Record<string, string>>;

const MACHINES: Readonly<Record<GuestArchitecture, Packages>> = {
  amd64: { 'qemu-system-x86': 'qemu-system-x86_64', 'qemu-utils': 'qemu-img', 'perl-base': 'perl' },
  arm64: {
    'qemu-system-arm': 'qemu-system-aarch64',
    'qemu-efi-aarch64': '/usr/share/AAVMF/AAVMF_CODE.fd',
    'qemu-utils': 'qemu-img',
    'perl-base': 'perl',
  },
};

/** An agent that runs as root uses nftables to separate guests of the `user` network from its host. */
const ROOT_HOST: Packages = { nftables: 'nft' };

/** Packages that build a guest image. A built image is in the cache. */
const GUEST_BUILDING: Packages = { xorriso: 'xorriso', mtools: 'mcopy', 'grub-common': 'grub-mkstandalone' };

/** Packages that build the base of container images. A built base is in the cache. */
const BASE_BUILDING: Packages = { mmdebstrap: 'mmdebstrap' };

/** Packages that build the cloud image of the tests. A built image is in the cache. */
const CLOUD_BUILDING: Packages = { mmdebstrap: 'mmdebstrap', 'grub-common': 'grub-mkimage' };

/** The demo and the tests log in to guests, and call the HTTP API with the commands of the pages. */
const CLIENTS: Packages = { 'openssh-client': 'ssh', curl: 'curl' };

/** Installs the emulator of a server's controller for the demo and the tests, and schemathesis for the tests. */
const PYTHON: Packages = { 'python3-pip': 'pip3' };

const TESTS: Packages = {
  ...ROOT_HOST,
  'dnsmasq-base': 'dnsmasq',
  iproute2: 'ip',
  conntrack: 'conntrack',
  prometheus: 'promtool',
  'docker-registry': 'docker-registry',
  skopeo: 'skopeo',
  zstd: 'zstd',
  e2fsprogs: 'mkfs.ext4',
  'xz-utils': 'xz',
  'busybox-static': 'busybox',
  adb: 'adb',
  jq: 'jq',
  openipmi: 'ipmi_sim',
  ipmitool: 'ipmitool',
  'docker.io': 'dockerd',
  containerd: 'containerd',
  runc: 'runc',
  buildah: 'buildah',
  'containernetworking-plugins': '/usr/lib/cni/bridge',
  tmux: 'tmux',
  zsh: 'zsh',
  fish: 'fish',
};

/** Folders with programs that a user's PATH often lacks. */
const SYSTEM_FOLDERS = ['/usr/sbin', '/sbin', '/usr/local/sbin'];

/** Time limit of the wait for apt's lock. After its start, a machine installs its own updates for some minutes. */
const PACKAGE_LOCK_SECONDS = 300;

export type Purpose = { kind: 'tests' } | { kind: 'demo'; architecture: GuestArchitecture };

/**
 * Ensures that all packages are present.
 *
 * @throws Error that lists the missing packages and the command that installs them.
 */
export async function ensurePrerequisites(purpose: Purpose): Promise<void> {
  const wanted = await wantedPackages(purpose);
  const missing = missingOf(wanted);
  if (missing.length === 0) {
    return;
  }
  if (await mayInstall(missing)) {
    installPackages(missing);
  }
  const still = missingOf(wanted);
  if (still.length === 0) {
    return;
  }
  throw new Error(
    [
      `Missing on this machine: ${still.map((name) => `${name} (${wanted[name]})`).join(', ')}`,
      `On Debian or Ubuntu, install them with: sudo apt-get install --no-install-recommends ${still.join(' ')}`,
    ].join('\n'),
  );
}

/**
 * Returns the needed packages, each with one of its programs or files.
 *
 * @param asRoot whether the demo's host runs as root, because its network then needs other packages
 */
export async function wantedPackages(purpose: Purpose, asRoot = isRoot()): Promise<Packages> {
  const architectures: GuestArchitecture[] =
    purpose.kind === 'tests' ? ['amd64', 'arm64'] : [purpose.architecture];
  const use = purpose.kind;
  const guests = await Promise.all(architectures.map(async (one) => await isGuestMade(one, use)));
  const forTests = purpose.kind === 'tests';
  return {
    ...Object.assign({}, ...architectures.map((architecture) => MACHINES[architecture])),
    ...CLIENTS,
    ...PYTHON,
    ...(asRoot ? ROOT_HOST : {}),
    ...(guests.includes(false) ? GUEST_BUILDING : {}),
    ...(forTests ? TESTS : {}),
    ...(forTests && !(await isBaseMade()) ? BASE_BUILDING : {}),
    ...(forTests && !(await isCloudMade()) ? CLOUD_BUILDING : {}),
  };
}

function missingOf(packages: Packages): string[] {
  return Object.keys(packages).filter((name) => !isPresent(packages[name] ?? name));
}

function isPresent(what: string): boolean {
  if (what.startsWith('/')) {
    return existsSync(what);
  }
  const folders = [...(process.env['PATH'] ?? '').split(delimiter), ...SYSTEM_FOLDERS];
  return folders.some((folder) => isExecutable(join(folder, what)));
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    // The file is missing or not executable. In both cases the next folder is checked.
    return false;
  }
}

async function mayInstall(missing: readonly string[]): Promise<boolean> {
  if (!isPresent('apt-get')) {
    return false;
  }
  const names = missing.join(', ');
  const onTerminal = process.stdin.isTTY && process.stdout.isTTY && process.env['CI'] !== 'true';
  if (!onTerminal) {
    if (!isRoot() && !sudoAsksNothing()) {
      return false;
    }
    process.stdout.write(`Installing with apt-get: ${names}\n`);
    return true;
  }
  if (!isRoot() && !isPresent('sudo')) {
    return false;
  }
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  try {
    const answer = await terminal.question(
      `Missing: ${names}. Install them with ${isRoot() ? '' : 'sudo '}apt-get? [Y/n] `,
    );
    return /^(y|yes)?$/i.test(answer.trim());
  } finally {
    terminal.close();
  }
}

function isRoot(): boolean {
  return process.getuid?.() === 0;
}

function sudoAsksNothing(): boolean {
  return spawnSync('sudo', ['-n', 'true'], { stdio: 'ignore' }).status === 0;
}

/** Installs packages. A later check finds the packages whose installation failed. */
function installPackages(names: readonly string[]): void {
  const apt = [
    ...(isRoot() ? [] : ['sudo']),
    'env',
    'DEBIAN_FRONTEND=noninteractive',
    'apt-get',
    '-q',
    `-oDPkg::Lock::Timeout=${PACKAGE_LOCK_SECONDS}`,
  ];
  for (const args of [['update'], ['install', '-y', '--no-install-recommends', ...names]]) {
    const [file = 'apt-get', ...rest] = [...apt, ...args];
    const { error } = spawnSync(file, rest, { stdio: 'inherit' });
    if (error !== undefined) {
      throw error;
    }
  }
}

if (import.meta.main) {
  await runCommand(async () => await ensurePrerequisites({ kind: 'tests' }));
}
