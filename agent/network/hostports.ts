/** Checks whether the host ports that machines reserve are allowed and free. To learn whether a port is free, the agent binds it. */
import { createSocket } from 'node:dgram';
import { createServer, isIPv4 } from 'node:net';
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { portName } from '../../api/v1alpha1/ports.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { type PortRules, whyDenied, whyNotReservable } from '../../api/v1alpha1/reservable.ts';
import { codeOf, messageOf } from '../../base/errors.ts';

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

/** Returns whether this host can bind ports of the address. */
export async function isOwnAddress(address: string): Promise<boolean> {
  try {
    // The kernel chooses a free port.
    await bindUdp(address, 0);
    return true;
  } catch (error) {
    if (codeOf(error) === 'EADDRNOTAVAIL') {
      return false;
    }
    throw error;
  }
}

function describePort(port: MachinePort): string {
  return `${port.hostPort}/${port.protocol}`;
}

/** Checks that the configuration allows all ports. @throws ReasonedError `PortNotReservable` when it forbids a port. */
function requireReservable(rules: PortRules, ports: readonly MachinePort[]): void {
  const message = faultsOf(rules, ports);
  if (message !== undefined) {
    throw new ReasonedError('PortNotReservable', message);
  }
}

/**
 * Checks the ports against the configuration of this host. Returns a message with each forbidden port and the setting that forbids it, or
 * undefined if all ports are allowed.
 */
export function faultsOf(rules: PortRules, ports: readonly MachinePort[]): string | undefined {
  const faults = ports.flatMap((port) => faultOf(rules, port) ?? []);
  const denied = 'The configuration of this host does not allow the reserved ports';
  return faults.length === 0 ? undefined : `${denied}: ${faults.join('; ')}`;
}

/** Returns why a port is forbidden; undefined if it is allowed. The setting `ports.reservable` does not limit ports that the host chose. */
export function faultOf(rules: PortRules, { automatic, hostPort }: MachinePort): string | undefined {
  return automatic === true ? whyDenied(rules, hostPort) : whyNotReservable(rules, hostPort);
}

/**
 * Checks that each port is free. For this check, the function binds the port and releases it at once.
 *
 * @throws ReasonedError `PortTaken`, with the port in the message, when another process uses the port; ReasonedError `NetworkUnavailable`
 * when the bind fails for another reason (the address belongs to another host, or the agent has no right to bind the port).
 */
export async function requireFreePorts(address: string, ports: readonly MachinePort[]): Promise<void> {
  if (!isIPv4(address)) {
    const message = `The address "${address}" is not an IPv4 address; set network.hostAddress to an IPv4 address of this host`;
    throw new ReasonedError('NetworkUnavailable', message);
  }
  for (const port of ports) {
    try {
      await (port.protocol === 'TCP' ? bindTcp : bindUdp)(address, port.hostPort);
    } catch (error) {
      const where = `${describePort(port)} on ${address}`;
      const [reason, message] =
        codeOf(error) === 'EADDRINUSE'
          ? (['PortTaken', `Port ${where} is in use on this host`] as const)
          : (['NetworkUnavailable', `This host cannot use port ${where}: ${messageOf(error)}`] as const);
      throw new ReasonedError(reason, message, { cause: error });
    }
  }
}

/**
 * Checks that no other machine reserves one of the ports. An attempt to bind a port is not sufficient. In the network
 * `nat`, no socket listens on reserved ports. In the network `user`, QEMU does not listen on the ports until it has started.
 *
 * @param reserved reserved ports of all machines, by uid.
 * @throws ReasonedError `PortTaken`, which names the port but not the other machine, because another tenant might own that machine.
 */
function requireUnreserved(
  uid: string,
  ports: readonly MachinePort[],
  reserved: Iterable<readonly [string, readonly MachinePort[]]>,
): void {
  for (const [other, held] of reserved) {
    const clash = ports.find((port) => held.some((one) => portName(one) === portName(port)));
    if (other !== uid && clash) {
      const message = `Another machine on this host already reserves port ${describePort(clash)}`;
      throw new ReasonedError('PortTaken', message);
    }
  }
}

/** Data that is needed to check whether a machine can use a port. */
export interface PortChecks {
  rules: PortRules;
  /** IPv4 address at which reserved ports are reached; 0.0.0.0 means all addresses. */
  address: string;
  /** Reserved ports of all machines. The key is the machine's uid. */
  reserved: Iterable<readonly [string, readonly MachinePort[]]>;
  /** Returns a message if rules of other programs lead the port elsewhere; otherwise undefined. */
  whyPublished: (port: MachinePort) => string | undefined;
}

/**
 * Checks all ports of a machine before its start.
 *
 * @throws the errors of {@link requireReservable}, {@link requireUnreserved} and {@link requireFreePorts}; ReasonedError `PortTaken` when
 * rules of other programs lead a port elsewhere.
 */
export async function requireUsable(
  uid: string,
  ports: readonly MachinePort[],
  { rules, address, reserved, whyPublished }: PortChecks,
): Promise<void> {
  requireReservable(rules, ports);
  requireUnreserved(uid, ports, reserved);
  const published = ports.map(whyPublished).find((message) => message !== undefined);
  if (published !== undefined) {
    throw new ReasonedError('PortTaken', published);
  }
  await requireFreePorts(address, ports);
}

/**
 * Returns whether {@link requireUsable} accepts the port.
 *
 * @throws ReasonedError `NetworkUnavailable` when the check fails, for example because the address belongs to another host.
 */
export async function isUsable(uid: string, port: MachinePort, checks: PortChecks): Promise<boolean> {
  try {
    await requireUsable(uid, [port], checks);
    return true;
  } catch (error) {
    if (error instanceof ReasonedError && error.reason !== 'NetworkUnavailable') {
      return false;
    }
    throw error;
  }
}
