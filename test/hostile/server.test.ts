/** Bodies of every size to a real HTTP API, and clients that send or read too slowly. The server must go on with its work. */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Socket } from 'node:net';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { VMS as VM_OBJECTS } from '../../api/v1alpha1/resources.ts';
import { numbered } from '../fixtures/vms.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import { tried } from './support/attempts.ts';
import { type Door, knock, outcomeOf, request } from './support/doors.ts';

const BODY_BYTES = 1024 * 1024;
/** Interval between two bytes of a slow client. It is shorter than each time limit of the server for a quiet connection. */
const DRIP_MILLISECONDS = 500;
/** State of an established connection in /proc/net/tcp. */
const ESTABLISHED = '01';
/** With 64 labels each, a list of so many VMs is larger than the buffers of both ends of a connection. */
const LARGE = { vms: 600, labels: 64, length: 63 };

/** Time limit on a busy machine. The longest limit of the server that a test meets is a minute. */
const TEST_MILLISECONDS = 300_000;

/** Number of VMs that the test creates at the same time. With all of them, a busy API server exceeds the time limit of a request. */
const AT_ONCE = 50;
/** Time limit for the end of a slow connection. */
const CLOSED = { deadlineMilliseconds: 180_000 };

const namespace = `platform-slow-${randomBytes(4).toString('hex')}`;
const VMS = `/api/v1/namespaces/${namespace}/vms`;

let cluster: Cluster;
let server: ServerProcess;
let api: HTTPClient;
let token: string;
let door: Door;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  server = await cluster.startServer({ name: `server-${namespace}` });
  api = new HTTPClient(server);
  const { hostname, port } = new URL(server.url);
  door = { name: 'HTTP API', host: hostname, port: Number(port), tls: true };
  token = await accountToken(cluster, { namespace, name: 'member' }, { role: 'edit' });
  await waitFor('the rights', async () => (await api.call(VMS, { token })).status === 200);
});

afterAll(async () => {
  await api?.close();
  await server?.process.stop();
  await cluster?.kubectl(['delete', 'namespace', namespace, '--wait=false']);
  await cluster?.disconnect();
});

function headers(...more: string[]): string[] {
  return [`Authorization: Bearer ${token}`, 'Content-Type: application/json', ...more];
}

/** Sends the bytes, all of them before the answer is read, and returns the status. */
async function sendAll(bytes: string): Promise<string> {
  const socket = await knock(door);
  socket.pause();
  await new Promise<void>((resolve, reject) => {
    socket.once('error', reject);
    socket.write(bytes, () => resolve());
  });
  return await outcomeOf(socket.resume());
}

/** Returns a request whose body is an empty object and spaces. */
function post(bytes: number, isChunked: boolean): string {
  const body = `{}${' '.repeat(bytes - 2)}`;
  const framing = isChunked ? 'Transfer-Encoding: chunked' : `Content-Length: ${bytes}`;
  const head = request('POST', `${VMS}/absent/commit`, headers(framing));
  return head + (isChunked ? `${bytes.toString(16)}\r\n${body}\r\n0\r\n\r\n` : body);
}

it('a body of 1 MiB is read, one byte more is refused, and the client can always read the answer', async (context) => {
  const sizes = [
    [BODY_BYTES, '404'],
    [BODY_BYTES + 1, '413'],
    [16 * BODY_BYTES, '413'],
  ] as const;
  for (const isChunked of [false, true]) {
    for (const [bytes, status] of sizes) {
      const outcome = await sendAll(post(bytes, isChunked));
      tried(context, `a body of ${bytes} bytes`, outcome);
      expect([bytes, isChunked, outcome]).toEqual([bytes, isChunked, status]);
    }
  }
});

it('a client that sends too long headers can read the refusal', async (context) => {
  for (const bytes of [20_000, 200_000, 8_000_000]) {
    const outcome = await sendAll(request('GET', VMS, headers(`X-Long: ${'x'.repeat(bytes)}`)));
    tried(context, `headers of ${bytes} bytes`, outcome);
    expect([bytes, outcome]).toEqual([bytes, '431']);
  }
});

/** Sends the bytes one after the other until the server closes the connection, and returns the status. */
async function drip(begin: string, rest: string): Promise<string> {
  const socket = await knock(door);
  let said = '';
  socket.on('data', (data: Buffer) => {
    said += data.toString('latin1');
  });
  socket.write(begin);
  let sent = 0;
  const timer = setInterval(() => {
    socket.write(rest[sent % rest.length] ?? '');
    sent += 1;
  }, DRIP_MILLISECONDS);
  try {
    await waitFor('the server to close the connection', () => socket.closed, CLOSED);
    return /^HTTP\/1\.1 (\d{3}) /.exec(said)?.[1] ?? 'closed';
  } finally {
    clearInterval(timer);
    socket.destroy();
  }
}

/** Asks for the large list and reads nothing of it. Resolves when the server has given up the connection. */
async function neverRead(): Promise<string> {
  const socket = await knock(door);
  socket.pause();
  socket.write(request('GET', VMS, headers()));
  try {
    await waitFor('the answer to begin', () => isOpen(socket) && socket.bytesWritten > 0);
    await waitFor('the server to close the connection', () => !isOpen(socket), CLOSED);
    return 'closed';
  } finally {
    socket.destroy();
  }
}

/** Whether the server's end of the connection is open. A client that reads nothing does not see its end. */
function isOpen(socket: Socket): boolean {
  const hex = (port: number) => port.toString(16).toUpperCase().padStart(4, '0');
  const ends = new RegExp(`:${hex(door.port)} \\S+:${hex(socket.localPort ?? 0)} (\\S\\S) `);
  return ends.exec(readFileSync('/proc/net/tcp', 'utf8'))?.[1] === ESTABLISHED;
}

it('clients that send or read too slowly lose their connection, and others are answered meanwhile', {
  timeout: TEST_MILLISECONDS,
}, async (context) => {
  const text = 'x'.repeat(LARGE.length);
  const labels = Object.fromEntries(
    numbered('label', LARGE.labels).map((name) => [`${name}-${text}`.slice(0, LARGE.length), text]),
  );
  const client = cluster.client();
  const create = async (name: string): Promise<unknown> =>
    await client.create(VM_OBJECTS, { metadata: { name, namespace, labels }, spec: { image: 'image' } });
  const names = numbered('large', LARGE.vms);
  for (let begun = 0; begun < names.length; begun += AT_ONCE) {
    await Promise.all(names.slice(begun, begun + AT_ONCE).map(create));
  }
  const length = headers('Content-Length: 1000');
  const slow = {
    'headers in drips': drip('GET / HTTP/1.1\r\nHost: berth\r\n', 'X: y\r\n'),
    'a body in drips': drip(request('POST', VMS, length), '{"image": "image"}'),
    'an answer that nobody reads': neverRead(),
  };
  const outcomes = Object.entries(slow).map(async ([name, outcome]) => {
    tried(context, name, await outcome);
    return [name, await outcome];
  });
  let isOver = false;
  const all = Promise.all(outcomes).finally(() => {
    isOver = true;
  });
  const isServed = async (): Promise<boolean> => {
    const list = await api.call(`${VMS}?limit=1`, { token });
    expect([list.status, list.body.items.length]).toEqual([200, 1]);
    return isOver;
  };
  let refused: unknown;
  const served = waitFor(
    'the slow clients to be over',
    async () =>
      await isServed().catch((error: unknown) => {
        refused ??= error;
        return isOver;
      }),
    CLOSED,
  );
  const [ended] = await Promise.all([all, served]);
  expect(refused).toBeUndefined();
  expect(Object.fromEntries(ended)).toEqual({
    'headers in drips': '408',
    'a body in drips': '408',
    'an answer that nobody reads': 'closed',
  });
  expect((await api.call(VMS, { token })).body.items).toHaveLength(LARGE.vms);
});
