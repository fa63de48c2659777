/**
 * Connects guests with QEMU's user-mode network. This network does not need the rights of root, and uses only QEMU's own sockets on the
 * host. The network is meant for a first try on a laptop.
 *
 * The user-mode network alone does not protect the host. A guest can reach everything that the Linux user of QEMU can reach. At the address
 * 10.0.2.2, a guest reaches the host's loopback. QEMU can prevent this only if it gives the guest no network at all. If the agent is root,
 * the {@link UserGuard} protects the host. Hosts with several tenants use `nat`.
 */
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { PortRules } from '../../../api/v1alpha1/reservable.ts';
import {
  type AttachOptions,
  type GuestNetwork,
  type NamespaceNetwork,
  type Network,
  type NetworkReport,
  normaliseMacAddress,
} from '../network.ts';
import { messageOf } from '../../../base/errors.ts';
import { faultsOf, isUsable, type PortChecks, requireUsable } from '../hostports.ts';
import type { UserGuard } from './guard.ts';

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
    const forwards = options.ports.map(({ protocol, hostPort, guestPort }) => ({
      protocol,
      hostAddress: this.#hostAddress,
      hostPort,
      guestPort,
    }));
    return { kind: 'user', macAddress, address: undefined, forwards };
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
