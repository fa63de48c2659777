/** What the NAT network needs of its host, all of it said at once. */
import { access, constants } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';

/** Programs and the Debian packages they come from. */
const PROGRAMS: Record<string, string> = {
  ip: 'iproute2',
  nft: 'nftables',
  conntrack: 'conntrack',
  dnsmasq: 'dnsmasq-base',
  unshare: 'util-linux',
  nsenter: 'util-linux',
};

const TUN_DEVICE = '/dev/net/tun';

async function isThere(path: string, mode: number): Promise<boolean> {
  return await access(path, mode).then(
    () => true,
    () => false,
  );
}

async function isInstalled(program: string): Promise<boolean> {
  const folders = (process.env['PATH'] ?? '').split(delimiter);
  const found = await Promise.all(folders.map((folder) => isThere(join(folder, program), constants.X_OK)));
  return found.includes(true);
}

/** @throws ReasonedError `NetworkUnavailable` with everything that is missing. */
export async function requireHost(): Promise<void> {
  const missing: string[] = [];
  if (process.geteuid?.() !== 0) {
    missing.push('the rights of root');
  }
  for (const [program, packageName] of Object.entries(PROGRAMS)) {
    if (!(await isInstalled(program))) {
      missing.push(`${program} (package ${packageName})`);
    }
  }
  if (!(await isThere(TUN_DEVICE, constants.R_OK + constants.W_OK))) {
    missing.push(`the device ${TUN_DEVICE}`);
  }
  if (missing.length > 0) {
    throw new ReasonedError('NetworkUnavailable', `the nat network needs: ${missing.join(', ')}`);
  }
}
