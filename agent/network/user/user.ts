/**
 * QEMU's user-mode network: no root, nothing on the host but QEMU's own sockets. For a first try on a laptop.
 *
 * It is no boundary towards the host: a guest reaches whatever the user running QEMU reaches, and 10.0.2.2 is the
 * host's loopback (QEMU has no switch for that short of cutting the guest off). Hosts shared by tenants use `nat`.
 */
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { type PortRules, whyNotReservable } from '../../../api/v1alpha1/reservable.ts';
import {
  type AttachOptions,
  cardArguments,
  type GuestNetwork,
  type Network,
  type NetworkReport,
  PortTakenError,
} from '../network.ts';
import { requireFreePorts, requireReservable } from '../ports.ts';

export interface UserNetworkOptions {
  /** IPv4 address of this host on which reserved ports listen; 0.0.0.0 for all. */
  hostAddress: string;
  /** Which ports machines may reserve. */
  ports: PortRules;
}

export class UserNetwork implements Network {
  readonly name = 'user';
  readonly #hostAddress: string;
  readonly #rules: PortRules;
  readonly #ports = new Map<string, MachinePort[]>();

  constructor(options: UserNetworkOptions) {
    this.#hostAddress = options.hostAddress;
    this.#rules = options.ports;
  }

  async setUp(): Promise<void> {
    // QEMU brings all of it.
  }

  async attach(uid: string, options: AttachOptions): Promise<GuestNetwork> {
    if (!options.running) {
      requireReservable(this.#rules, options.ports);
      this.#refuseOverlap(uid, options.ports);
      await requireFreePorts(this.#hostAddress, options.ports);
    }
    this.#ports.set(uid, options.ports);
    const forwards = options.ports.map((port) => this.#forward(port));
    // IPv6 off: QEMU would offer an address that leads nowhere on most hosts.
    const netdev = ['user', 'id=net0', 'ipv6=off', ...forwards].join(',');
    return { arguments: ['-netdev', netdev, ...cardArguments(options.macAddress)], address: undefined };
  }

  async detach(uid: string): Promise<void> {
    this.#ports.delete(uid);
  }

  async address(): Promise<undefined> {
    return undefined;
  }

  /**
   * There is nothing of ours between guest and host that could break: QEMU's process is the network. It holds its reserved
   * ports itself, so that nothing else can take them.
   */
  async check(): Promise<NetworkReport> {
    const machines = [...this.#ports].map(([uid, ports]) => [uid, this.#health(ports)] as const);
    return { healthy: true, repaired: [], faults: [], machines: Object.fromEntries(machines) };
  }

  #health(ports: readonly MachinePort[]): { healthy: boolean; message: string } {
    const faults = ports.map(({ hostPort }) => whyNotReservable(this.#rules, hostPort));
    const message = faults.filter((fault) => fault !== undefined).join('; ');
    return message === ''
      ? { healthy: true, message: 'user-mode network inside the hypervisor; nothing on the host to check' }
      : { healthy: false, message: `reserved before this host's configuration changed: ${message}` };
  }

  async attached(): Promise<string[]> {
    return [...this.#ports.keys()];
  }

  async close(): Promise<void> {
    this.#ports.clear();
  }

  #forward(port: MachinePort): string {
    return `hostfwd=${port.protocol.toLowerCase()}:${this.#hostAddress}:${port.hostPort}-:${port.guestPort}`;
  }

  /** A machine being started does not listen yet, so that binding alone would not show it. */
  #refuseOverlap(uid: string, ports: readonly MachinePort[]): void {
    for (const [other, held] of this.#ports) {
      if (other === uid) continue;
      const clash = ports.find((port) =>
        held.some((one) => one.hostPort === port.hostPort && one.protocol === port.protocol),
      );
      if (clash) {
        throw new PortTakenError(
          `port ${clash.hostPort}/${clash.protocol} is reserved by machine ${other} on this host`,
        );
      }
    }
  }
}
