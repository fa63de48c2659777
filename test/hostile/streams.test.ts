/** Arbitrary input on streams by a client with rights. The agent must go on, and its memory must stay small. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect, type TLSSocket } from 'node:tls';
import * as fc from 'fast-check';
import { Registry } from 'prom-client';
import { afterAll, afterEach, beforeAll, expect, it, type TestContext } from 'vitest';
import type { KubeletServer } from '../../agent/kubelet/server.ts';
import { waitFor } from '../../hack/wait.ts';
import { FIN, FRAME, SpdyClient } from '../wires/spdyclient.ts';
import { hostileRuns, scaled, tried } from './support/attempts.ts';
import { startOpenKubelet } from './support/kubelet.ts';

const MEBIBYTE = 1024 * 1024;
const NAMESPACE = 'platform-default';
/** Growth of the process that allows for garbage, but not for keeping what a client sent. */
const GROWTH_LIMIT_BYTES = 256 * MEBIBYTE;
/** Largest number of bytes that the server and the buffers of the kernel take for a reader that does not read. */
const TAKEN_LIMIT_BYTES = 64 * MEBIBYTE;
/** Number of sessions of others, one after the other, during which a connection takes no more bytes. */
const STALLED = 20;
const PORTS = `POST /portForward/${NAMESPACE}/vm`;
const ATTACH = `POST /attach/${NAMESPACE}/vm/machine?input=1&output=1`;

const metrics = new Registry();
let server: KubeletServer;
let port: number;
const sockets = new Set<TLSSocket>();

beforeAll(async () => {
  const execute = async () => await new Promise<never>(() => undefined);
  ({ server, port } = await startOpenKubelet(execute, metrics));
});

afterEach(async () => {
  for (const socket of sockets) {
    socket.destroy();
  }
  sockets.clear();
  await waitFor('all streams to be over', async () => {
    const { values } = await (metrics.getSingleMetric('berth_agent_streams')?.get() ?? { values: [] });
    return values.every(({ value }) => value === 0);
  });
});

afterAll(async () => await server.close());

/** Opens a session and returns its client after the answer 101. */
async function session(start = PORTS, protocol = 'portforward.k8s.io'): Promise<SpdyClient> {
  const socket = connect({ port, host: '127.0.0.1', rejectUnauthorized: false });
  sockets.add(socket);
  socket.on('error', () => undefined);
  await once(socket, 'secureConnect');
  const upgrade = 'Connection: Upgrade\r\nUpgrade: SPDY/3.1';
  socket.write(
    `${start} HTTP/1.1\r\nHost: a\r\n${upgrade}\r\nX-Stream-Protocol-Version: ${protocol}\r\n\r\n`,
  );
  const [answer] = (await once(socket, 'data')) as [Buffer];
  expect(answer.toString()).toMatch(/^HTTP\/1\.1 101 /);
  return new SpdyClient(socket);
}

/** Checks that another client still gets its output, over this session if it has one. */
async function expectAlive(earlier?: SpdyClient): Promise<void> {
  const client = earlier ?? (await session());
  const headers = { port: '22', requestid: '0' };
  await client.open({ ...headers, streamtype: 'error' }, { flags: FIN });
  const data = await client.open({ ...headers, streamtype: 'data' });
  client.data(data, 'alive', { end: true });
  await data.until(({ ended }) => ended);
  expect(data.text).toBe('alive');
  client.close();
}

async function expectEnd(context: TestContext, kind: string, client: SpdyClient): Promise<void> {
  await client.closed();
  tried(context, kind, 'closed');
}

const id = fc.integer({ min: 0, max: 9 });
const body = fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes));
const frame = fc.oneof(
  fc.record({ type: fc.integer({ min: 0, max: 12 }), flags: fc.nat(255), body, claimed: fc.nat(0xff_ff_ff) }),
  fc.record({ id, body, end: fc.boolean() }),
  fc.record({
    headers: fc.dictionary(fc.constantFrom('streamtype', 'port', 'requestid', '__proto__'), fc.string()),
  }),
  fc.record({ raw: body }),
);

it('frames of any kind and order end at most their own connection', async (context) => {
  const bystander = await session();
  const property = fc.asyncProperty(
    fc.array(frame, { minLength: 1, maxLength: 20 }),
    fc.boolean(),
    async (frames, honest) => {
      const client = await session();
      for (const one of frames) {
        if ('type' in one) {
          client.control(one.type, one.body, one.flags, honest ? one.body.length : one.claimed);
        } else if ('id' in one) {
          client.data(one, one.body, { end: one.end });
        } else if ('headers' in one) {
          await client.open(one.headers);
        } else {
          client.raw(one.raw);
        }
      }
      client.close();
      tried(context, 'generated frames', 'alive');
    },
  );
  await fc.assert(property, hostileRuns(3_000));
  await expectAlive(bystander);
  await expectAlive();
});

it('headers that unpack to 100 MiB end the connection', async (context) => {
  const before = process.memoryUsage().rss;
  for (let round = 0; round < scaled(20); round += 1) {
    const client = await session();
    const bomb = await client.packBytes(Buffer.alloc(100 * MEBIBYTE));
    client.control(FRAME.synStream, Buffer.concat([Buffer.from([0, 0, 0, 1]), Buffer.alloc(6), bomb]));
    await expectEnd(context, 'a bomb of 100 MiB', client);
    const small = await session();
    const tight = await small.packBytes(Buffer.alloc(10 * MEBIBYTE));
    small.control(
      FRAME.synStream,
      Buffer.concat([Buffer.from([0, 0, 0, 1]), Buffer.alloc(6), tight.subarray(0, 16_000)]),
    );
    await expectEnd(context, 'a bomb within the limit of a frame', small);
  }
  expect(process.memoryUsage().rss - before).toBeLessThan(2 * GROWTH_LIMIT_BYTES);
  await expectAlive();
});

it('10,000 streams on a connection: few are accepted, and none is held after its end', async (context) => {
  const client = await session();
  const count = scaled(10_000);
  for (let opened = 0; opened < count; opened += 1) {
    const stream = await client.open({ streamtype: 'data', requestid: String(opened), port: '22' });
    if (opened % 2 === 0) {
      client.resetStream(stream);
    }
  }
  await [...client.streams.values()].at(-1)?.until(({ replied, reset }) => replied || reset);
  const refused = [...client.streams.values()].filter(({ reset }) => reset).length;
  tried(context, 'streams', refused > 0 ? 'refused' : 'accepted');
  expect(refused).toBeGreaterThan(count / 2 - 200);
  client.close();
  await expectAlive();
});

it('input for a console that reads nothing is not kept in memory', async (context) => {
  const before = process.memoryUsage().rss;
  const client = await session(ATTACH, 'v4.channel.k8s.io');
  await client.open({ streamtype: 'error' });
  const stdin = await client.open({ streamtype: 'stdin' });
  await client.open({ streamtype: 'stdout' });
  client.pause();
  const chunk = randomBytes(MEBIBYTE);
  const socket = [...sockets].at(-1) as TLSSocket;
  let sent = 0;
  // If the connection takes no more while other sessions come and go, the server does not read it.
  for (let waits = 0; sent < scaled(2_000) * MEBIBYTE && waits < STALLED; ) {
    if (socket.writableNeedDrain) {
      waits += 1;
      await expectAlive();
    } else {
      waits = 0;
      sent += MEBIBYTE;
      client.data(stdin, chunk);
    }
  }
  expect(sent).toBeLessThanOrEqual(TAKEN_LIMIT_BYTES);
  expect(process.memoryUsage().rss - before).toBeLessThan(GROWTH_LIMIT_BYTES);
  tried(context, 'endless input', 'stopped');
  await expectAlive();
});

it('streams beyond the limit of a Pod are refused, and silent clients leave no stream behind', async (context) => {
  const clients = await Promise.all(Array.from({ length: 16 }, () => session()));
  await expect(session()).rejects.toThrow(/429/);
  tried(context, 'a stream too many', '429');
  for (const client of clients) {
    client.close();
  }
  await waitFor('room for a stream', async () => {
    await expectAlive();
    return true;
  });
});
