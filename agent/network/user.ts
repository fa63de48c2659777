/**
 * Connects guests with QEMU's user-mode network. This network does not need the rights of root, and uses only QEMU's own sockets on the
 * host. The network is meant for a first try on a laptop.
 *
 * The user-mode network alone does not protect the host. A guest can reach everything that the Linux user of QEMU can reach. At the address
 * 10.0.2.2, a guest reaches the host's loopback. QEMU can prevent this only if it gives the guest no network at all. If the agent is root,
 * the {@link UserGuard} protects the host: its nftables rules recognise the packets of a hypervisor by its Linux user. Hosts with several
 * tenants use `nat`.
 */
import { readFile } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { PortRules } from '../../api/v1alpha1/ports.ts';
import {
  type AttachOptions,
  type GuestNetwork,
  type NamespaceNetwork,
  type Network,
  type NetworkReport,
  normaliseMacAddress,
} from './network.ts';
import { isMissing, messageOf, undefinedIf } from '../../base/errors.ts';
import { faultsOf, isUsable, type PortChecks, requireUsable } from './hostports.ts';
import { run } from './commands.ts';
import { fingerprint, readTable } from './nftables.ts';

export interface UserNetworkOptions {
  /** IPv4 address of this host on which QEMU listens for reserved ports; 0.0.0.0 means all addresses. */
  hostAddress: string;
  /** Rules for the ports that machines may reserve. */
  ports: PortRules;
  /** Guard that prevents connections from guests to the host. Undefined if no guard is possible. */
  guard: UserGuard | undefined;
}

export class UserNetwork implements Network {
  readonly name = 'user';
  readonly #hostAddress: string;
  readonly #rules: PortRules;
  readonly #guard: UserGuard | undefined;
  readonly #ports = new Map<string, MachinePort[]>();

  constructor(options: UserNetworkOptions) {
    this.#hostAddress = options.hostAddress;
    this.#rules = options.ports;
    this.#guard = options.guard;
  }

  async setUp(): Promise<void> {
    await this.#guard?.setUp();
  }

  async attachNamespace(): Promise<NamespaceNetwork> {
    const message =
      'The network driver `user` has no network namespaces for emulators. Set network.driver to `nat`';
    throw new ReasonedError('NetworkUnavailable', message);
  }

  async attach(uid: string, options: AttachOptions): Promise<GuestNetwork> {
    if (!options.running) {
      await requireUsable(uid, options.ports, this.#checks());
    }
    const macAddress = normaliseMacAddress(options.macAddress);
    this.#ports.set(uid, options.ports);
    const { ports } = options;
    return { kind: 'user', macAddress, address: undefined, hostAddress: this.#hostAddress, ports };
  }

  isUsable(uid: string, port: MachinePort): Promise<boolean> {
    return isUsable(uid, port, this.#checks());
  }

  #checks(): PortChecks {
    // This network works without nftables, so it cannot read the rules of other programs.
    const whyPublished = (): undefined => undefined;
    return { rules: this.#rules, address: this.#hostAddress, reserved: this.#ports, whyPublished };
  }

  async detach(uid: string): Promise<void> {
    this.#ports.delete(uid);
  }

  async address(): Promise<undefined> {
    return undefined;
  }

  /**
   * Checks the guard's rules. No other part of the network can break, because the network is inside QEMU's process. QEMU itself listens on
   * the reserved ports, so no other process can use them.
   */
  async check(): Promise<NetworkReport> {
    const machines = [...this.#ports].map(([uid, ports]) => [uid, this.#health(ports)] as const);
    const report = { machines: Object.fromEntries(machines), refusedConnections: {} };
    try {
      const repaired = (await this.#guard?.hold()) ? ['The nftables rules were missing or changed'] : [];
      return { ...report, healthy: true, repaired, faults: [] };
    } catch (error) {
      const fault = `The nftables rules that prevent guests from reaching the addresses of this host could not be checked or loaded: ${messageOf(error)}`;
      return { ...report, healthy: false, repaired: [], faults: [fault] };
    }
  }

  #health(ports: readonly MachinePort[]): { healthy: boolean; message: string } {
    const denied = faultsOf(this.#rules, ports);
    const message = denied ?? 'The hypervisor provides the network; the host has nothing to check';
    return { healthy: denied === undefined, message };
  }

  async attached(): Promise<string[]> {
    return [...this.#ports.keys()];
  }

  /** Removes the guard's rules if no machine is attached. Otherwise the rules stay for machines that continue to run. */
  async close(): Promise<void> {
    if (this.#ports.size === 0) {
      await this.#guard?.remove();
    }
    this.#ports.clear();
  }
}

export interface UserGuardOptions {
  /** Name of the nftables table. Each agent of a host has its own table. */
  table: string;
  /**
   * Uids of the Linux users of this agent's machines, in the form of nftables: `7`, `10-19`. The guard applies to all processes of these
   * users, so no other process may run as one of these users.
   */
  users: readonly string[];
  forbidden: { ipv4: readonly string[]; ipv6: readonly string[] };
  /**
   * Path of the resolv.conf that hypervisors read. Hypervisors send the guests' DNS queries to the servers in this file, often to
   * 127.0.0.53.
   */
  resolvConf: string;
}

export class UserGuard {
  readonly #options: UserGuardOptions;
  /** The nftables script that was loaded last, and the fingerprint of the rules that the kernel had afterwards. */
  #loaded: { script: string; fingerprint: string } | undefined;

  constructor(options: UserGuardOptions) {
    this.#options = options;
  }

  /**
   * Loads the guard's rules, unless the kernel already has exactly these rules. Returns whether the function loaded them. @throws Error
   * when a check or the load fails.
   */
  async hold(): Promise<boolean> {
    const script = guardScript(this.#options, await this.#resolvers());
    if (this.#loaded?.script === script && this.#loaded.fingerprint === (await this.#fingerprint())) {
      return false;
    }
    await run('nft', ['-f', '-'], script);
    this.#loaded = { script, fingerprint: await this.#fingerprint() };
    return true;
  }

  /**
   * Loads the rules for the first time.
   *
   * @throws ReasonedError `NetworkUnavailable` when the load fails; the message names the setting that switches the guard off.
   */
  async setUp(): Promise<void> {
    try {
      await this.hold();
    } catch (error) {
      const message =
        'The agent cannot load the rules that prevent guests from reaching the addresses of this host. ' +
        'The agent needs nftables (package nftables) and the right to administer the network. ' +
        `If you trust all guests, set network.guestsMayReachHost to true instead. The load failed with: ${messageOf(error)}`;
      throw new ReasonedError('NetworkUnavailable', message, { cause: error });
    }
  }

  async remove(): Promise<void> {
    await run('nft', ['-f', '-'], removal(this.#options.table));
    this.#loaded = undefined;
  }

  async #fingerprint(): Promise<string> {
    const name = `inet ${this.#options.table}`;
    return fingerprint(await readTable(name), [name]);
  }

  async #resolvers(): Promise<string[]> {
    const text = (await undefinedIf(isMissing, readFile(this.#options.resolvConf, 'utf8'))) ?? '';
    const named = [...text.matchAll(/^\s*nameserver\s+(\S+)/gm)].map(([, address = '']) => address);
    return named.filter((address) => isIPv4(address));
  }
}

/** Returns the nftables script that removes a table of this name. The script also succeeds if there is no such table. */
export function removal(table: string): string {
  return `add table inet ${table}\ndelete table inet ${table}\n`;
}

/**
 * Returns the nftables script of the guard. Clients on the host can connect to reserved ports over loopback, so the rules accept the
 * replies of guests to these clients. The rules check a packet before and after address translation. Rules of other programs can lead an
 * address of the host elsewhere, or a permitted address to a forbidden one.
 */
function guardScript({ table, users, forbidden }: UserGuardOptions, resolvers: readonly string[]): string {
  const rules = [
    'ct direction reply ct state established,related accept',
    ...resolvers.map((address) => `ip daddr ${address} meta l4proto { tcp, udp } th dport 53 accept`),
    'fib daddr type { local, broadcast, multicast } drop',
    'ip daddr @may_not_reach drop',
    'ip6 daddr @may_not_reach_ipv6 drop',
  ];
  // When a process has closed a connection, the kernel no longer knows the user of the connection's last packets. Such packets pass, because
  // most of them come from other programs than hypervisors.
  const ofMachines = `meta skuid { ${users.join(', ')} }`;
  return `${removal(table)}table inet ${table} {
  ${networkSet('may_not_reach', 'ip daddr', forbidden.ipv4)}
  ${networkSet('may_not_reach_ipv6', 'ip6 daddr', forbidden.ipv6)}
  chain reach {
    ${rules.join('\n    ')}
  }
  chain sent {
    type filter hook output priority mangle; policy accept;
    ${ofMachines} jump reach
  }
  chain output {
    type filter hook output priority filter; policy accept;
    ${ofMachines} jump reach
  }
}
`;
}

/**
 * Returns a set of networks that rules compare with `field`. The set names the field instead of its type: nft 1.1 stores a single type in a
 * form that makes nft 1.0 crash, and the nft of a host can be older than that of the agent's image.
 */
function networkSet(name: string, field: string, networks: readonly string[]): string {
  const elements = networks.length === 0 ? '' : `elements = { ${networks.join(', ')} };`;
  return `set ${name} { typeof ${field}; flags interval; auto-merge; ${elements} }`;
}
