import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { expect, test } from 'vitest';
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { portRulesSchema } from '../../api/v1alpha1/ports.ts';
import { UserNetwork, type UserNetworkOptions } from './user.ts';

const MAC = '52:54:00:12:34:56';

function reservation(protocol: 'TCP' | 'UDP', hostPort: number): MachinePort {
  return { protocol, hostPort, guestPort: 22 };
}

function userNetwork(options: Partial<UserNetworkOptions> = {}): UserNetwork {
  return new UserNetwork({
    hostAddress: '127.0.0.1',
    ports: portRulesSchema.parse({}),
    guard: undefined,
    ...options,
  });
}

async function heldTcpPort(): Promise<{ port: number; release: () => void }> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port, release: () => server.close() };
}

async function heldUdpPort(): Promise<{ port: number; release: () => void }> {
  const socket = createSocket('udp4').bind(0, '127.0.0.1');
  await once(socket, 'listening');
  return { port: socket.address().port, release: () => socket.close() };
}

async function freeTcpPort(): Promise<number> {
  const held = await heldTcpPort();
  held.release();
  return held.port;
}

test('the hypervisor listens on reserved ports at the host address', async () => {
  const port = await freeTcpPort();
  const network = userNetwork();
  const ports = [reservation('TCP', port)];
  const guest = await network.attach('a', { macAddress: MAC, ports });
  const listening = { hostAddress: '127.0.0.1', ports };
  expect(guest).toEqual({ kind: 'user', macAddress: MAC, address: undefined, ...listening });
});

test.each([
  ['TCP', heldTcpPort],
  ['UDP', heldUdpPort],
] as const)('a %s port that something listens on is PortTaken', async (protocol, hold) => {
  const held = await hold();
  const network = userNetwork();
  const ports = [reservation(protocol, held.port)];
  await expect(network.attach('a', { macAddress: MAC, ports })).rejects.toMatchObject({
    reason: 'PortTaken',
    message: expect.stringContaining(`${held.port}/${protocol}`) as string,
  });
  // A machine that already runs uses the port itself.
  await expect(network.attach('a', { macAddress: MAC, ports, running: true })).resolves.toBeDefined();
  held.release();
});

test('two machines cannot reserve one port, and a detached machine releases it', async () => {
  const ports = [reservation('TCP', await freeTcpPort())];
  const network = userNetwork();
  await network.attach('a', { macAddress: MAC, ports });
  await network.attach('a', { macAddress: MAC, ports });
  await expect(network.attach('b', { macAddress: MAC, ports })).rejects.toMatchObject({
    reason: 'PortTaken',
    // The message does not identify the other machine, which may belong to another tenant.
    message: `Another machine on this host already reserves port ${ports[0]?.hostPort}/TCP`,
  });
  await network.detach('a');
  await network.attach('b', { macAddress: MAC, ports });
  expect(await network.attached()).toEqual(['b']);
});

test('a port that the host keeps from machines is PortNotReservable; a machine that reserved it before reports so while it runs', async () => {
  const ports = [reservation('TCP', await freeTcpPort())];
  const rules = portRulesSchema.parse({ denied: [String(ports[0]?.hostPort)] });
  const network = userNetwork({ ports: rules });
  const attaching = network.attach('a', { macAddress: MAC, ports });
  const refusal = { reason: 'PortNotReservable', message: expect.stringContaining('ports.denied') as string };
  await expect(attaching).rejects.toMatchObject(refusal);
  await network.attach('a', { macAddress: MAC, ports, running: true });
  const { machines } = await network.check();
  expect(machines['a']).toMatchObject({ healthy: false, message: refusal.message });
});

test('an address that is not of this host is not PortTaken', async () => {
  const network = userNetwork({ hostAddress: '192.0.2.1' });
  const attaching = network.attach('a', { macAddress: MAC, ports: [reservation('TCP', 8822)] });
  await expect(attaching).rejects.toMatchObject({ reason: 'NetworkUnavailable' });
});
