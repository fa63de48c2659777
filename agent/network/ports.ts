/** Whether a port on this host is free, found by binding it. */
import { createSocket } from 'node:dgram';
import { createServer } from 'node:net';
import { isIPv4 } from 'node:net';
import { codeOf } from '../../base/errors.ts';
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { type PortRules, whyNotReservable } from '../../api/v1alpha1/reservable.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';

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

function describePort(port: MachinePort): string {
  return `${port.hostPort}/${port.protocol}`;
}

/** @throws ReasonedError `PortNotReservable` with every port that this host keeps from machines, and the setting that does. */
export function requireReservable(rules: PortRules, ports: readonly MachinePort[]): void {
  const faults = ports.map(({ hostPort }) => whyNotReservable(rules, hostPort));
  const message = faults.filter((fault) => fault !== undefined).join('; ');
  if (message !== '') {
    throw new ReasonedError('PortNotReservable', `this host's configuration: ${message}`);
  }
}

/**
 * Binds each port once and lets go of it.
 *
 * @throws ReasonedError `PortTaken` naming the port when something holds it, ReasonedError `NetworkUnavailable` when it cannot be bound for
 * another reason (address not of this host, no right).
 */
export async function requireFreePorts(address: string, ports: readonly MachinePort[]): Promise<void> {
  if (!isIPv4(address)) {
    throw new ReasonedError(
      'NetworkUnavailable',
      `the host address ${JSON.stringify(address)} is not an IPv4 address`,
    );
  }
  for (const port of ports) {
    try {
      await (port.protocol === 'TCP' ? bindTcp : bindUdp)(address, port.hostPort);
    } catch (error) {
      const code = codeOf(error);
      if (code === 'EADDRINUSE') {
        throw new ReasonedError(
          'PortTaken',
          `port ${describePort(port)} on ${address} is in use on this host`,
          {
            cause: error,
          },
        );
      }
      throw new ReasonedError(
        'NetworkUnavailable',
        `port ${describePort(port)} on ${address} cannot be bound: ${String(code)}`,
        {
          cause: error,
        },
      );
    }
  }
}
