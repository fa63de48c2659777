/**
 * Checks whether the host ports that machines reserve are allowed and free, before a machine starts and while it runs. To learn whether a
 * port is free, the agent binds it. To find other processes that listen, it reads the kernel's lists of sockets in /proc/net.
 */
import { createSocket } from 'node:dgram';
import { createServer, isIPv4 } from 'node:net';
import { open } from 'node:fs/promises';
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { portName, type PortRules, whyDenied, whyNotReservable } from '../../api/v1alpha1/ports.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { codeOf, messageOf } from '../../base/errors.ts';

function bindTcp(address: string, port: number): Promise<void> {
  const server = createServer();
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ host: address, port, exclusive: true }, () => server.close(() => resolve()));
  });
}

function bindUdp(address: string, port: number): Promise<void> {
  const socket = createSocket('udp4');
  return new Promise((resolve, reject) => {
    socket.once('error', (error) => socket.close(() => reject(error)));
    socket.bind({ address, port, exclusive: true }, () => socket.close(() => resolve()));
  });
}

/** Returns whether this host can bind ports of the address. */
async function isOwnAddress(address: string): Promise<boolean> {
  try {
    // The kernel chooses a free port.
    await bindUdp(address, 0);
    return true;
  } catch (error) {
    if (codeOf(error) === 'EADDRNOTAVAIL') {
      return false;
    }
    throw error;
  }
}

function describePort(port: MachinePort): string {
  return `${port.hostPort}/${port.protocol}`;
}

/** Checks that the configuration allows all ports. @throws ReasonedError `PortNotReservable` when it forbids a port. */
function requireReservable(rules: PortRules, ports: readonly MachinePort[]): void {
  const message = faultsOf(rules, ports);
  if (message !== undefined) {
    throw new ReasonedError('PortNotReservable', message);
  }
}

/**
 * Checks the ports against the configuration of this host. Returns a message with each forbidden port and the setting that forbids it, or
 * undefined if all ports are allowed.
 */
export function faultsOf(rules: PortRules, ports: readonly MachinePort[]): string | undefined {
  const faults = ports.flatMap((port) => faultOf(rules, port) ?? []);
  const denied = 'The configuration of this host does not allow the reserved ports';
  return faults.length === 0 ? undefined : `${denied}: ${faults.join('; ')}`;
}

/** Returns why a port is forbidden; undefined if it is allowed. The setting `ports.reservable` does not limit ports that the host chose. */
function faultOf(rules: PortRules, { automatic, hostPort }: MachinePort): string | undefined {
  return automatic === true ? whyDenied(rules, hostPort) : whyNotReservable(rules, hostPort);
}

/**
 * Checks that each port is free. For this check, the function binds the port and releases it at once.
 *
 * @throws ReasonedError `PortTaken`, with the port in the message, when another process uses the port; ReasonedError `NetworkUnavailable`
 * when the bind fails for another reason (the address belongs to another host, or the agent has no right to bind the port).
 */
async function requireFreePorts(address: string, ports: readonly MachinePort[]): Promise<void> {
  if (!isIPv4(address)) {
    const message = `The address "${address}" is not an IPv4 address; set network.hostAddress to an IPv4 address of this host`;
    throw new ReasonedError('NetworkUnavailable', message);
  }
  for (const port of ports) {
    try {
      await (port.protocol === 'TCP' ? bindTcp : bindUdp)(address, port.hostPort);
    } catch (error) {
      const where = `${describePort(port)} on ${address}`;
      const [reason, message] =
        codeOf(error) === 'EADDRINUSE'
          ? (['PortTaken', `Port ${where} is in use on this host`] as const)
          : (['NetworkUnavailable', `This host cannot use port ${where}: ${messageOf(error)}`] as const);
      throw new ReasonedError(reason, message, { cause: error });
    }
  }
}

/**
 * Checks that no other machine reserves one of the ports. An attempt to bind a port is not sufficient. In the network
 * `nat`, no socket listens on reserved ports. In the network `user`, QEMU does not listen on the ports until it has started.
 *
 * @param reserved reserved ports of all machines, by uid.
 * @throws ReasonedError `PortTaken`, which names the port but not the other machine, because another tenant might own that machine.
 */
function requireUnreserved(
  uid: string,
  ports: readonly MachinePort[],
  reserved: Iterable<readonly [string, readonly MachinePort[]]>,
): void {
  for (const [other, held] of reserved) {
    const clash = ports.find((port) => held.some((one) => portName(one) === portName(port)));
    if (other !== uid && clash) {
      const message = `Another machine on this host already reserves port ${describePort(clash)}`;
      throw new ReasonedError('PortTaken', message);
    }
  }
}

/** Data that is needed to check whether a machine can use a port. */
export interface PortChecks {
  rules: PortRules;
  /** IPv4 address at which reserved ports are reached; 0.0.0.0 means all addresses. */
  address: string;
  /** Reserved ports of all machines. The key is the machine's uid. */
  reserved: Iterable<readonly [string, readonly MachinePort[]]>;
  /** Returns a message if rules of other programs lead the port elsewhere; otherwise undefined. */
  whyPublished: (port: MachinePort) => string | undefined;
}

/**
 * Checks all ports of a machine before its start.
 *
 * @throws the errors of {@link requireReservable}, {@link requireUnreserved} and {@link requireFreePorts}; ReasonedError `PortTaken` when
 * rules of other programs lead a port elsewhere.
 */
export async function requireUsable(
  uid: string,
  ports: readonly MachinePort[],
  { rules, address, reserved, whyPublished }: PortChecks,
): Promise<void> {
  requireReservable(rules, ports);
  requireUnreserved(uid, ports, reserved);
  const published = ports.map(whyPublished).find((message) => message !== undefined);
  if (published !== undefined) {
    throw new ReasonedError('PortTaken', published);
  }
  await requireFreePorts(address, ports);
}

/**
 * Returns whether {@link requireUsable} accepts the port.
 *
 * @throws ReasonedError `NetworkUnavailable` when the check fails, for example because the address belongs to another host.
 */
export async function isUsable(uid: string, port: MachinePort, checks: PortChecks): Promise<boolean> {
  try {
    await requireUsable(uid, [port], checks);
    return true;
  } catch (error) {
    if (error instanceof ReasonedError && error.reason !== 'NetworkUnavailable') {
      return false;
    }
    throw error;
  }
}

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
