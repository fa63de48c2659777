/**
 * The ports of this host that machines reserve: which of them are allowed, whether one is free, and who else listens there. A free
 * port is found by binding it; other listeners are read from the kernel's own lists.
 */
import { createSocket } from 'node:dgram';
import { open } from 'node:fs/promises';
import { createServer, isIPv4 } from 'node:net';
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { portName } from '../../api/v1alpha1/ports.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { type PortRules, whyNotReservable } from '../../api/v1alpha1/reservable.ts';
import { codeOf } from '../../base/errors.ts';

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

function describePort(port: MachinePort): string {
  return `${port.hostPort}/${port.protocol}`;
}

/** @throws ReasonedError `PortNotReservable` with every port that this host keeps from machines, and the setting that does. */
export function requireReservable(rules: PortRules, ports: readonly MachinePort[]): void {
  const faults = ports.map(({ hostPort }) => whyNotReservable(rules, hostPort));
  const message = faults.filter((fault) => fault !== undefined).join('; ');
  if (message !== '') {
    throw new ReasonedError('PortNotReservable', `this host's configuration: ${message}`);
  }
}

/**
 * Binds each port once and lets go of it.
 *
 * @throws ReasonedError `PortTaken` naming the port when something holds it, ReasonedError `NetworkUnavailable` when it cannot be bound for
 * another reason (address not of this host, no right).
 */
export async function requireFreePorts(address: string, ports: readonly MachinePort[]): Promise<void> {
  if (!isIPv4(address)) {
    throw new ReasonedError(
      'NetworkUnavailable',
      `the host address ${JSON.stringify(address)} is not an IPv4 address`,
    );
  }
  for (const port of ports) {
    try {
      await (port.protocol === 'TCP' ? bindTcp : bindUdp)(address, port.hostPort);
    } catch (error) {
      const code = codeOf(error);
      if (code === 'EADDRINUSE') {
        throw new ReasonedError(
          'PortTaken',
          `port ${describePort(port)} on ${address} is in use on this host`,
          {
            cause: error,
          },
        );
      }
      throw new ReasonedError(
        'NetworkUnavailable',
        `port ${describePort(port)} on ${address} cannot be bound: ${String(code)}`,
        {
          cause: error,
        },
      );
    }
  }
}

/** A socket that would receive packets to a reserved port. */
interface Listener {
  /** As {@link portName} has it. */
  name: string;
  /** The same for as long as the socket is open. */
  inode: string;
}

/** Files of /proc/net (`proc_net_tcp` of the kernel's documentation), with the state of a socket that waits for whoever comes. */
const LISTS = [
  { file: 'tcp', protocol: 'TCP', state: '0A' },
  { file: 'tcp6', protocol: 'TCP', state: '0A' },
  { file: 'udp', protocol: 'UDP', state: '07' },
  { file: 'udp6', protocol: 'UDP', state: '07' },
] as const;

/** Some hundred sockets. */
const CHUNK_BYTES = 16 * 1024;

const EVERY_IPV4 = '00000000';
const EVERY_IPV6 = '0'.repeat(32);
/** Before the IPv4 address that an IPv6 socket listens on. */
const MAPPED_IPV4 = '0000000000000000FFFF0000';
/** The last byte as it stands there is the first of the address. */
const LOOPBACK_END = '7F';

/** An IPv4 address as the lists have it: hexadecimal, the last byte first. */
function listed(address: string): string {
  const bytes = address.split('.').map((byte) => Number(byte).toString(16).padStart(2, '0'));
  return bytes.toReversed().join('').toUpperCase();
}

/** @param reached where reserved ports are reached; undefined: every address but loopback. */
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

/** Undefined for the heading. */
function parseLine(line: string): Line | undefined {
  const [, local = '', , state = '', , , , , , inode = ''] = line.trim().split(/\s+/);
  const [address = '', port] = local.split(':');
  return port === undefined ? undefined : { address, port: Number.parseInt(port, 16), state, inode };
}

/**
 * The sockets of one list that listen. The kernel lists all TCP sockets that listen before the first that is connected, so that no
 * more is read than needed: a host may have many thousands.
 */
async function listening(list: (typeof LISTS)[number]): Promise<Line[]> {
  const file = await open(`/proc/self/net/${list.file}`);
  try {
    let text = '';
    for (;;) {
      const { bytesRead, buffer } = await file.read({ buffer: Buffer.alloc(CHUNK_BYTES) });
      text += buffer.toString('latin1', 0, bytesRead);
      // The last line may be half of one.
      const lines = text.split('\n').slice(0, -1).map(parseLine);
      const found = lines.filter((one) => one?.state === list.state);
      const isComplete = list.protocol === 'TCP' && found.length < lines.length - 1;
      if (bytesRead === 0 || isComplete) {
        return found.filter((one) => one !== undefined);
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

/** Watches the reserved ports of machines that run. */
export class PortWatch {
  readonly #reached: string | undefined;
  readonly #rules: PortRules;
  #seen: ReadonlySet<string> = new Set();

  /** @param reached where reserved ports are reached; undefined: every address but loopback. */
  constructor(reached: string | undefined, rules: PortRules) {
    this.#reached = reached;
    this.#rules = rules;
  }

  /** What is wrong with which of the ports, by {@link portName}. Linux alone has these lists. */
  async look(ports: readonly MachinePort[]): Promise<Map<string, string>> {
    if (ports.length === 0) {
      return new Map();
    }
    const held = await this.#held();
    const faults = new Map<string, string>();
    for (const port of ports) {
      const fault =
        whyNotReservable(this.#rules, port.hostPort) ??
        (held.has(portName(port)) ? await this.#whyTaken(port) : undefined);
      if (fault !== undefined) {
        faults.set(portName(port), fault);
      }
    }
    return faults;
  }

  /** A UDP socket counts when it is there for the second time: whoever only asks somebody has one for a moment. */
  async #held(): Promise<Set<string>> {
    const lists = await Promise.all(LISTS.map((list) => listeners(list, this.#reached)));
    const all = lists.flat();
    const known = this.#seen;
    this.#seen = new Set(all.map(({ inode }) => inode));
    const lasting = all.filter(({ name, inode }) => name.endsWith('-tcp') || known.has(inode));
    return new Set(lasting.map(({ name }) => name));
  }

  /** Asked of the kernel, which alone knows whether an IPv6 socket takes IPv4 too. */
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
