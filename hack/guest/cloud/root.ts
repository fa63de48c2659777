/** The root file system of the cloud guest: Debian's packages with cloud-init and the guest agent, as an image for clouds has them. */
import { mkdir, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../run.ts';

const SUITE = 'bookworm';
const PACKAGES = [
  'systemd-sysv',
  'udev',
  'dbus',
  'kmod',
  'cloud-init',
  'qemu-guest-agent',
  'openssh-server',
  'isc-dhcp-client',
  'ifupdown',
  'iproute2',
];
/** Files that nobody reads in a test. */
const LEFT_OUT = ['/usr/share/doc/*', '/usr/share/man/*', '/usr/share/locale/*', '/usr/share/info/*'];
/** Time limit of mmdebstrap: 250 packages over a slow connection, on a busy machine. It usually takes a minute. */
const BOOTSTRAP_TIMEOUT_MILLISECONDS = 900_000;

const FILES: Readonly<Record<string, string>> = {
  // Without this line, systemd leaves the root file system read-only.
  'etc/fstab': 'LABEL=root / ext4 defaults 0 1\n',
  // An empty file gives each machine an id at its first boot.
  'etc/machine-id': '',
  'etc/cloud/cloud.cfg.d/90-image.cfg': [
    'datasource_list: [NoCloud, None]',
    // The image has no locales, and setting one would fail.
    'locale: false',
    // One kind of key is faster to make than four.
    'ssh_genkeytypes: [ed25519]',
    '',
  ].join('\n'),
};
/** The machine's own files, which the bootstrap leaves in the root, and files that differ in each machine. */
const REMOVED = ['etc/hostname', 'etc/resolv.conf', 'var/lib/apt/lists', 'var/cache/apt'];
/** Units that would slow the boot of a machine that lives for minutes. */
const MASKED = [
  'apt-daily.timer',
  'apt-daily-upgrade.timer',
  'dpkg-db-backup.timer',
  'e2scrub_all.timer',
  'e2scrub_reap.service',
  'fstrim.timer',
  // The kernel has no module for it.
  'proc-sys-fs-binfmt_misc.automount',
  'systemd-binfmt.service',
];

/** Makes the root file system in the folder. Needs root, because its files have several owners. */
export async function makeRoot(root: string): Promise<void> {
  await run(
    'mmdebstrap',
    [
      '--mode=root',
      '--format=directory',
      '--variant=minbase',
      // This skips syncs to the disk. After a crash, the file system is made again.
      '--dpkgopt=force-unsafe-io',
      ...LEFT_OUT.map((path) => `--dpkgopt=path-exclude=${path}`),
      `--include=${PACKAGES.join(',')}`,
      SUITE,
      root,
    ],
    { timeoutMilliseconds: BOOTSTRAP_TIMEOUT_MILLISECONDS },
  );
  const keys = (await readdir(join(root, 'etc', 'ssh'))).filter((name) => name.startsWith('ssh_host_'));
  for (const path of [...REMOVED, ...keys.map((name) => `etc/ssh/${name}`)]) {
    await rm(join(root, path), { recursive: true, force: true });
  }
  for (const [path, text] of Object.entries(FILES)) {
    await writeFile(join(root, path), text);
  }
  const units = join(root, 'etc', 'systemd', 'system');
  await mkdir(units, { recursive: true });
  for (const unit of MASKED) {
    await rm(join(units, unit), { force: true });
    await symlink('/dev/null', join(units, unit));
  }
}
