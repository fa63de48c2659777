/**
 * Leases of the DHCP server of macOS, which gives guests of the network `vmnet` their addresses. It keeps the address of a guest that has ended
 * until its lease is over, so a host with many new guests in a day can run out of addresses.
 */
import { open } from 'node:fs/promises';
import { isMissing, undefinedIf } from '../../base/errors.ts';

/** File of the DHCP server, by the source of the program `tart`, which reads it too. */
export const LEASES_FILE = '/var/db/dhcpd_leases';
/** Addresses for guests in the network of macOS: a /24 without its first two addresses and its last one. */
const ADDRESSES = 253;
/** Largest number of bytes that are read of the file. An entry has about 150 bytes. */
const FILE_BYTES = 1024 * 1024;

export interface Leases {
  /** Number of addresses that the server does not give to new guests now, in the network that has the most of them. */
  taken: number;
  /** Number of addresses for guests in a network. */
  all: number;
  /** Time in milliseconds since the epoch at which the next lease ends. Undefined if there is none. */
  nextEnd: number | undefined;
}

/** Reads the leases of this host. The result is undefined if there is no file. `now` is in milliseconds since the epoch. */
export async function readLeases(path: string, now: number): Promise<Leases | undefined> {
  const file = await undefinedIf(isMissing, open(path, 'r'));
  if (file === undefined) {
    return undefined;
  }
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(FILE_BYTES), 0, FILE_BYTES, 0);
    return countLeases(buffer.toString('latin1', 0, bytesRead), now);
  } finally {
    await file.close();
  }
}

/**
 * Counts the leases in the text of the file. Each entry has lines such as `ip_address=192.168.64.2` and `lease=0x674afe10`, the end of the
 * lease in seconds since the epoch. An entry without both is left out.
 */
export function countLeases(text: string, now: number): Leases {
  const networks = new Map<string, Set<string>>();
  let nextEnd: number | undefined;
  for (const entry of text.split('}')) {
    const [, network, host] = /^\s*ip_address=(\d+\.\d+\.\d+)\.(\d+)\s*$/m.exec(entry) ?? [];
    const [, seconds] = /^\s*lease=0x([0-9a-f]{1,12})\s*$/im.exec(entry) ?? [];
    const end = Number.parseInt(seconds ?? '0', 16) * 1000;
    if (network !== undefined && host !== undefined && end > now) {
      networks.set(network, (networks.get(network) ?? new Set()).add(host));
      nextEnd = Math.min(nextEnd ?? end, end);
    }
  }
  const taken = Math.max(0, ...[...networks.values()].map(({ size }) => size));
  return { taken, all: ADDRESSES, nextEnd };
}
