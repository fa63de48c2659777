/**
 * Programs of the distribution that the demo and the tests need. What is missing is installed where apt can do it:
 * unasked in CI, after a question on a terminal. Else everything that is missing is listed at once.
 */
import { spawnSync } from 'node:child_process';
import { accessSync, constants, existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { createInterface } from 'node:readline/promises';

/** A package, and the program or file by which one sees that it is there, whatever the distribution calls it. */
const PACKAGES: Readonly<Record<string, string>> = {
  'qemu-system-x86': 'qemu-system-x86_64',
  'qemu-system-arm': 'qemu-system-aarch64',
  'qemu-efi-aarch64': '/usr/share/AAVMF/AAVMF_CODE.fd',
  'qemu-utils': 'qemu-img',
  'dnsmasq-base': 'dnsmasq',
  nftables: 'nft',
  iproute2: 'ip',
  conntrack: 'conntrack',
  prometheus: 'promtool',
  'docker-registry': 'docker-registry',
  skopeo: 'skopeo',
  zstd: 'zstd',
  e2fsprogs: 'mkfs.ext4',
  'xz-utils': 'xz',
  'busybox-static': 'busybox',
  xorriso: 'xorriso',
  mtools: 'mcopy',
  'grub-common': 'grub-mkrescue',
  'grub-pc-bin': '/usr/lib/grub/i386-pc/normal.mod',
  curl: 'curl',
  'docker.io': 'dockerd',
  containerd: 'containerd',
  runc: 'runc',
  buildah: 'buildah',
  mmdebstrap: 'mmdebstrap',
  'containernetworking-plugins': '/usr/lib/cni/bridge',
};

/** What the demo asks for; it runs no guest of the other architecture and touches no network of the machine. */
const DEMO = ['qemu-utils', 'busybox-static', 'xorriso', 'mtools', 'grub-common', 'curl'];
const DEMO_BY_ARCHITECTURE: Readonly<Record<string, readonly string[]>> = {
  amd64: ['qemu-system-x86', 'grub-pc-bin'],
  arm64: ['qemu-system-arm', 'qemu-efi-aarch64'],
};

/** Where programs are that a user's PATH often leaves out. */
const SYSTEM_FOLDERS = ['/usr/sbin', '/sbin', '/usr/local/sbin'];

export type Purpose = { kind: 'tests' } | { kind: 'demo'; architecture: 'amd64' | 'arm64' };

/** Makes sure that everything is there, or throws an Error that lists what is missing and how to install it. */
export async function ensurePrerequisites(purpose: Purpose): Promise<void> {
  const missing = missingPackages(purpose);
  if (missing.length === 0) return;
  if (await mayInstall(missing)) installPackages(missing);
  const still = missingPackages(purpose);
  if (still.length === 0) return;
  throw new Error(
    [
      `Missing on this machine: ${still.map((name) => `${name} (${PACKAGES[name]})`).join(', ')}`,
      `Install them, on Debian or Ubuntu with: sudo apt-get install --no-install-recommends ${still.join(' ')}`,
    ].join('\n'),
  );
}

function missingPackages(purpose: Purpose): string[] {
  const wanted =
    purpose.kind === 'tests'
      ? Object.keys(PACKAGES)
      : [...DEMO, ...(DEMO_BY_ARCHITECTURE[purpose.architecture] ?? [])];
  return wanted.filter((name) => !isPresent(PACKAGES[name] ?? name));
}

function isPresent(what: string): boolean {
  if (what.startsWith('/')) return existsSync(what);
  const folders = [...(process.env['PATH'] ?? '').split(delimiter), ...SYSTEM_FOLDERS];
  return folders.some((folder) => isExecutable(join(folder, what)));
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    // Not there or not ours to run: either way the next folder is asked.
    return false;
  }
}

async function mayInstall(missing: readonly string[]): Promise<boolean> {
  if (!isPresent('apt-get')) return false;
  const isRoot = process.getuid?.() === 0;
  if (process.env['CI'] === 'true') return isRoot;
  if (!process.stdin.isTTY || !process.stdout.isTTY) return false;
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  try {
    const answer = await terminal.question(
      `Missing: ${missing.join(', ')}. Install with apt${isRoot ? '' : ' (sudo)'}? [y/N] `,
    );
    return /^y(es)?$/i.test(answer.trim());
  } finally {
    terminal.close();
  }
}

/** What fails to install is found missing afterwards. */
function installPackages(names: readonly string[]): void {
  const install = ['install', '-y', '--no-install-recommends', ...names];
  for (const args of [['update', '-q'], install]) {
    const command = process.getuid?.() === 0 ? ['apt-get'] : ['sudo', 'apt-get'];
    const [file = 'apt-get', ...rest] = [...command, ...args];
    const { error } = spawnSync(file, rest, {
      stdio: 'inherit',
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
    });
    if (error !== undefined) throw error;
  }
}

if (import.meta.main) {
  try {
    await ensurePrerequisites({ kind: 'tests' });
  } catch (error) {
    process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
    process.exitCode = 1;
  }
}
