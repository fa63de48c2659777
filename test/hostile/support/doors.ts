/** All HTTP ports of Berth, and clients that send arbitrary bytes to them. */
import { once } from 'node:events';
import { connect as connectPlain, type Socket } from 'node:net';
import { connect as connectSecurely } from 'node:tls';
import { codeOf } from '../../../base/errors.ts';
import { type Lease, LEASES, NODES } from '../../../kube/core.ts';
import { waitFor } from '../../../hack/wait.ts';
import type { World } from '../../worlds/vm.ts';

export interface Door {
  name: string;
  host: string;
  port: number;
  tls: boolean;
}

/** Time limit for an answer. It is longer than each limit of the servers, also on a busy machine. */
const ANSWER_MILLISECONDS = 45_000;

export async function doorsOf(world: World, node: string): Promise<Door[]> {
  const { status } = await world.cluster.client().get(NODES, { name: node });
  const agent = status?.daemonEndpoints?.kubeletEndpoint?.Port ?? 0;
  const [metrics, health] = [new URL(world.operator.metricsUrl), new URL(world.operator.healthUrl)];
  return [
    { name: 'operator health', host: health.hostname, port: Number(health.port), tls: false },
    { name: 'operator metrics', host: metrics.hostname, port: Number(metrics.port), tls: true },
    { name: 'agent', host: status?.addresses?.[0]?.address ?? '', port: agent, tls: true },
  ];
}

/** A connection that is open, its handshake done. @throws Error when the door closes it instead. */
export async function knock(door: Door): Promise<Socket> {
  const { host, port } = door;
  const socket = door.tls
    ? connectSecurely({ host, port, rejectUnauthorized: false })
    : connectPlain({ host, port });
  const { promise, resolve, reject } = Promise.withResolvers<Socket>();
  socket.once(door.tls ? 'secureConnect' : 'connect', () => resolve(socket));
  socket.on('error', reject);
  socket.once('close', () => reject(new Error('closed')));
  return await promise;
}

/** Sends `bytes` and resets the connection (RST), with or without TLS. */
export async function sendAndReset(door: Door, bytes: string): Promise<void> {
  const wire = await knockSilently(door);
  const socket = door.tls ? connectSecurely({ socket: wire, rejectUnauthorized: false }) : wire;
  if (door.tls) {
    await once(socket, 'secureConnect');
  }
  for (const one of [wire, socket]) {
    one.on('error', () => undefined);
  }
  await new Promise<void>((resolve) => {
    socket.write(bytes, () => resolve());
  });
  wire.resetAndDestroy();
}

/** Opens a connection and sends nothing, not even the TLS handshake. */
export async function knockSilently({ host, port }: Door): Promise<Socket> {
  return await knock({ name: 'silent', host, port, tls: false });
}

/** Sends `bytes` and gives the status that came, or `closed`. @throws Error when neither comes in time. */
export async function send(door: Door, bytes: string): Promise<string> {
  let socket: Socket;
  try {
    socket = await knock(door);
  } catch (error) {
    // A port without a listener is an error of the test, but a port that closes the connection is an answer.
    if (codeOf(error) === 'ECONNREFUSED') {
      throw error;
    }
    return 'closed';
  }
  socket.write(bytes, 'latin1');
  return await outcomeOf(socket);
}

/** Returns the status that the server sends, or `closed`, and closes the connection. */
export async function outcomeOf(socket: Socket): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  let text = '';
  const timer = setTimeout(() => reject(new Error('neither answered nor closed')), ANSWER_MILLISECONDS);
  socket.on('data', (data: Buffer) => {
    text += data.toString('latin1');
    const status = /^HTTP\/1\.[01] (\d{3})/.exec(text)?.[1];
    if (status !== undefined) {
      resolve(status);
    }
  });
  socket.once('close', () => resolve('closed'));
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
    socket.destroy();
  }
}

/** Returns the text of a request without a body. */
export function request(method: string, target: string, headers: readonly string[] = []): string {
  return [`${method} ${target} HTTP/1.1`, 'Host: berth', ...headers, '', ''].join('\r\n');
}

/** Resolves when operator and agent have both renewed their Leases after the call. */
export async function renewed(world: World, node: string): Promise<void> {
  const leases = [
    { namespace: 'berth-system', name: 'berth-operator' },
    { namespace: 'kube-node-lease', name: node },
  ];
  const read = async (): Promise<Lease[]> =>
    await Promise.all(leases.map((ref) => world.cluster.client().get(LEASES, ref)));
  const before = await read();
  await waitFor('both Leases to be renewed', async () => {
    const now = await read();
    return now.every(({ spec }, index) => spec?.renewTime !== before[index]?.spec?.renewTime);
  });
}
