/** Hostile input to a real power API: malformed requests never act, and attackers with many addresses stop nobody else. */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Socket } from 'node:net';
import * as fc from 'fast-check';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import { inParallel } from '../../base/parallel.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/server.ts';
import { waitFor } from '../../hack/wait.ts';
import { LEASES } from '../../kube/core.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import type { HTTPCall, HTTPClient } from '../wires/httpapi.ts';
import { basic, PowerWorld } from '../worlds/power.ts';
import { hostileRuns, tried } from './support/attempts.ts';
import { type Door, knock, outcomeOf, request, send } from './support/doors.ts';

const id = randomBytes(4).toString('hex');
const SYSTEM = `berth-power-hostile-${id}`;
const namespace = `platform-power-hostile-${id}`;
const NAME = `one-${id}`;
const LIST = '/core/api/servers';
const REBOOT = `${LIST}/${NAME}/Reboot`;
const USER = basic('ann', 'correct horse');
const HEADER = `Authorization: ${USER['authorization']}`;
/** Number of addresses that fail at the same time, and number of their requests under way. */
const SOURCES = 10_000;
const AT_ONCE = 64;
/** Longest time in milliseconds for the answer to another caller. */
const ANSWER_MILLISECONDS = 1_000;
const REFUSED = /^(4\d\d|closed)$/;

let cluster: Cluster;
let world: PowerWorld;
let server: ServerProcess;
let api: HTTPClient;
let door: Door;
let token: string;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  world = await PowerWorld.create(
    cluster,
    SYSTEM,
    { ann: 'correct horse', bob: 'battery staple', eve: 'guessed by all' },
    { cost: 10 },
  );
  await world.createServer(NAME, { addresses: [`2001:db8:${id.slice(0, 4)}:${id.slice(4)}::1`] });
  server = await world.startReplica({ trustedProxies: ['127.0.0.1/32'] });
  api = world.client(server, '127.0.0.2');
  const { hostname, port } = new URL(server.powerUrl);
  door = { name: 'power API', host: hostname, port: Number(port), tls: true };
  token = await accountToken(
    cluster,
    { namespace, name: 'user' },
    { role: 'berth-power-user', in: 'cluster' },
  );
  await waitFor('the rights', async () => (await api.call(LIST, { token })).status === 200);
});

afterAll(async () => {
  await world?.end();
  await cluster?.kubectl(['delete', 'namespace', namespace, '--wait=false']);
  await cluster?.kubectl(['delete', 'clusterrolebinding', `${namespace}-user`]);
  await cluster?.disconnect();
});

/** Checks that nothing has acted, and that the API answers. */
async function expectUnharmed(): Promise<void> {
  expect((await api.call(LIST, { headers: USER })).status).toBe(200);
  const { status } = await cluster.client().get(SERVERS, { name: NAME });
  expect([status?.request, status?.lastAction, world.standIn.taken]).toEqual([undefined, undefined, []]);
}

it.for([
  ['HEAD', request('HEAD', REBOOT, [HEADER])],
  ['HEAD of HTTP/1.0', `HEAD ${REBOOT} HTTP/1.0\r\n${HEADER}\r\n\r\n`],
  ['OPTIONS', request('OPTIONS', REBOOT, [HEADER])],
  ['a method of WebDAV', request('PROPFIND', REBOOT, [HEADER])],
  ['an unknown method', request('REBOOT', REBOOT, [HEADER])],
  ['a tunnel', request('CONNECT', REBOOT, [HEADER])],
  ['a prefetch in capitals', request('GET', REBOOT, [HEADER, 'SEC-PURPOSE: PREFETCH'])],
  ['a prefetch among other words', request('GET', REBOOT, [HEADER, 'Purpose: x', 'Purpose: prefetch'])],
  ['two lengths', request('GET', REBOOT, [HEADER, 'Content-Length: 1', 'Content-Length: 2'])],
  [
    'a length and chunks',
    request('GET', REBOOT, [HEADER, 'Content-Length: 4', 'Transfer-Encoding: chunked']),
  ],
  ['a header without a name', request('GET', REBOOT, [HEADER, ': a'])],
  ['a line end in the path', request('GET', `${LIST}/${NAME}%0D%0A/Reboot`, [HEADER])],
  ['a zero byte in the path', request('GET', `${LIST}/${NAME}%00/Reboot`, [HEADER])],
  ['a raw zero byte in the path', request('GET', `${LIST}/${NAME}\0/Reboot`, [HEADER])],
  ['an action in the query', request('GET', `${LIST}/${NAME}/?/Reboot`, ['X: a'])],
  ['an encoded slash', request('GET', `${LIST}/${NAME}%2FReboot`, [HEADER])],
  ['a way up', request('GET', `${LIST}/x/../${NAME}/Reboot`, [HEADER])],
  ['an encoded way up', request('GET', `${LIST}/x/%2e%2e/${NAME}/Reboot`, [HEADER])],
  ['a name of a megabyte', request('GET', `${LIST}/${'a'.repeat(1_000_000)}/Reboot`, [HEADER])],
  ['a name of 10 kilobytes', request('GET', `${LIST}/${'a'.repeat(10_000)}/Reboot`, [HEADER])],
  ['an action of 10 kilobytes', request('GET', `${LIST}/${NAME}/${'a'.repeat(10_000)}`, [HEADER])],
  ['a property of every object', request('GET', `${LIST}/__proto__/Reboot`, [HEADER])],
  ['20 KB of headers', request('GET', REBOOT, [HEADER, `X-Long: ${'x'.repeat(20_000)}`])],
  ['no HTTP', '\0\xff\r\n\r\n\r\n'],
] as const)('%s never acts', async ([name, bytes], context) => {
  const outcome = await send(door, bytes);
  tried(context, name, outcome);
  expect(outcome).toMatch(REFUSED);
  await expectUnharmed();
});

const SCRAPS = fc.string({
  unit: fc.constantFrom(...Array.from('/%:?#[]@.a10'), '%2F', 'On', NAME, '::1', 'é'),
  maxLength: 12,
});

it('every path gets one line of text or the list, and none a failure of the server', async (context) => {
  await fc.assert(
    fc.asyncProperty(SCRAPS, async (scraps) => {
      const path = `${LIST}/${encodeURI(scraps).replaceAll('%25', '%')}`;
      fc.pre(!new RegExp(`${NAME}/+On`).test(path));
      const { status, text, headers } = await api.call(path.replaceAll('#', '%23'), { headers: USER });
      tried(context, 'a path', String(status));
      expect([200, 400, 404]).toContain(status);
      if (status !== 200) {
        expect(text).toMatch(/^[^\r\n]+$/);
        expect(headers['content-type']).toBe('text/plain; charset=utf-8');
      }
    }),
    hostileRuns(2_000),
  );
  await expectUnharmed();
});

it('every header Authorization is refused, and none is a failure of the server', async (context) => {
  const credentials = fc.oneof(
    fc.string({ maxLength: 40 }).map((text) => `Basic ${Buffer.from(text).toString('base64')}`),
    fc.uint8Array({ maxLength: 40 }).map((bytes) => `basic  ${Buffer.from(bytes).toString('base64')}`),
    fc.string({ unit: 'grapheme-ascii', maxLength: 40 }).map((text) => `Bearer ${text}`),
    fc.string({ unit: 'grapheme-ascii', maxLength: 40 }),
    fc.constant(`Basic ${'a'.repeat(12_000)}`),
  );
  let count = 0;
  await fc.assert(
    fc.asyncProperty(credentials, async (authorization) => {
      count += 1;
      // Each request has another source, because a source with 20 failures gets nothing.
      const headers = [
        `Authorization: ${authorization}`,
        `X-Forwarded-For: 198.19.${count >> 8}.${count & 255}`,
      ];
      const outcome = await send(door, request('GET', LIST, headers));
      tried(context, 'credentials', outcome);
      expect(outcome).toMatch(/^(401|400)$/);
    }),
    hostileRuns(1_000),
  );
});

/** Sends a request and returns the time in milliseconds until its answer. */
async function timeOf(call: HTTPCall): Promise<number> {
  const began = performance.now();
  const { status } = await api.call(LIST, call);
  expect(status).toBe(200);
  return performance.now() - began;
}

/** Memory of the server in MB, and its CPU time in seconds. */
function usage(): { memory: number; cpu: number } {
  const { pid } = server.process;
  const kilobytes = /VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
  const [, user = 0, system = 0] =
    /\) (?:\S+ ){11}(\d+) (\d+)/.exec(readFileSync(`/proc/${pid}/stat`, 'utf8')) ?? [];
  return { memory: Number(kilobytes) / 1024, cpu: (Number(user) + Number(system)) / 100 };
}

it('10,000 addresses that fail at once fill nothing, and another caller has an answer within a second', async (context) => {
  const attackers = world.client(server, '127.0.0.1');
  const ofAttack: Record<string, number> = {};
  const before = usage();
  const began = performance.now();
  // Half of them guess the password of a user who exists. One of two others has signed in before.
  await timeOf({ headers: USER });
  const attack = inParallel(
    Array.from({ length: SOURCES }, (_, index) => index),
    AT_ONCE,
    new AbortController().signal,
    async (index) => {
      const source = `198.18.${index >> 8}.${index & 255}`;
      const name = index % 2 === 0 ? 'eve' : `nobody-${index}`;
      const headers = { ...basic(name, `guess-${index}`), 'x-forwarded-for': source };
      const { status } = await attackers.call(LIST, { headers });
      ofAttack[status] = (ofAttack[status] ?? 0) + 1;
    },
  );
  const over = new AbortController();
  const ended = attack.finally(() => over.abort());
  const times: number[] = [await timeOf({ headers: basic('bob', 'battery staple') })];
  while (!over.signal.aborted) {
    times.push(await timeOf({ headers: USER }), await timeOf({ token }));
  }
  await ended;
  const seconds = (performance.now() - began) / 1000;
  const after = usage();
  const { items } = await cluster.client().list(LEASES, { namespace: SYSTEM });
  const slowest = Math.max(...times);
  tried(
    context,
    `${SOURCES} sources`,
    `${seconds.toFixed(1)} s, ${JSON.stringify(ofAttack)}, ${items.length} Leases, ${before.memory.toFixed(0)} to ${after.memory.toFixed(0)} MB, ${(after.cpu - before.cpu).toFixed(1)} s of CPU; answers to others: the first ${times[0]?.toFixed(0)} ms, the slowest of ${times.length} ${slowest.toFixed(0)} ms`,
  );
  expect(Object.keys(ofAttack).filter((status) => status !== '401' && status !== '503')).toEqual([]);
  expect(slowest).toBeLessThan(ANSWER_MILLISECONDS);
  expect(items.length).toBeLessThanOrEqual(100 * (Math.floor(seconds / 60) + 2));
  expect(after.memory - before.memory).toBeLessThan(150);
  await expectUnharmed();
});

it('keeps at most a thousand connections of locked-out sources open, and serves others', async (context) => {
  const attackers = world.client(server, '127.0.0.1');
  const source = { 'x-forwarded-for': '203.0.113.1' };
  for (let count = 0; count < 20; count += 1) {
    expect((await attackers.call(LIST, { headers: { ...source, authorization: 'Basic !' } })).status).toBe(
      401,
    );
  }
  const sockets: Socket[] = [];
  let closed = 0;
  for (let count = 0; count < 1_100; count += 1) {
    const socket = await knock(door);
    socket.once('close', () => {
      closed += 1;
    });
    socket.write(request('GET', LIST, ['X-Forwarded-For: 203.0.113.1', HEADER]));
    sockets.push(socket);
  }
  await waitFor('the end of the oldest connections', () => closed >= 100);
  expect((await api.call(LIST, { headers: USER })).status).toBe(200);
  tried(context, 'connections without an answer', 'closed');
  expect(closed).toBeLessThan(200);
  sockets.forEach((socket) => socket.destroy());
});

it('a client that sends its request byte by byte is cut off, and acts never', async (context) => {
  const socket = await knock(door);
  const bytes = request('GET', REBOOT, [HEADER]);
  let sent = 0;
  const drip = setInterval(() => {
    socket.write(bytes.charAt(sent));
    sent += 1;
  }, 500);
  const outcome = await outcomeOf(socket);
  clearInterval(drip);
  tried(context, 'a slow request', outcome);
  expect(outcome).toMatch(/^(408|closed)$/);
  await expectUnharmed();
});
