/** Hostile input to the HTTP ports of a real operator and a real agent. Both must continue their work. */
import { randomBytes } from 'node:crypto';
import type { Socket } from 'node:net';
import * as fc from 'fast-check';
import { afterAll, beforeAll, expect, it, type TestContext } from 'vitest';
import { SET_UP_MILLISECONDS, World } from '../worlds/vm.ts';
import { waitFor } from '../../hack/wait.ts';
import { hostileRuns, scaled, tried } from './support/attempts.ts';
import {
  type Door,
  doorsOf,
  knock,
  knockSilently,
  outcomeOf,
  renewed,
  request,
  send,
  sendAndReset,
} from './support/doors.ts';

const NODE = 'http-host';
/** Largest number of open connections of each server, as in `kube/serving/httpserver.ts`. */
const CONNECTIONS = 192;
/** Half of the default, in seconds, so that the Lease of the host is renewed twice as often. */
const FENCE_SECONDS = 20;
/**
 * Number of callers at the same time. A busy server still counts the connections of the round before, and has places left for those that check
 * whether it is alive.
 */
const AT_ONCE = 60;
const REFUSED = /^(4\d\d|closed)$/;
/** Time limit for the end of idle connections. It is much longer than the limit of the servers, 10 s. */
const CLOSED = { deadlineMilliseconds: 60_000 };

let world: World;
let doors: Door[];

beforeAll(async () => {
  world = await World.start({
    name: 'hostile-http',
    architecture: 'amd64',
    hosts: { [NODE]: '127.0.0.1' },
    agentConfig: { fenceAfterSeconds: FENCE_SECONDS },
  });
  doors = await doorsOf(world, NODE);
}, SET_UP_MILLISECONDS);

afterAll(async () => await world?.[Symbol.asyncDispose]());

/** Checks that all ports answer, and that both programs renew their Leases. */
async function expectAlive(): Promise<void> {
  const [health, metrics, agent] = doors as [Door, Door, Door];
  expect(await send(health, request('GET', '/readyz'))).toBe('200');
  expect(await send(metrics, request('GET', '/metrics'))).toBe('401');
  expect(await send(agent, request('GET', '/readyz'))).toBe('200');
  await renewed(world, NODE);
}

const SCRAPS = fc.string({ unit: fc.constantFrom(...Array.from('/%:?#[]@*.\\;a1')), maxLength: 40 });
const TARGETS = fc
  .tuple(fc.constantFrom('', '/', '//', 'http://', '/containerLogs/'), SCRAPS)
  .map((parts) => parts.join(''));

it.for([
  ['a path that names a host', request('GET', '//')],
  ['a path that names a bad host', request('GET', '//[')],
  ['a target with a bad host', request('GET', 'http://[')],
  ['a target without a path', request('GET', '*')],
  ['OPTIONS of everything', request('OPTIONS', '*')],
  ['a tunnel', request('CONNECT', 'example.com:443')],
  ['an upgrade', request('GET', '//', ['Connection: Upgrade', 'Upgrade: websocket'])],
  ['an upgrade to nothing', request('GET', '/exec/a/b/c', ['Connection: Upgrade', 'Upgrade: SPDY/3.1'])],
  ['20 KB of headers', request('GET', '/metrics', [`X-Long: ${'x'.repeat(20_000)}`])],
  ['a name with a broken escape', request('GET', '/containerLogs/%zz/%/c')],
  ['a property of every object', request('GET', '/__proto__')],
  ['an answer', 'HTTP/1.1 200 OK\r\n\r\n'],
  ['no HTTP', '\0\xff\r\n\r\n\r\n'],
] as const)('%s is refused at every port', async ([name, bytes], context) => {
  for (const door of doors) {
    const outcome = await send(door, bytes);
    tried(context, `${name}, ${door.name}`, outcome);
    expect(outcome).toMatch(REFUSED);
  }
});

it('every target of a request is refused', async (context) => {
  await fc.assert(
    fc.asyncProperty(fc.constantFrom(...doors), TARGETS, async (door, target) => {
      const outcome = await send(door, request('GET', target));
      tried(context, 'a generated target', outcome);
      expect(outcome).toMatch(REFUSED);
    }),
    hostileRuns(1_000),
  );
  await expectAlive();
});

it('a connection that is reset in the middle of an upgrade, a tunnel or an answer ends no program', async (context) => {
  const requests = [
    request('GET', '/exec/a/b/c', ['Connection: Upgrade', 'Upgrade: SPDY/3.1']),
    request('CONNECT', 'example.com:443'),
    request('GET', '/metrics').repeat(50),
  ];
  for (const door of doors) {
    for (const bytes of requests) {
      await sendAndReset(door, bytes);
      tried(context, 'a reset connection', 'closed');
    }
  }
  await expectAlive();
});

it('10,000 invalid tokens are refused, and the Leases are renewed meanwhile', async (context) => {
  const guarded = doors.filter(({ tls }) => tls);
  const rounds = Math.ceil(scaled(10_000) / AT_ONCE);
  const leases = { renewed: false };
  const ask = async (door: Door, isCounted: boolean): Promise<void> => {
    const token = randomBytes(30).toString('base64url');
    const outcome = await send(door, request('GET', '/metrics', [`Authorization: Bearer ${token}`]));
    if (isCounted) {
      tried(context, 'a random token', outcome);
    }
    expect(outcome).toMatch(REFUSED);
  };
  // Further tokens come until the Leases are renewed. They are not counted, because their number depends on the time.
  const askAll = async (): Promise<void> => {
    for (let round = 0; round < rounds || !leases.renewed; round += 1) {
      const door = guarded[round % guarded.length] as Door;
      await Promise.all(Array.from({ length: AT_ONCE }, () => ask(door, round < rounds)));
    }
  };
  const alive = expectAlive().finally(() => {
    leases.renewed = true;
  });
  await Promise.all([askAll(), alive]);
});

it('10,000 connections that are idle or send half a request: few are accepted, and none stays open for long', async (context) => {
  const guarded = doors.filter(({ tls }) => tls);
  const half = doors.flatMap((door) => [
    untilRefused(context, 'a silent connection', knockSilently(door)),
    untilRefused(context, 'half a request', knock(door), 'GET /metrics HTTP/1.1\r\nHo'),
    untilRefused(
      context,
      'half a body',
      knock(door),
      'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n',
    ),
  ]);
  const idle = guarded.map((door) => stayIdle(context, door, scaled(10_000) / guarded.length));
  await Promise.all([...half, ...idle]);
  await expectAlive();
});

async function untilRefused(
  context: TestContext,
  kind: string,
  knocking: Promise<Socket>,
  bytes = '',
): Promise<void> {
  // A server that has too many connections closes the oldest one without a known caller, perhaps during its handshake.
  const socket = await knocking.catch(() => undefined);
  if (socket === undefined) {
    tried(context, kind, 'closed at once');
    return;
  }
  if (bytes !== '') {
    socket.write(bytes);
  }
  const outcome = await outcomeOf(socket);
  tried(context, kind, outcome);
  expect(outcome).toMatch(REFUSED);
}

/** Opens TLS connections one after the other, closes some of them, and waits until the server has closed all. */
async function stayIdle(context: TestContext, door: Door, knocks: number): Promise<void> {
  const open = new Set<Socket>();
  const knockAndStay = async (): Promise<void> => {
    try {
      const socket = await knock(door);
      open.add(socket);
      socket.resume();
      socket.once('close', () => open.delete(socket));
      tried(context, 'an idle TLS connection', 'taken, then closed');
    } catch {
      tried(context, 'an idle TLS connection', 'closed at once');
    }
    expect(open.size).toBeLessThanOrEqual(CONNECTIONS);
  };
  for (let left = knocks; left > 0; left -= AT_ONCE) {
    await Promise.all(Array.from({ length: AT_ONCE }, knockAndStay));
  }
  await waitFor(`all idle connections to the ${door.name} to be closed`, () => open.size === 0, CLOSED);
}
