/**
 * Checks whether another process listens on reserved ports, or has taken their address from this host. To find listening processes, the
 * agent reads the kernel's lists of sockets in /proc/net.
 */
import { open } from 'node:fs/promises';
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { portName } from '../../api/v1alpha1/ports.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { PortRules } from '../../api/v1alpha1/reservable.ts';
import { faultOf, isOwnAddress, requireFreePorts } from './hostports.ts';

/** Listening socket of this host. It would receive the packets to its port if the host did not forward these packets to a guest. */
interface Listener {
  /** Name of the port in the form of {@link portName}. */
  name: string;
  /** Inode of the socket. The number stays the same while the socket is open. */
  inode: string;
}

/**
 * Lists of sockets in /proc/net (see `proc_net_tcp` in the kernel's documentation). `state` is the code of the sockets that accept packets
 * from any peer: listening TCP sockets, or unconnected UDP sockets.
 */
const LISTS = [
  { file: 'tcp', protocol: 'TCP', state: '0A' },
  { file: 'tcp6', protocol: 'TCP', state: '0A' },
  { file: 'udp', protocol: 'UDP', state: '07' },
  { file: 'udp6', protocol: 'UDP', state: '07' },
] as const;

/** Number of bytes that are read at once from a list of sockets in /proc/net. This is enough for about a hundred sockets. */
const CHUNK_BYTES = 16 * 1024;

const EVERY_IPV4 = '00000000';
const EVERY_IPV6 = '0'.repeat(32);
/** Prefix that /proc/net writes before an IPv4 address on which an IPv6 socket listens. */
const MAPPED_IPV4 = '0000000000000000FFFF0000';
/** Last two digits of a loopback address (127.…) in /proc/net, which writes the first byte of an address last. */
const LOOPBACK_END = '7F';

/** Returns an IPv4 address as /proc/net writes it: in hexadecimal, with the last byte first. */
function listed(address: string): string {
  const bytes = address.split('.').map((byte) => Number(byte).toString(16).padStart(2, '0'));
  return bytes.toReversed().join('').toUpperCase();
}

/**
 * Returns whether a socket that is bound to the address `local` would receive packets to reserved ports. `local` has the form of /proc/net.
 *
 * @param reached address at which reserved ports are reached; undefined means every address except loopback.
 */
function isInTheWay(local: string, reached: string | undefined): boolean {
  if (local === EVERY_IPV4 || local === EVERY_IPV6) {
    return true;
  }
  const address = local.startsWith(MAPPED_IPV4) ? local.slice(MAPPED_IPV4.length) : local;
  if (address.length !== EVERY_IPV4.length) {
    return false;
  }
  return reached === undefined ? !address.endsWith(LOOPBACK_END) : address === listed(reached);
}

interface Line {
  address: string;
  port: number;
  state: string;
  inode: string;
}

/** Parses a line of a list of sockets in /proc/net. Returns undefined for the heading. */
function parseLine(line: string): Line | undefined {
  const [, local = '', , state = '', , , , , , inode = ''] = line.trim().split(/\s+/);
  const [address = '', port] = local.split(':');
  return port === undefined ? undefined : { address, port: Number.parseInt(port, 16), state, inode };
}

/**
 * Reads the listening sockets of one list in /proc/net. A TCP list begins with all listening sockets. Thousands of connected sockets can
 * follow, so the function stops at the first connected socket.
 */
async function listening(list: (typeof LISTS)[number]): Promise<Line[]> {
  const file = await open(`/proc/self/net/${list.file}`);
  try {
    const found: Line[] = [];
    let partialLine = '';
    for (;;) {
      const { bytesRead, buffer } = await file.read({ buffer: Buffer.alloc(CHUNK_BYTES) });
      const lines = (partialLine + buffer.toString('latin1', 0, bytesRead)).split('\n');
      partialLine = lines.pop() ?? '';
      const sockets = lines.map(parseLine).filter((line) => line !== undefined);
      found.push(...sockets.filter(({ state }) => state === list.state));
      const isConnected = list.protocol === 'TCP' && sockets.some(({ state }) => state !== list.state);
      if (bytesRead === 0 || isConnected) {
        return found;
      }
    }
  } finally {
    await file.close();
  }
}

async function listeners(list: (typeof LISTS)[number], reached: string | undefined): Promise<Listener[]> {
  const sockets = await listening(list);
  return sockets
    .filter(({ address }) => isInTheWay(address, reached))
    .map(({ port, inode }) => ({ name: portName({ hostPort: port, protocol: list.protocol }), inode }));
}

/** Checks whether the reserved ports of attached machines are still allowed and free. */
export class PortWatch {
  readonly #reached: string | undefined;
  readonly #rules: PortRules;
  #seen: ReadonlySet<string> = new Set();

  /** @param reached address at which reserved ports are reached; undefined means every address except loopback. */
  constructor(reached: string | undefined, rules: PortRules) {
    this.#reached = reached;
    this.#rules = rules;
  }

  /**
   * Returns a fault for each port that the configuration forbids or that another process uses. The key is the {@link portName} of the port.
   * The function works only on Linux, because it reads /proc/net.
   */
  async look(ports: readonly MachinePort[]): Promise<Map<string, string>> {
    if (ports.length === 0) {
      return new Map();
    }
    const held = await this.#held();
    const unreachable = await this.#whyUnreachable();
    const faults = new Map<string, string>();
    for (const port of ports) {
      const fault =
        faultOf(this.#rules, port) ??
        unreachable ??
        (held.has(portName(port)) ? await this.#whyTaken(port) : undefined);
      if (fault !== undefined) {
        faults.set(portName(port), fault);
      }
    }
    return faults;
  }

  /**
   * Returns the names of ports with a listener. A UDP socket counts as a listener only if the previous check found the same socket. A UDP
   * socket that exists only for a short time usually belongs to a client.
   */
  async #held(): Promise<Set<string>> {
    const lists = await Promise.all(LISTS.map((list) => listeners(list, this.#reached)));
    const all = lists.flat();
    const known = this.#seen;
    this.#seen = new Set(all.map(({ inode }) => inode));
    const lasting = all.filter(({ name, inode }) => name.endsWith('-tcp') || known.has(inode));
    return new Set(lasting.map(({ name }) => name));
  }

  /** Returns a message if this host no longer has the address at which reserved ports are reached; otherwise undefined. */
  async #whyUnreachable(): Promise<string | undefined> {
    return this.#reached === undefined || (await isOwnAddress(this.#reached))
      ? undefined
      : `This host does not have the address ${this.#reached} (network.hostAddress)`;
  }

  /**
   * Tries to bind the port. Returns a fault if the port is in use, and undefined otherwise. The lists in /proc/net are not sufficient,
   * because they do not show whether an IPv6 socket also accepts IPv4.
   */
  async #whyTaken(port: MachinePort): Promise<string | undefined> {
    try {
      await requireFreePorts(this.#reached ?? '0.0.0.0', [port]);
      return undefined;
    } catch (error) {
      if (error instanceof ReasonedError && error.reason === 'PortTaken') {
        return error.message;
      }
      throw error;
    }
  }
}
