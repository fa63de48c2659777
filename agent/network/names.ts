/** Names on the host that belong to the network of one agent. Each agent of a host has its own names. */
import { createHash } from 'node:crypto';
import { join } from 'node:path';

/** Number of hexadecimal digits that distinguish the networks of one host. */
const ID_LENGTH = 8;

interface NetworkNames {
  /** Folder in which the network keeps its files. */
  directory: string;
  /** Folder for the files of dnsmasq, for the driver `nat`. */
  runtimeDirectory: string;
  /** Name of the nftables table (`inet`) of the guard, for the driver `user`. */
  guardTable: string;
}

/** Returns the names for the agent with this data directory. No two agents share a data directory. */
export function networkNames(dataDirectory: string): NetworkNames {
  const directory = join(dataDirectory, 'network');
  const id = createHash('sha256').update(directory).digest('hex').slice(0, ID_LENGTH);
  return { directory, runtimeDirectory: `/run/berth-network-${id}`, guardTable: `berth-user-${id}` };
}
