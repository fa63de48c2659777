/** Checks the NAT network's requirements on its host, and reports all missing requirements at once. */
import { access, constants } from 'node:fs/promises';
import { findProgram } from '../../../base/exec.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';

/** Required programs, with their Debian packages. */
const PROGRAMS: Record<string, string> = {
  ip: 'iproute2',
  nft: 'nftables',
  conntrack: 'conntrack',
  dnsmasq: 'dnsmasq-base',
  unshare: 'util-linux',
  nsenter: 'util-linux',
  umount: 'mount',
};

const TUN_DEVICE = '/dev/net/tun';

async function isThere(path: string, mode: number): Promise<boolean> {
  return await access(path, mode).then(
    () => true,
    () => false,
  );
}

/** Checks all requirements on the host. @throws ReasonedError `NetworkUnavailable` with all missing requirements when some are missing. */
export async function requireHost(): Promise<void> {
  const missing: string[] = [];
  if (process.geteuid?.() !== 0) {
    missing.push('the rights of root');
  }
  for (const [program, packageName] of Object.entries(PROGRAMS)) {
    if ((await findProgram(program)) === undefined) {
      missing.push(`${program} (package ${packageName})`);
    }
  }
  if (!(await isThere(TUN_DEVICE, constants.R_OK + constants.W_OK))) {
    missing.push(`the device ${TUN_DEVICE}`);
  }
  if (missing.length > 0) {
    throw new ReasonedError(
      'NetworkUnavailable',
      `The network driver nat needs ${missing.join(', ')} on this host`,
    );
  }
}
