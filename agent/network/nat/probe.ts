/**
 * Tests the network with real packets between two ends. The inner end is connected to the bridge like a guest. The host routes packets to
 * the outer end, as to any computer outside. Each test packet begins a new connection, so that no nftables rule for existing connections
 * accepts the packet. The test packets take these paths:
 * - out: inner → forward → masquerade → outer; the outer end must see the host's address as the sender;
 * - in: outer → reserved port → DNAT → forward → inner, and the answer on the same way back;
 * - dns: inner queries dnsmasq on the gateway;
 * - dhcp: inner asks every DHCP server for an address, and dnsmasq offers the address that inner has.
 */
import { randomBytes, randomInt } from 'node:crypto';
import { type RemoteInfo, Socket } from 'node:dgram';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { deleteDevice } from './devices.ts';
import { PROBE_NAME } from './dnsmasq.ts';
import { addressAt, toNumber } from './ipv4.ts';
import type { NatLayout } from './layout.ts';
import { PROBE_PORT, PROBE_PORTS } from './ruleset.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { ip, run } from '../commands.ts';

/**
 * Time after which a test packet counts as lost. The time is short, because a test packet never leaves the host. On a busy host a packet
 * can be late, so there are {@link ATTEMPTS} attempts.
 */
const ANSWER_TIMEOUT_MILLISECONDS = 500;
const ATTEMPTS = 4;
const DNS_PORT = 53;
const DHCP = { serverPort: 67, clientPort: 68, everyServer: '255.255.255.255' };
/**
 * UDP ports from which the inner end queries the DNS server, one after the other. The kernel forgets the connection of a query after 30 s.
 * Until then, another query from the same port would belong to this connection, and rules for new connections would not see it.
 */
const QUERY_PORTS = Array.from({ length: 32 }, (_, index) => PROBE_PORT + 1 + index);
/**
 * Numbers of the first and the last address of the outer end. The outer end has the upper half of the probe's /24 subnet, so that test
 * packets can have different targets.
 */
const OUTER_FIRST = 128;
const OUTER_LAST = 254;

export type ProbePath = 'out' | 'in' | 'dns' | 'dhcp';

/** Descriptions of the paths that test packets take, for messages to users. */
export const PATHS: Record<ProbePath, string> = {
  out: 'from a guest to the outside',
  in: 'from the outside through a reserved port to a guest',
  dns: 'from a guest to the DNS server of its network',
  dhcp: 'from a guest to the DHCP server of its network',
};

/** UDP ports of the host to which the test packets of a path go. Packets of other paths pass through the host. */
export const HOST_PORTS: Partial<Record<ProbePath, number>> = { dns: DNS_PORT, dhcp: DHCP.serverPort };

interface Waiter {
  matches(payload: Buffer, sender: RemoteInfo): boolean;
  done(): void;
}

export class Probe {
  readonly #layout: NatLayout;
  /** Sockets of both ends by their ports. */
  #inner: ReadonlyMap<number, Socket> = new Map();
  #outer: ReadonlyMap<number, Socket> = new Map();
  /** Number of DNS queries that were sent. */
  #queries = 0;
  readonly #innerWaiters = new Set<Waiter>();
  readonly #outerWaiters = new Set<Waiter>();

  constructor(layout: NatLayout) {
    this.#layout = layout;
  }

  get open(): boolean {
    return this.#inner.size > 0 && this.#outer.size > 0;
  }

  /** Creates both ends of the probe again. The caller must then configure their devices in the agent's network namespace. */
  async rebuild(existingDevices: ReadonlySet<string>): Promise<void> {
    const { probe, gateway, subnet } = this.#layout;
    this.close();
    const stale = [probe.innerPort, probe.outerPort].filter((device) => existingDevices.has(device));
    for (const device of stale) {
      await deleteDevice(device);
    }
    this.#inner = await openEndpoint({
      ports: [PROBE_PORT, DHCP.clientPort, ...QUERY_PORTS],
      device: probe.innerPort,
      macAddress: probe.innerMac,
      configuration: [
        `address add ${probe.innerAddress}/${subnet.prefix} dev eth0`,
        `route add default via ${gateway}`,
      ],
    });
    this.#outer = await openEndpoint({
      ports: [PROBE_PORT],
      device: probe.outerPort,
      // The outer end has no route to guests, so it can answer only packets whose sender address the host has translated.
      configuration: [
        `address add ${probe.outerAddress}/${probe.outerSubnet.prefix} dev eth0`,
        `route add local ${addressAt(probe.outerSubnet, OUTER_FIRST)}/25 dev lo`,
      ],
    });
    this.#inner.get(DHCP.clientPort)?.setBroadcast(true);
    this.#listen(this.#inner, this.#innerWaiters);
    this.#listen(this.#outer, this.#outerWaiters);
  }

  /** Resolves with the paths on which all packets were lost. */
  async failures(): Promise<ProbePath[]> {
    const paths: ProbePath[] = ['out', 'in', 'dns', 'dhcp'];
    const results = await Promise.all(paths.map((path) => this.#attempts(path)));
    return paths.filter((_path, index) => !results[index]);
  }

  close(): void {
    for (const socket of [...this.#inner.values(), ...this.#outer.values()]) {
      socket.close();
    }
    this.#inner = new Map();
    this.#outer = new Map();
  }

  async #attempts(path: ProbePath): Promise<boolean> {
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      if (await this.#once(path)) {
        return true;
      }
    }
    return false;
  }

  #once(path: ProbePath): Promise<boolean> {
    const { gateway, probe } = this.#layout;
    const token = randomBytes(16);
    const carriesToken = (payload: Buffer) => payload.equals(token);
    if (path === 'out') {
      const target = addressAt(probe.outerSubnet, randomInt(OUTER_FIRST, OUTER_LAST + 1));
      const arrived = this.#awaited(
        this.#outerWaiters,
        (payload, sender) => carriesToken(payload) && sender.address === probe.outerGateway,
      );
      return this.#sent(
        this.#inner.get(PROBE_PORT),
        { payload: token, port: PROBE_PORT, address: target },
        arrived,
      );
    }
    if (path === 'in') {
      const port = randomInt(PROBE_PORTS.first, PROBE_PORTS.last + 1);
      const answered = this.#awaited(
        this.#outerWaiters,
        (payload, sender) => carriesToken(payload) && sender.port === port,
      );
      this.#answerOnce(token);
      return this.#sent(
        this.#outer.get(PROBE_PORT),
        { payload: token, port, address: probe.outerGateway },
        answered,
      );
    }
    if (path === 'dhcp') {
      const discover = dhcpDiscover(token.readUInt32BE(0), probe.innerMac);
      const offered = this.#awaited(this.#innerWaiters, (payload) =>
        isDhcpOffer(payload, discover, probe.innerAddress),
      );
      const { clientPort, serverPort: port, everyServer: address } = DHCP;
      return this.#sent(this.#inner.get(clientPort), { payload: discover, port, address }, offered);
    }
    const query = dnsQuery(token.readUInt16BE(0), PROBE_NAME);
    const answered = this.#awaited(this.#innerWaiters, (payload) => isDnsAnswer(payload, query));
    const from = QUERY_PORTS[this.#queries++ % QUERY_PORTS.length] ?? PROBE_PORT;
    return this.#sent(this.#inner.get(from), { payload: query, port: DNS_PORT, address: gateway }, answered);
  }

  /** Prepares the inner end to answer one test packet: when the packet with the token arrives, the inner end sends the token back. */
  #answerOnce(token: Buffer): void {
    const waiters = this.#innerWaiters;
    const waiter: Waiter = {
      matches: (payload, sender) => {
        if (!payload.equals(token)) {
          return false;
        }
        this.#inner.get(PROBE_PORT)?.send(payload, sender.port, sender.address, () => undefined);
        return true;
      },
      done: () => waiters.delete(waiter),
    };
    waiters.add(waiter);
    setTimeout(() => setImmediate(() => waiter.done()), ANSWER_TIMEOUT_MILLISECONDS).unref();
  }

  #awaited(waiters: Set<Waiter>, matches: Waiter['matches']): Promise<boolean> {
    return new Promise((resolve) => {
      const waiter: Waiter = {
        matches,
        done: () => {
          clearTimeout(timer);
          waiters.delete(waiter);
          resolve(true);
        },
      };
      const giveUp = () => {
        waiters.delete(waiter);
        resolve(false);
      };
      // After a busy period, Node.js runs timers before it reads packets. With setImmediate, Node.js reads the waiting packets before
      // `giveUp` runs.
      const timer = setTimeout(() => setImmediate(giveUp), ANSWER_TIMEOUT_MILLISECONDS);
      waiters.add(waiter);
    });
  }

  #sent(
    socket: Socket | undefined,
    packet: { payload: Buffer; port: number; address: string },
    answered: Promise<boolean>,
  ): Promise<boolean> {
    // Errors (no route, or a rule that rejects the packet) are ignored here, because the missing answer shows the loss.
    socket?.send(packet.payload, packet.port, packet.address, () => undefined);
    return answered;
  }

  #listen(sockets: ReadonlyMap<number, Socket>, waiters: Set<Waiter>): void {
    for (const socket of sockets.values()) {
      socket.on('message', (payload, sender) => {
        for (const waiter of waiters) {
          if (waiter.matches(payload, sender)) {
            waiter.done();
          }
        }
      });
      // Errors are ignored here, because the missing packet shows the loss.
      socket.on('error', () => undefined);
      socket.unref();
    }
  }
}

/** Returns a DNS query for the IPv4 address of a name. */
function dnsQuery(id: number, name: string): Buffer {
  const labels = name.split('.').map((label) => Buffer.from([label.length, ...Buffer.from(label)]));
  const header = Buffer.alloc(12);
  header.writeUInt16BE(id, 0);
  header.writeUInt16BE(0x0100, 2); // recursion desired
  header.writeUInt16BE(1, 4); // one question
  return Buffer.concat([header, ...labels, Buffer.from([0, 0, 1, 0, 1])]); // type A, class IN
}

/** Returns whether the payload answers this query without an error and with at least one record. */
function isDnsAnswer(payload: Buffer, query: Buffer): boolean {
  if (payload.length < 12 || payload.readUInt16BE(0) !== query.readUInt16BE(0)) {
    return false;
  }
  const flags = payload.readUInt16BE(2);
  return (flags & 0x8000) !== 0 && (flags & 0x000f) === 0 && payload.readUInt16BE(6) > 0;
}

/** Offsets of fields in a DHCP message, and the number that begins its options (RFC 2131). */
const DHCP_FIELDS = { transaction: 4, yourAddress: 16, clientMac: 28, options: 236, cookie: 0x63825363 };
/** Smallest length of a BOOTP message. Some servers ignore shorter messages (RFC 1542). */
const DHCP_BYTES = 300;

/** Returns the first DHCP message of a guest, which asks every server for an address. */
function dhcpDiscover(transaction: number, macAddress: string): Buffer {
  const message = Buffer.alloc(DHCP_BYTES);
  message.set([1, 1, 6, 0]); // request, Ethernet, length of a MAC address, no hops
  message.writeUInt32BE(transaction, DHCP_FIELDS.transaction);
  message.set(Buffer.from(macAddress.replaceAll(':', ''), 'hex'), DHCP_FIELDS.clientMac);
  message.writeUInt32BE(DHCP_FIELDS.cookie, DHCP_FIELDS.options);
  message.set([53, 1, 1, 255], DHCP_FIELDS.options + 4); // message type DISCOVER, end of the options
  return message;
}

/** Returns whether the payload offers this address in answer to the message. */
function isDhcpOffer(payload: Buffer, discover: Buffer, address: string): boolean {
  return (
    payload.length > DHCP_FIELDS.options &&
    payload[0] === 2 && // answer
    payload.readUInt32BE(DHCP_FIELDS.transaction) === discover.readUInt32BE(DHCP_FIELDS.transaction) &&
    payload.readUInt32BE(DHCP_FIELDS.yourAddress) === toNumber(address)
  );
}

/** Time limit for the child process that opens the sockets. The child process needs less than a second, even on a busy host. */
const HANDOVER_TIMEOUT_MILLISECONDS = 10_000;

const CHILD_SCRIPT = `
const { createSocket } = require('node:dgram');
process.on('disconnect', () => process.exit());
for (const [index, port] of process.argv.slice(1).entries()) {
  const socket = createSocket('udp4');
  socket.bind(Number(port), () => process.send(index, socket));
}
`;

interface EndpointOptions {
  /** UDP ports of the sockets. */
  ports: readonly number[];
  /** Name of the device to which this end of the probe is connected. The device is in the network namespace of this process. */
  device: string;
  /**
   * Lines for `ip -batch` that configure this end of the probe in its own network namespace. The device of this end has the name `eth0`
   * there.
   */
  configuration: string[];
  macAddress?: string;
}

/**
 * Creates one end of the probe: an unnamed network namespace with one device and UDP sockets. A short-lived child process in the namespace
 * creates the sockets and passes them to this process. Afterwards, this process can send and receive in that namespace without a child
 * process. The namespace exists as long as a socket, so nothing remains when the agent dies. The peer of the namespace's device is
 * in the namespace of this process. This function does not bring the peer up. Returns the sockets by their ports.
 *
 * @throws ReasonedError `NetworkUnavailable` when the child does not pass the sockets; ProgramError when a network command fails.
 */
async function openEndpoint(options: EndpointOptions): Promise<Map<number, Socket>> {
  const ports = options.ports.map(String);
  const child = spawn('unshare', ['--net', process.execPath, '--eval', CHILD_SCRIPT, ...ports], {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    // NODE_OPTIONS is not passed on, because the agent's options for Node.js are not meant for its child.
    env: { PATH: process.env['PATH'] },
  });
  const ended = once(child, 'exit');
  const sockets = new Map<number, Socket>();
  try {
    await handOver(child, sockets, options.ports);
    const mac = options.macAddress === undefined ? '' : ` address ${options.macAddress}`;
    await ip([`link add ${options.device} type veth peer name eth0${mac} netns ${child.pid}`]);
    const inside = ['link set lo up', 'link set eth0 up', ...options.configuration].join('\n');
    await run('nsenter', [`--net=/proc/${child.pid}/ns/net`, 'ip', '-batch', '-'], `${inside}\n`);
    return sockets;
  } catch (error) {
    // Open sockets would keep the network namespace. Therefore the agent also closes sockets that arrive later.
    sockets.forEach((socket) => socket.close());
    child.on('message', (_index, handle) => {
      if (handle instanceof Socket) {
        handle.close();
      }
    });
    throw error;
  } finally {
    child.kill('SIGKILL');
    await ended;
  }
}

/** Adds the sockets of the child to `sockets`, and resolves after the last one. */
function handOver(
  child: ChildProcess,
  sockets: Map<number, Socket>,
  ports: readonly number[],
): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (why: string, cause?: unknown) =>
      reject(
        new ReasonedError(
          'NetworkUnavailable',
          `The agent could not create one end of the network probe: ${why}`,
          { cause },
        ),
      );
    const timer = setTimeout(() => fail('unshare did not answer in time'), HANDOVER_TIMEOUT_MILLISECONDS);
    child.once('error', (error) => fail(error.message, error));
    child.once('exit', (code) =>
      fail(`unshare ended with code ${code}; the agent needs the right to create network namespaces`),
    );
    child.on('message', (index, handle) => {
      const port = ports[Number(index)];
      if (port === undefined || !(handle instanceof Socket)) {
        fail('unshare did not send a socket');
        return;
      }
      sockets.set(port, handle);
      if (sockets.size === ports.length) {
        clearTimeout(timer);
        resolve();
      }
    });
  });
}
