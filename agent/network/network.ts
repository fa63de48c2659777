/**
 * Defines the interface to a host's network for machines. Each way to connect guests has a driver. A driver manages the parts that all
 * machines share (bridge, rules, helper programs), and one attachment per machine, identified by the Pod's uid.
 */
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { RunAs } from '../../base/exec.ts';
import type { GuestFilter } from './softnet.ts';

interface GuestCard {
  /** MAC address in lower case, separated by colons. */
  macAddress: string;
  /**
   * The guest's IPv4 address as other programs on the host see it. Undefined if the guest has no such address, as in the network `user`.
   */
  address: string | undefined;
}

/** Connection of one guest to the network. The machine's driver makes the hypervisor's arguments from this connection. */
export type GuestNetwork =
  /** Tap of this host, which the hypervisor opens by its name. */
  | (GuestCard & { kind: 'tap'; device: string })
  /**
   * User-mode network inside the hypervisor's process. The hypervisor itself listens on the reserved ports at `hostAddress`, an IPv4 address
   * of this host; 0.0.0.0 means all addresses. With `filter`, the hypervisor filters the packets of the guest.
   */
  | (GuestCard & {
      kind: 'user';
      hostAddress: string;
      ports: readonly MachinePort[];
      filter?: GuestFilter;
    });

/**
 * Connection of a program that runs in a network namespace of its own, for example an emulator. The program listens only on the loopback
 * address of the namespace. If a client connects to the exposed port at `address`, the network forwards the connection to the program.
 */
export interface NamespaceNetwork {
  kind: 'namespace';
  /** Path of the network namespace, for `nsenter --net=PATH`. */
  path: string;
  /** IPv4 address of the network namespace. This host, and the machine that may use the program, connect to this address. */
  address: string;
  /** IPv4 address of the DNS server that the program can use. */
  dnsServer: string;
}

export interface NamespaceOptions {
  /**
   * TCP port of the program on the loopback address of its network namespace. From outside the namespace, only this port can be reached.
   */
  exposedPort: number;
  /**
   * Uid of the only machine that may connect; undefined if no machine may connect. The root user of this host can always connect. The field
   * is a uid and not an address, because the machine's address can change, and the machine can be detached.
   */
  peer: string | undefined;
  /** Ports of this host that lead to the exposed port. */
  ports: MachinePort[];
  /**
   * True if an earlier run of the agent started the program and the program still runs. In this case, the driver does not check whether the
   * ports are free.
   */
  running?: boolean;
}

export interface AttachOptions {
  /** MAC address in lower or upper case, separated by colons. */
  macAddress: string;
  ports: MachinePort[];
  /**
   * The machine's own Linux user, for QEMU and the tap. Absent if the agent is not root, or if an earlier release of the agent started
   * QEMU.
   */
  runAs?: RunAs;
  /**
   * True if an earlier run of the agent started the machine and the machine still runs. In this case, the driver does not check whether the
   * machine's ports are free, because the hypervisor can already be listening on them.
   */
  running?: boolean;
}

/** Health of a network: whether packets reach their targets. */
export interface NetworkHealth {
  healthy: boolean;
  /** Message for users about the health. */
  message: string;
}

/** Result of one {@link Network.check}. */
export interface NetworkReport {
  /** True if no fault affects all machines. */
  healthy: boolean;
  /** One message for each difference in the network that the check has found and repaired. */
  repaired: string[];
  /** Messages about remaining faults, each with the cause. */
  faults: string[];
  /** Health of each machine's connection. The key is the machine's uid. */
  machines: Record<string, NetworkHealth>;
  /**
   * Number of packets that the rules have dropped since the last check, because the guest had reached its limit of connections. The key is
   * the uid of the guest's machine.
   */
  refusedConnections: Record<string, number>;
  /** Why no further machine can be attached, although those that are attached work. Absent if one can be attached, or in case of a fault. */
  obstacle?: string;
}

export interface Network {
  readonly name: 'user' | 'nat' | 'vmnet' | 'softnet';
  /** Creates all parts that machines share. Idempotent. @throws ReasonedError `NetworkUnavailable` when the host lacks a requirement. */
  setUp(): Promise<void>;
  /**
   * Attaches a machine to the network. Idempotent.
   *
   * @throws ReasonedError `PortNotReservable` when this host's configuration does not allow a port; ReasonedError `PortTaken` when
   * another machine or process uses one of the ports.
   */
  attach(uid: string, options: AttachOptions): Promise<GuestNetwork>;
  /**
   * Makes a network namespace for a program. Idempotent. {@link detach} removes it.
   *
   * @throws ReasonedError `NetworkUnavailable` when this driver has no network namespaces; ReasonedError `PortTaken` or `PortNotReservable`
   * as for {@link attach}.
   */
  attachNamespace(uid: string, options: NamespaceOptions): Promise<NamespaceNetwork>;
  /** Returns whether the machine could use the port. The port must be allowed, and no other machine or program may use it. */
  isUsable(uid: string, port: MachinePort): Promise<boolean>;
  /**
   * Removes the attachment of a machine or program completely, for example a machine's tap, rules, lease and tracked connections.
   * Idempotent.
   *
   * @throws Error when a part could not be removed. The next call removes the rest.
   */
  detach(uid: string): Promise<void>;
  address(uid: string): Promise<string | undefined>;
  /** Compares the wanted with the actual state, repairs differences, and sends test packets. @throws Error when the check fails. */
  check(): Promise<NetworkReport>;
  /**
   * Returns the uids of attached machines. The `nat` driver saves its attachments, so the result includes machines that were attached
   * before a restart of the agent.
   */
  attached(): Promise<string[]>;
  /** Releases the resources of this process. If no machine is attached, removes the network from the host. Otherwise the network stays. */
  close(): Promise<void>;
}

const MAC_ADDRESS = /^([0-9a-f]{2}:){5}[0-9a-f]{2}$/;

/** Returns a MAC address in lower case. @throws ReasonedError `NetworkUnavailable` when the text is not a MAC address. */
export function normaliseMacAddress(text: string): string {
  const mac = text.toLowerCase();
  if (!MAC_ADDRESS.test(mac)) {
    throw new ReasonedError('NetworkUnavailable', `${JSON.stringify(text)} is not a MAC address`);
  }
  return mac;
}
