import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, createServer as createTcpServer } from 'node:net';
import type { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { setImmediate as nextCycle } from 'node:timers/promises';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { acceptUpgrades, type UpgradeHandler } from '../../../kube/serving/upgrades.ts';
import { connectGuest, forward } from './portforward.ts';
import { exited, type PortConnection } from './session.ts';
import { acceptCommand, acceptPorts } from './websocket.ts';

const LIMITS = { idleMilliseconds: 60_000, connections: 2, stop: new AbortController().signal };
const ALL = { stdin: true, stdinEnd: false, stdout: true, stderr: true, resize: false };

let server: Server;
let handle: UpgradeHandler;
const messages: Buffer[] = [];

beforeEach(async () => {
  server = createServer();
  acceptUpgrades(server, (upgrade) => handle(upgrade), pino({ level: 'silent' }));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  messages.length = 0;
});

afterEach(() => server.close());

function dial(path: string, ...protocols: string[]): WebSocket {
  const socket = new WebSocket(`ws://127.0.0.1:${(server.address() as AddressInfo).port}${path}`, protocols);
  socket.on('message', (message: Buffer) => messages.push(message));
  return socket;
}

/** Returns the bytes that the server sent on a channel. */
function received(channel: number): string {
  const own = messages.filter(([number]) => number === channel);
  return Buffer.concat(own.map((message) => message.subarray(1))).toString();
}

/** Returns the status and the text with which the server refused an upgrade. */
async function refusal(socket: WebSocket): Promise<string> {
  socket.on('error', () => undefined);
  const [, response] = (await once(socket, 'unexpected-response')) as [
    unknown,
    NodeJS.ReadableStream & { statusCode: number },
  ];
  return `${response.statusCode} ${await text(response)}`;
}

describe('commands over WebSockets', () => {
  it('have an end of the input in protocol v5, and a result', async () => {
    handle = async (upgrade) => {
      const session = acceptCommand(upgrade, ALL, LIMITS);
      session.stdout?.write(`got ${await text(session.stdin as Readable)}`);
      session.stderr?.write('err');
      await session.finish(exited(3));
    };
    const socket = dial('/', 'v5.channel.k8s.io', 'v4.channel.k8s.io');
    await once(socket, 'open');
    expect(socket.protocol).toBe('v5.channel.k8s.io');
    socket.send(Buffer.from('\0hello '));
    socket.send(Buffer.from('\0there'));
    socket.send(Buffer.from([255, 0]));
    await once(socket, 'close');
    expect([received(1), received(2)]).toEqual(['got hello there', 'err']);
    expect(JSON.parse(received(3))).toMatchObject({ reason: 'NonZeroExitCode' });
  });

  it('are refused if they need the end of an input that the client cannot end', async () => {
    handle = async (upgrade) => {
      const session = acceptCommand(upgrade, { ...ALL, stdinEnd: true }, LIMITS);
      await session.ended;
    };
    for (const [protocols, answer] of [
      [['v4.channel.k8s.io'], /^400 .* protocol v5\.channel\.k8s\.io/],
      [['v4.channel.k8s.io', 'v5.channel.k8s.io'], /^accepted$/],
    ] as const) {
      const socket = dial('/', ...protocols);
      const accepted = once(socket, 'open').then(() => 'accepted');
      expect(await Promise.race([accepted, refusal(socket)])).toMatch(answer);
      socket.terminate();
    }
  });

  it('end when the client leaves or sends a message that is too long', async () => {
    const ends: Promise<boolean>[] = [];
    handle = async (upgrade) => {
      const session = acceptCommand(upgrade, ALL, LIMITS);
      ends.push(session.ended.then(() => session.stdout?.destroyed === true));
      await session.ended;
    };
    const leaver = dial('/', 'v4.channel.k8s.io');
    await once(leaver, 'open');
    leaver.terminate();
    const babbler = dial('/', 'v4.channel.k8s.io');
    await once(babbler, 'open');
    babbler.send(Buffer.alloc(2 * 1024 * 1024));
    const [code] = (await once(babbler, 'close')) as [number];
    expect(code).toBe(1009);
    expect(await Promise.all(ends)).toEqual([true, true]);
  });

  it('are not read while nobody reads the input', async () => {
    const { promise, resolve } = Promise.withResolvers<number>();
    handle = async (upgrade) => {
      const session = acceptCommand(upgrade, ALL, LIMITS);
      const { socket } = upgrade;
      // The connection is full too. If it were read, it would never be.
      while (socket.readableLength < socket.readableHighWaterMark) {
        await nextCycle();
      }
      resolve(session.stdin?.readableLength ?? 0);
      session.stdin?.resume();
      await session.ended;
    };
    const socket = dial('/', 'v4.channel.k8s.io');
    await once(socket, 'open');
    for (let count = 0; count < 100; count += 1) {
      socket.send(Buffer.alloc(64 * 1024));
    }
    const kept = await promise;
    expect(kept).toBeGreaterThan(0);
    expect(kept).toBeLessThan(1024 * 1024);
    socket.close();
    await once(socket, 'close');
  });

  it('end when nobody uses them', async () => {
    const { promise, resolve } = Promise.withResolvers<unknown>();
    handle = async (upgrade) => {
      const session = acceptCommand(upgrade, ALL, { ...LIMITS, idleMilliseconds: 20 });
      await once(session.signal, 'abort');
      resolve(session.signal.reason);
    };
    dial('/', 'v4.channel.k8s.io');
    expect(String(await promise)).toContain('The stream was idle');
  });
});

describe('ports over WebSockets', () => {
  it('have two channels each, which begin with the port', async () => {
    const connections: PortConnection[] = [];
    handle = async (upgrade) => {
      await acceptPorts(upgrade, LIMITS, (one) => connections.push(one)).ended;
    };
    const socket = dial('/?port=22,8080', 'v5.channel.k8s.io', 'v4.channel.k8s.io');
    await once(socket, 'open');
    expect(socket.protocol).toBe('v4.channel.k8s.io');
    socket.send(Buffer.from('\u0002request'));
    const [, web] = connections;
    expect(web?.port).toBe(8080);
    expect(String(await once(web?.data ?? server, 'data'))).toBe('request');
    web?.data.end('answer');
    connections[0]?.end('refused');
    await new Promise((proceed) => web?.data.once('finish', proceed));
    web?.end();
    await once(socket, 'close');
    expect([received(0), received(1)]).toEqual(['\u0016\0', '\u0016\0refused']);
    expect([received(2), received(3)]).toEqual(
      ['\u0090\u001fanswer', '\u0090\u001f'].map((one) => Buffer.from(one, 'latin1').toString()),
    );
  });

  it('are over when the guest ends its direction', async () => {
    const guest = createTcpServer({ allowHalfOpen: true }, (socket) => socket.end('bye'));
    guest.listen(0, '127.0.0.1');
    await once(guest, 'listening');
    const { port } = guest.address() as AddressInfo;
    const logger = pino({ level: 'silent' });
    const open = async () => await connectGuest('127.0.0.1', port, 22);
    handle = async (upgrade) => {
      await acceptPorts(upgrade, LIMITS, (one) => void forward(open, one, logger)).ended;
    };
    const socket = dial('/?port=22', 'v4.channel.k8s.io');
    await once(socket, 'close');
    expect(received(0)).toBe('\u0016\0bye');
    guest.close();
  });

  it.each([
    ['/', ['v4.channel.k8s.io'], '400 The query must have from 1 to 2 parameters with the name port\n'],
    [
      '/?port=1,2,3',
      ['v4.channel.k8s.io'],
      '400 The query must have from 1 to 2 parameters with the name port\n',
    ],
    ['/?port=70000', ['v4.channel.k8s.io'], '400 The parameter port is not a number from 1 to 65535\n'],
    ['/?port=22', ['other'], '400 The client offers none of the protocols v4.channel.k8s.io\n'],
  ])('are refused for %s with %j', async (path, protocols, answer) => {
    handle = async (upgrade) => {
      await acceptPorts(upgrade, LIMITS, () => undefined).ended;
    };
    expect(await refusal(dial(path, ...protocols))).toBe(answer);
  });
});
