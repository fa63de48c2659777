/**
 * Defines the network of a host's machines. Each way to connect guests has a driver. A driver owns its host-wide part
 * (bridge, rules, helper programs) and one attachment per machine, by the Pod's uid.
 */
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { RunAs } from '../../base/exec.ts';

interface GuestCard {
  /** MAC address in lower case, separated by colons. */
  macAddress: string;
  /** The guest's IPv4 address as other programs on the host see it. Undefined if the guest has no own address (`user`). */
  address: string | undefined;
}

/** Reserved port on which the hypervisor itself listens. */
export interface Forward {
  protocol: MachinePort['protocol'];
  /** IPv4 address of this host; 0.0.0.0 means all addresses. */
  hostAddress: string;
  hostPort: number;
  guestPort: number;
}

/** Connection of one guest. The machine's driver derives the hypervisor's arguments from it. */
export type GuestNetwork =
  /** Tap of this host, which the hypervisor opens by its name. */
  | (GuestCard & { kind: 'tap'; device: string })
  /** Network inside the hypervisor. */
  | (GuestCard & { kind: 'user'; forwards: Forward[] });

export interface AttachOptions {
  /** MAC address in lower or upper case, separated by colons. */
  macAddress: string;
  ports: MachinePort[];
  /** The machine's own user, for QEMU and the tap. Absent if the agent is not root, or if an earlier agent started the process. */
  runAs?: RunAs;
  /** Whether the hypervisor already runs, as found after a restart of the agent. It then holds the reserved ports itself. */
  running?: boolean;
}

/** Health of a network: whether packets go through. */
export interface NetworkHealth {
  healthy: boolean;
  /** Message for people. */
  message: string;
}

/** Result of one {@link Network.check}. */
export interface NetworkReport {
  /** Whether the network has no fault that affects all machines. */
  healthy: boolean;
  /** Repaired differences, one text each; empty if there was no difference. */
  repaired: string[];
  /** Remaining faults, each with the name of its cause. */
  faults: string[];
  /** Health by machine uid. A fault can affect a single machine. */
  machines: Record<string, NetworkHealth>;
  /** Packets dropped since the last check because a guest has reached its limit of connections, by machine uid. */
  refusedConnections: Record<string, number>;
}

export interface Network {
  readonly name: 'user' | 'nat';
  /** Creates the host-wide part. Idempotent. @throws ReasonedError `NetworkUnavailable` when the host lacks a requirement. */
  setUp(): Promise<void>;
  /**
   * Attaches a machine to the network. Idempotent.
   *
   * @throws ReasonedError `PortNotReservable` when this host's configuration does not allow a port; ReasonedError `PortTaken` when
   * another holder has one of the ports.
   */
  attach(uid: string, options: AttachOptions): Promise<GuestNetwork>;
  /** Removes the attachment completely: tap, rules, lease and tracked connections. Idempotent. */
  detach(uid: string): Promise<void>;
  address(uid: string): Promise<string | undefined>;
  /** Compares the wanted with the actual state, repairs the difference, and tests with packets. @throws Error when this fails. */
  check(): Promise<NetworkReport>;
  /** Returns the uids of attached machines. The `nat` driver saves its attachments, so it also returns those of an earlier agent. */
  attached(): Promise<string[]>;
  /** Releases the resources of this process. Attached machines keep their network. Without machines, it is removed from the host. */
  close(): Promise<void>;
}

const MAC_ADDRESS = /^([0-9a-f]{2}:){5}[0-9a-f]{2}$/;

/** Returns the MAC address in lower case, safe for rules and arguments. @throws ReasonedError `NetworkUnavailable` when it is invalid. */
export function normaliseMacAddress(text: string): string {
  const mac = text.toLowerCase();
  if (!MAC_ADDRESS.test(mac)) {
    throw new ReasonedError('NetworkUnavailable', `${JSON.stringify(text)} is not a MAC address`);
  }
  return mac;
}
