/**
 * The network of a host's machines: one driver per way of connecting a guest. A driver owns its host-wide part
 * (bridge, rules, helpers) and one attachment per machine, keyed by Pod uid.
 */
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { RunAs } from '../../base/exec.ts';

interface GuestCard {
  /** Lower case, colon-separated. */
  macAddress: string;
  /** The guest's IPv4 address as others on the host see it; undefined where it has none of its own (`user`). */
  address: string | undefined;
}

/** A reserved port, for a hypervisor that listens on it itself. */
export interface Forward {
  protocol: MachinePort['protocol'];
  /** IPv4 address of this host; 0.0.0.0 for all. */
  hostAddress: string;
  hostPort: number;
  guestPort: number;
}

/** How one guest is connected. The driver of its machine makes the arguments of its hypervisor from this. */
export type GuestNetwork =
  /** A tap of this host, which the hypervisor opens by its name. */
  | (GuestCard & { kind: 'tap'; device: string })
  /** A network inside the hypervisor. */
  | (GuestCard & { kind: 'user'; forwards: Forward[] });

export interface AttachOptions {
  /** Colon-separated, lower or upper case. */
  macAddress: string;
  ports: MachinePort[];
  /** The machine's own user, which QEMU runs as; a tap belongs to it. Absent where the agent is not root, or an earlier agent made the process. */
  runAs?: RunAs;
  /** The hypervisor already runs (found after a restart of the agent): reserved ports in use are its own. */
  running?: boolean;
}

/** Whether packets go through. */
export interface NetworkHealth {
  healthy: boolean;
  /** For people. */
  message: string;
}

/** The result of one {@link Network.check}. */
export interface NetworkReport {
  /** No fault that touches every machine. */
  healthy: boolean;
  /** What differed and was put right, one text each; empty when nothing was wrong. */
  repaired: string[];
  /** What is wrong still, with the name of what is in the way. */
  faults: string[];
  /** By machine uid. A machine can be cut off alone. */
  machines: Record<string, NetworkHealth>;
  /** Packets dropped since the last check because a guest has all the connections that it may have, by machine uid. */
  refusedConnections: Record<string, number>;
}

export interface Network {
  readonly name: 'user' | 'nat';
  /** Makes the host-wide part; idempotent. @throws ReasonedError `NetworkUnavailable` where the host lacks something. */
  setUp(): Promise<void>;
  /**
   * Idempotent.
   *
   * @throws ReasonedError `PortNotReservable` for a port that this host keeps from machines, ReasonedError `PortTaken` when something else
   * holds one of the ports.
   */
  attach(uid: string, options: AttachOptions): Promise<GuestNetwork>;
  /** Afterwards nothing of the attachment remains: tap, rules, lease, connection-tracking state. Idempotent. */
  detach(uid: string): Promise<void>;
  address(uid: string): Promise<string | undefined>;
  /** Compares what should be with what is, repairs the difference, and sends packets through. */
  check(): Promise<NetworkReport>;
  /** Uids attached. A driver whose attachments leave traces on the host (`nat`) knows them after a restart of the agent too. */
  attached(): Promise<string[]>;
  /** Lets go of what lives in this process. Machines keep their network; where there are none, nothing of it is left on the host. */
  close(): Promise<void>;
}

const MAC_ADDRESS = /^([0-9a-f]{2}:){5}[0-9a-f]{2}$/;

/** Lower-cased and checked, so that it can stand in a rule or an argument. */
export function normaliseMacAddress(text: string): string {
  const mac = text.toLowerCase();
  if (!MAC_ADDRESS.test(mac)) {
    throw new ReasonedError('NetworkUnavailable', `not a MAC address: ${JSON.stringify(text)}`);
  }
  return mac;
}
