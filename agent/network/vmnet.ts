/**
 * Connects guests by the shared network of macOS (`vmnet`), which the hypervisor itself provides. Each guest has an address there, which it gets
 * late, from the DHCP server of macOS. macOS forwards no ports to guests, so a relay beside the hypervisor passes on the TCP connections from
 * reserved ports. The network driver `softnet` is the same with a filter for the packets of each guest.
 */
import { isDeepStrictEqual } from 'node:util';
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import type { PortRules } from '../../api/v1alpha1/ports.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
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
import { liveRelays } from './portrelay.ts';
import { type GuestFilter, softnetObstacle } from './softnet.ts';

/** Time after which a known address is asked for again. A guest keeps its address as long as its lease is renewed. */
const KNOWN_MILLISECONDS = 30_000;
/**
 * Time after which a guest should have an address. Guests boot for a minute. The check of the leases then explains an address that is still
 * missing.
 */
const LATE_MILLISECONDS = 120_000;
/** Time between two questions for an address that is not known yet. Each question starts a program. */
const UNKNOWN_MILLISECONDS = 2_000;
/** Time between two checks whether the program of the filter can be used. Each check starts one or two programs. */
const PROGRAM_MILLISECONDS = 30_000;

/** Guests as the driver of their machines knows them, by the uid of the machine. */
export interface KnownGuests {
  /** Asks for the address of a guest. Undefined as long as the guest has none. */
  address: (uid: string) => Promise<string | undefined>;
  /** Returns the filter with which the machine runs. Undefined if it has none. */
  filter: (uid: string) => Promise<GuestFilter | undefined>;
}

export interface VmnetNetworkOptions {
  /** IPv4 address of this host on which the reserved ports are open; 0.0.0.0 means all addresses. */
  hostAddress: string;
  /** Rules for the ports that machines may reserve. */
  ports: PortRules;
  guests: KnownGuests;
  /** Filter for each guest, and the path of the program `softnet`. Absent if nothing is filtered. */
  softnet?: { filter: GuestFilter; program: string };
  /** Reads the leases of the host. Undefined as long as its DHCP server has given none. */
  leases: () => Promise<Leases | undefined>;
  /** Clock in milliseconds that is never set back. */
  now?: () => number;
}

interface Attachment {
  ports: readonly MachinePort[];
  address: string | undefined;
  /** Time of the clock at which the machine was attached. */
  attachedAt: number;
  /** Time of the last question for the address. */
  askedAt: number;
  asking: Promise<string | undefined> | undefined;
  /** Whether the machine runs since before the present settings of the filter. */
  isOutdated: boolean;
}

export class VmnetNetwork implements Network {
  readonly name: 'vmnet' | 'softnet';
  readonly #options: VmnetNetworkOptions;
  readonly #now: () => number;
  readonly #attachments = new Map<string, Attachment>();
  /** Last check of the program of the filter: its time, and why the program cannot be used. */
  #program: { at: number; obstacle: string | undefined } | undefined;

  constructor(options: VmnetNetworkOptions) {
    this.name = options.softnet === undefined ? 'vmnet' : 'softnet';
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
  }

  async setUp(): Promise<void> {
    // macOS makes the network when the first guest starts.
  }

  async attachNamespace(): Promise<NamespaceNetwork> {
    const message = `The network driver \`${this.name}\` has no network namespaces for emulators`;
    throw new ReasonedError('NetworkUnavailable', message);
  }

  async attach(uid: string, { macAddress, ports, running }: AttachOptions): Promise<GuestNetwork> {
    const udp = ports.find(({ protocol }) => protocol === 'UDP');
    if (udp !== undefined) {
      throw new ReasonedError(
        'PortNotReservable',
        `Port ${udp.hostPort}/UDP: a host with the network driver ${this.name} passes on TCP only`,
      );
    }
    const { hostAddress, softnet, guests } = this.#options;
    if (!running) {
      await this.#requireProgram();
      await requireUsable(uid, ports, this.#checks());
    }
    this.#attachments.set(uid, {
      ports,
      address: undefined,
      attachedAt: this.#now(),
      askedAt: Number.NEGATIVE_INFINITY,
      asking: undefined,
      isOutdated: running === true && !isDeepStrictEqual(await guests.filter(uid), softnet?.filter),
    });
    const mac = normaliseMacAddress(macAddress);
    const filter = softnet && { filter: softnet.filter };
    return { kind: 'user', macAddress: mac, address: undefined, hostAddress, ports, ...filter };
  }

  async isUsable(uid: string, port: MachinePort): Promise<boolean> {
    const own = this.#attachments.get(uid)?.ports ?? [];
    const isOwn = own.some(
      ({ hostPort, protocol }) => hostPort === port.hostPort && protocol === port.protocol,
    );
    return isOwn || (port.protocol === 'TCP' && (await isUsable(uid, port, this.#checks())));
  }

  async detach(uid: string): Promise<void> {
    this.#attachments.delete(uid);
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
    attachment.asking = this.#options.guests.address(uid).finally(() => (attachment.asking = undefined));
    attachment.address = await attachment.asking;
    return attachment.address;
  }

  /** Tells whether reserved ports are open, whether the host has run out of addresses, and whether the program of the filter can be used. */
  async check(): Promise<NetworkReport> {
    const shortage = await this.#shortage();
    const withoutRelay = await this.#withoutRelay();
    const machines: Record<string, NetworkHealth> = {};
    for (const [uid, attachment] of this.#attachments) {
      const late = this.#isLate(attachment) ? shortage : undefined;
      machines[uid] = late ?? (await this.#health(uid, attachment, !withoutRelay.has(uid)));
    }
    const faults = Object.entries(machines)
      .filter(([, { healthy }]) => !healthy)
      .map(([uid, { message }]) => `Machine ${uid}: ${message}`);
    const obstacle = await this.#obstacle();
    return {
      healthy: true,
      repaired: [],
      faults: obstacle === undefined ? faults : [obstacle, ...faults],
      machines,
      refusedConnections: {},
      ...(obstacle !== undefined && { obstacle }),
    };
  }

  async attached(): Promise<string[]> {
    return await Promise.resolve([...this.#attachments.keys()]);
  }

  /** Forgets the attachments. The relays of the machines go on. */
  async close(): Promise<void> {
    this.#attachments.clear();
    await Promise.resolve();
  }

  /** Returns why the program of the filter cannot be used, as the last check found it. Undefined if it can, or nothing is filtered. */
  async #obstacle(): Promise<string | undefined> {
    const { softnet } = this.#options;
    if (softnet === undefined) {
      return undefined;
    }
    const last = this.#program;
    if (last !== undefined && this.#now() - last.at < PROGRAM_MILLISECONDS) {
      return last.obstacle;
    }
    const found = await softnetObstacle(softnet.program);
    const obstacle =
      found && `The network driver softnet takes no further machine: ${found.finding}. ${found.advice}`;
    this.#program = { at: this.#now(), obstacle };
    return obstacle;
  }

  /** @throws ReasonedError `NetworkUnavailable` when the program of the filter cannot be used. */
  async #requireProgram(): Promise<void> {
    // A person may just have mended it.
    this.#program = undefined;
    const obstacle = await this.#obstacle();
    if (obstacle !== undefined) {
      throw new ReasonedError('NetworkUnavailable', obstacle);
    }
  }

  #isLate({ address, attachedAt }: Attachment): boolean {
    return address === undefined && this.#now() - attachedAt >= LATE_MILLISECONDS;
  }

  /** Returns the guests whose relays have ended although the guests have an address. One list of the host's processes tells it for all. */
  async #withoutRelay(): Promise<Set<string>> {
    const guests = [...this.#attachments]
      .filter(([, { address, ports }]) => address !== undefined && ports.length > 0)
      .map(([uid]) => uid);
    const relays = guests.length === 0 ? new Set<string>() : await liveRelays(guests);
    return new Set(guests.filter((uid) => !relays.has(uid)));
  }

  /** Returns the health of a guest with or without an address. If it has one, its relay must live and listen on the ports. */
  async #health(
    uid: string,
    { ports, address, isOutdated }: Attachment,
    hasRelay: boolean,
  ): Promise<NetworkHealth> {
    for (const port of address === undefined ? [] : ports) {
      const isFree = await isUsable(uid, port, this.#checks());
      if (isFree || !hasRelay) {
        const name = `port ${port.hostPort}/TCP`;
        const cause = isFree
          ? `nobody listens on ${name}. Restart the VM`
          : `their relay has ended, and another program listens on ${name}. End that program, and restart the VM`;
        return { healthy: false, message: `Reserved ports do not lead to the guest: ${cause}` };
      }
    }
    if (isOutdated) {
      const cause = 'The filter of the guest is not that of the network settings of its host';
      return {
        healthy: false,
        message: `${cause}, because the guest runs since before them. Restart the VM`,
      };
    }
    return {
      healthy: true,
      message: 'The hypervisor provides the network, and its relay the reserved ports',
    };
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
}
