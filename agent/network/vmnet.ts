/**
 * Connects guests by the shared network of macOS (`vmnet`), which the hypervisor itself provides. Each guest has an address there, which it gets
 * late, from the DHCP server of macOS. macOS forwards no ports to guests, so the agent passes on the TCP connections from reserved ports. These
 * connections end with the agent. The ports are open again when the next agent has taken over its machines.
 */
import { createServer, createConnection, type Server, type Socket } from 'node:net';
import type { Logger } from 'pino';
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import type { PortRules } from '../../api/v1alpha1/ports.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { codeOf, messageOf } from '../../base/errors.ts';
import { isUsable, type PortChecks, requireUsable } from './hostports.ts';
import type { Leases } from './leases.ts';
import {
  type AttachOptions,
  type GuestNetwork,
  type NamespaceNetwork,
  type Network,
  type NetworkHealth,
  type NetworkReport,
  normaliseMacAddress,
} from './network.ts';

/** Time after which a known address is asked for again. A guest keeps its address as long as its lease is renewed. */
const KNOWN_MILLISECONDS = 30_000;
/**
 * Time after which a guest should have an address. Guests boot for a minute. The check of the leases then explains an address that is still
 * missing.
 */
const LATE_MILLISECONDS = 120_000;
/** Time between two questions for an address that is not known yet. Each question starts a program. */
const UNKNOWN_MILLISECONDS = 2_000;
/**
 * Largest number of connections that the agent passes on to one guest. Each one uses two descriptors of the agent. A desktop has some dozens
 * from outside.
 */
const CONNECTIONS = 256;
/** Time limit for the connection to a guest on the same host. */
const CONNECT_MILLISECONDS = 10_000;
/**
 * Time after which the kernel asks whether the peer of an idle connection still exists. Otherwise clients that have vanished, for example
 * laptops that sleep, would count as connections forever.
 */
const IDLE_MILLISECONDS = 60_000;
/** Largest number of different errors of connections that are logged between two starts of a machine. Clients repeat their attempts. */
const LOGGED_ERRORS = 8;

const TOO_MANY = 'The guest has too many connections';

export interface VmnetNetworkOptions {
  /** IPv4 address of this host on which the reserved ports are open; 0.0.0.0 means all addresses. */
  hostAddress: string;
  /** Rules for the ports that machines may reserve. */
  ports: PortRules;
  /** Asks for the address of a guest by the uid of its machine. Undefined as long as the guest has none. */
  addressOf: (uid: string) => Promise<string | undefined>;
  /** Reads the leases of the host. Undefined as long as its DHCP server has given none. */
  leases: () => Promise<Leases | undefined>;
  logger: Logger;
  /** Clock in milliseconds that is never set back. */
  now?: () => number;
}

interface Attachment {
  ports: readonly MachinePort[];
  servers: Server[];
  /** Errors of the ports that could not be opened. Each check tries to open these ports again. */
  faults: Map<MachinePort, ReasonedError>;
  connections: Set<Socket>;
  /** Messages of the errors of connections that were logged. */
  logged: Set<string>;
  address: string | undefined;
  /** Time of the clock at which the machine was attached. */
  attachedAt: number;
  /** Time of the last question for the address. */
  askedAt: number;
  asking: Promise<string | undefined> | undefined;
}

export class VmnetNetwork implements Network {
  readonly name = 'vmnet';
  readonly #options: VmnetNetworkOptions;
  readonly #now: () => number;
  readonly #attachments = new Map<string, Attachment>();

  constructor(options: VmnetNetworkOptions) {
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
  }

  async setUp(): Promise<void> {
    // macOS makes the network when the first guest starts.
  }

  async attachNamespace(): Promise<NamespaceNetwork> {
    const message = 'The network driver `vmnet` has no network namespaces for emulators';
    throw new ReasonedError('NetworkUnavailable', message);
  }

  async attach(uid: string, { macAddress, ports, running }: AttachOptions): Promise<GuestNetwork> {
    const udp = ports.find(({ protocol }) => protocol === 'UDP');
    if (udp !== undefined) {
      throw new ReasonedError(
        'PortNotReservable',
        `Port ${udp.hostPort}/UDP: a host with the network driver vmnet passes on TCP only`,
      );
    }
    // The ports of an earlier start are closed first. Otherwise they would count as taken.
    await this.detach(uid);
    if (!running) {
      await requireUsable(uid, ports, this.#checks());
    }
    const attachment: Attachment = {
      ports,
      servers: [],
      faults: new Map(),
      connections: new Set(),
      logged: new Set(),
      address: undefined,
      attachedAt: this.#now(),
      askedAt: Number.NEGATIVE_INFINITY,
      asking: undefined,
    };
    this.#attachments.set(uid, attachment);
    await this.#openPorts(uid, attachment, ports);
    const [fault] = attachment.faults.values();
    // The other ports of a machine that already runs stay open, and the checks report the fault.
    if (fault !== undefined && !running) {
      await this.detach(uid);
      throw fault;
    }
    const { hostAddress } = this.#options;
    const mac = normaliseMacAddress(macAddress);
    // The hypervisor itself listens on no ports.
    return { kind: 'user', macAddress: mac, address: undefined, hostAddress, ports: [] };
  }

  async isUsable(uid: string, port: MachinePort): Promise<boolean> {
    const own = this.#attachments.get(uid)?.ports ?? [];
    const isOwn = own.some(
      ({ hostPort, protocol }) => hostPort === port.hostPort && protocol === port.protocol,
    );
    return isOwn || (port.protocol === 'TCP' && (await isUsable(uid, port, this.#checks())));
  }

  async detach(uid: string): Promise<void> {
    const attachment = this.#attachments.get(uid);
    this.#attachments.delete(uid);
    await (attachment && closePorts(attachment));
  }

  async address(uid: string): Promise<string | undefined> {
    const attachment = this.#attachments.get(uid);
    if (attachment === undefined) {
      return undefined;
    }
    const { address, askedAt } = attachment;
    const pause = address === undefined ? UNKNOWN_MILLISECONDS : KNOWN_MILLISECONDS;
    if (this.#now() - askedAt < pause) {
      return await (attachment.asking ?? address);
    }
    attachment.askedAt = this.#now();
    attachment.asking = this.#options.addressOf(uid).finally(() => (attachment.asking = undefined));
    attachment.address = await attachment.asking;
    return attachment.address;
  }

  /** Opens the ports that could not be opened before, and tells whether the host has run out of addresses. */
  async check(): Promise<NetworkReport> {
    const repaired: string[] = [];
    for (const [uid, attachment] of this.#attachments) {
      const missing = [...attachment.faults.keys()];
      await this.#openPorts(uid, attachment, missing);
      const opened = missing.filter((port) => !attachment.faults.has(port));
      repaired.push(...opened.map(({ hostPort }) => `Port ${hostPort}/TCP of machine ${uid} was closed`));
    }
    const shortage = await this.#shortage();
    const machines = [...this.#attachments].map(
      ([uid, attachment]) =>
        [uid, (this.#isLate(attachment) ? shortage : undefined) ?? healthOf(attachment)] as const,
    );
    const faults = machines
      .filter(([, { healthy }]) => !healthy)
      .map(([uid, { message }]) => `Machine ${uid}: ${message}`);
    return {
      healthy: true,
      repaired,
      faults,
      machines: Object.fromEntries(machines),
      refusedConnections: {},
    };
  }

  async attached(): Promise<string[]> {
    return await Promise.resolve([...this.#attachments.keys()]);
  }

  /** Closes the ports. The guests keep their network. */
  async close(): Promise<void> {
    await Promise.all([...this.#attachments.keys()].map(async (uid) => await this.detach(uid)));
  }

  #isLate({ address, attachedAt }: Attachment): boolean {
    return address === undefined && this.#now() - attachedAt >= LATE_MILLISECONDS;
  }

  /**
   * Returns the health of a guest that waits for an address, if the host has none left. It gets one by itself when a lease ends. The agent
   * cannot end leases, because the file belongs to root.
   */
  async #shortage(): Promise<NetworkHealth | undefined> {
    const isAnyLate = [...this.#attachments.values()].some((attachment) => this.#isLate(attachment));
    const leases = isAnyLate ? await this.#options.leases() : undefined;
    if (leases === undefined || leases.taken < leases.all) {
      return undefined;
    }
    const next = leases.nextEnd === undefined ? '' : ` at ${new Date(leases.nextEnd).toISOString()}`;
    const advice =
      'Shorten the leases of the host to 600 s, and remove its file /var/db/dhcpd_leases if they do not end soon';
    return {
      healthy: false,
      message: `The guest has no address, because all ${leases.all} addresses of the host are leased. The next lease ends${next}. ${advice}`,
    };
  }

  #checks(): PortChecks {
    const { ports: rules, hostAddress: address } = this.#options;
    // No rules of other programs can lead a port elsewhere, because no rules of macOS lead to guests.
    const whyPublished = (): undefined => undefined;
    const reserved = [...this.#attachments].map(([uid, { ports }]) => [uid, ports] as const);
    return { rules, address, reserved, whyPublished };
  }

  /** Opens ports of a machine. The error of a port that cannot be opened is kept in the attachment. */
  async #openPorts(uid: string, attachment: Attachment, ports: readonly MachinePort[]): Promise<void> {
    for (const port of ports) {
      const opened = await this.#listen(uid, port, attachment);
      if (opened instanceof ReasonedError) {
        attachment.faults.set(port, opened);
      } else {
        attachment.faults.delete(port);
        attachment.servers.push(opened);
      }
    }
    if (this.#attachments.get(uid) !== attachment) {
      // The machine was detached meanwhile.
      await closePorts(attachment);
    }
  }

  /** Returns the server of a port, or the error if the port cannot be opened. */
  async #listen(
    uid: string,
    { hostPort, guestPort }: MachinePort,
    attachment: Attachment,
  ): Promise<Server | ReasonedError> {
    const { hostAddress } = this.#options;
    const options = { pauseOnConnect: true, keepAlive: true, keepAliveInitialDelay: IDLE_MILLISECONDS };
    const server = createServer(options, (client) => {
      client.on('error', () => client.destroy());
      this.#passOn(uid, guestPort, { client, attachment }).catch((error: unknown) => {
        // The client sees that the guest has no address, or does not answer: its connection is reset.
        client.resetAndDestroy();
        this.#logOnce(uid, attachment, error);
      });
    });
    server.maxConnections = CONNECTIONS;
    server.on('drop', () => this.#logOnce(uid, attachment, new Error(TOO_MANY)));
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    // The handler stays, because a server can also have an error later, for example when the agent has too many open files.
    server.on('error', reject).listen({ host: hostAddress, port: hostPort, exclusive: true }, resolve);
    try {
      await promise;
    } catch (error) {
      const reason = codeOf(error) === 'EADDRINUSE' ? 'PortTaken' : 'NetworkUnavailable';
      const message = `This host cannot open port ${hostPort}/TCP on ${hostAddress}: ${messageOf(error)}`;
      return new ReasonedError(reason, message, { cause: error });
    }
    return server;
  }

  async #passOn(
    uid: string,
    guestPort: number,
    { client, attachment }: { client: Socket; attachment: Attachment },
  ): Promise<void> {
    const { connections } = attachment;
    if (connections.size >= CONNECTIONS) {
      throw new Error(TOO_MANY);
    }
    connections.add(client);
    client.once('close', () => connections.delete(client));
    const address = await this.address(uid);
    if (client.destroyed) {
      return;
    }
    if (address === undefined) {
      throw new Error('The guest has no address yet');
    }
    const guest = createConnection({ host: address, port: guestPort });
    guest.setTimeout(CONNECT_MILLISECONDS, () => guest.destroy(new Error('The guest does not answer')));
    guest.once('connect', () => {
      guest.setTimeout(0);
      client.pipe(guest).pipe(client);
    });
    guest.on('error', (error) => {
      client.resetAndDestroy();
      this.#logOnce(uid, attachment, error);
    });
    guest.once('close', () => client.destroySoon());
    client.once('close', () => guest.destroy());
  }

  /** Logs why a connection was not passed on, or ended with an error. */
  #logOnce(uid: string, { logged }: Attachment, error: unknown): void {
    const message = messageOf(error);
    if (logged.size < LOGGED_ERRORS && !logged.has(message)) {
      logged.add(message);
      this.#options.logger.warn({ err: error, uid }, 'A connection to a reserved port of a machine failed');
    }
  }
}

function healthOf({ servers, faults }: Attachment): NetworkHealth {
  if (faults.size > 0) {
    const messages = [...faults.values()].map(({ message }) => message);
    return { healthy: false, message: `Reserved ports do not lead to the guest: ${messages.join('; ')}` };
  }
  const healthy = servers.every(({ listening }) => listening);
  const message = healthy
    ? 'The hypervisor provides the network, and the reserved ports are open'
    : 'A reserved port is no longer open';
  return { healthy, message };
}

async function closePorts({ connections, servers }: Attachment): Promise<void> {
  connections.forEach((socket) => socket.destroy());
  await Promise.all(servers.map(async (server) => await closed(server)));
}

async function closed(server: Server): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  server.close(() => resolve());
  await promise;
}
