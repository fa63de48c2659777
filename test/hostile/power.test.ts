/** Hostile input to a real power API: malformed requests never act, and silent connections are few. */
import { randomBytes } from 'node:crypto';
import type { Socket } from 'node:net';
import * as fc from 'fast-check';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { sharedCluster } from '../support/cluster.ts';
import type { HTTPClient } from '../wires/httpapi.ts';
import { basic, PowerWorld } from '../worlds/power.ts';
import { hostileRuns, tried } from './support/attempts.ts';
import { type Door, knock, outcomeOf, request, send } from './support/doors.ts';

const id = randomBytes(4).toString('hex');
const SYSTEM = `berth-power-hostile-${id}`;
const NAME = `one-${id}`;
const LIST = '/core/api/servers';
const REBOOT = `${LIST}/${NAME}/Reboot`;
const USER = basic('ann', 'correct horse');
const HEADER = `Authorization: ${USER['authorization']}`;
const REFUSED = /^(4\d\d|closed)$/;

let cluster: Cluster;
let world: PowerWorld;
let server: ServerProcess;
let api: HTTPClient;
let door: Door;

beforeAll(async () => {
  cluster = await sharedCluster();
  world = await PowerWorld.create(cluster, SYSTEM, { ann: 'correct horse' });
  await world.createServer(NAME, { addresses: [`2001:db8:${id.slice(0, 4)}:${id.slice(4)}::1`] });
  server = await world.startReplica({ trustedProxies: ['127.0.0.1/32'] });
  api = world.client(server, '127.0.0.2');
  const { hostname, port } = new URL(server.powerUrl);
  door = { name: 'power API', host: hostname, port: Number(port), tls: true };
});

afterAll(async () => {
  await world?.end();
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
