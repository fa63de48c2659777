import { once } from 'node:events';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { setImmediate as nextCycle } from 'node:timers/promises';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type WebSocket, WebSocketServer } from 'ws';
import { createKey, selfSigned } from './certificates/certificate.ts';
import { COMMAND_PROTOCOL, END_CHANNEL, PORT_PROTOCOL } from './channelprotocol.ts';
import type { Channels } from './channels.ts';
import type { Connection } from './credentials.ts';
import { createMetrics } from './metrics.ts';
import { Transport } from './transport.ts';

const KIBIBYTE = 1024;
const MEBIBYTE = KIBIBYTE * KIBIBYTE;
const never = new AbortController().signal;

let server: Server;
let sockets: WebSocketServer;
let connection: Connection;

beforeAll(async () => {
  const key = await createKey();
  const certificate = await selfSigned({ key, commonName: 'server', ipAddresses: ['127.0.0.1'], days: 1 });
  server = createServer({ key: key.pem, cert: certificate });
  sockets = new WebSocketServer({ server, path: '/cluster/x' });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const address = `https://127.0.0.1:${port}/cluster`;
  connection = { server: address, certificateAuthority: certificate, token: 'secret' };
});

afterAll(() => {
  sockets.clients.forEach((socket) => socket.terminate());
  server.close();
});

interface Ends {
  readonly channels: Channels;
  readonly host: WebSocket;
  /** Messages that the host has received. */
  readonly messages: Buffer[];
}

/** Connects to a host with the channels 0 and 1. */
async function connect(protocol = COMMAND_PROTOCOL): Promise<Ends> {
  const accepted = once(sockets, 'connection') as Promise<[WebSocket]>;
  const transport = new Transport(connection, { metrics: createMetrics() });
  const channels = await transport.channels({ path: '/x', protocol, numbers: [0, 1], signal: never });
  const [host] = await accepted;
  const messages: Buffer[] = [];
  host.on('message', (message: Buffer) => messages.push(message));
  return { channels, host, messages };
}

/** Returns a message of the channel. */
function message(channel: number, content: string | Buffer = ''): Buffer {
  return Buffer.concat([Buffer.from([channel]), Buffer.from(content)]);
}

it('a channel has the bytes of its messages alone, in whatever pieces they come', async () => {
  const { channels, host } = await connect();
  // Pieces of one message, as a proxy may send it.
  host.send(message(0, 'first '), { fin: false });
  host.send('and last', { fin: true });
  host.send(message(1, 'other'));
  host.send(message(0));
  host.send(Buffer.alloc(0));
  host.send(message(7, 'of no channel'));
  host.send(message(END_CHANNEL));
  host.send(message(END_CHANNEL, Buffer.from([7])));
  host.close();
  const read = [text(channels.channel(0)), text(channels.channel(1))];
  expect(await Promise.all(read)).toEqual(['first and last', 'other']);
  expect(await channels.ended).toEqual({ code: 1005 });
  expect(() => channels.channel(7)).toThrow('there is no channel 7');
});

it('one channel ends before the other, and what the host sends to it afterwards is dropped', async () => {
  const { channels, host } = await connect();
  host.send(message(0, 'all'));
  host.send(message(END_CHANNEL, Buffer.from([0])));
  host.send(message(0, 'too late'));
  expect(await text(channels.channel(0))).toBe('all');
  host.send(message(1, 'goes on'));
  host.close();
  expect(await text(channels.channel(1))).toBe('goes on');
});

it('sends long data in short messages, and then the end of the channel', async () => {
  const { channels, host, messages } = await connect();
  const sent = Buffer.alloc(100 * KIBIBYTE, 'x');
  channels.channel(1).end(sent);
  await expect.poll(() => messages.length).toBe(5);
  expect(messages.slice(0, -1).map(({ length }) => length - 1)).toEqual(
    [32, 32, 32, 4].map((count) => count * KIBIBYTE),
  );
  expect(Buffer.concat(messages.slice(0, -1).map((one) => one.subarray(1)))).toEqual(sent);
  expect(messages.map(([number]) => number)).toEqual([1, 1, 1, 1, END_CHANNEL]);
  expect(messages.at(-1)).toEqual(Buffer.from([END_CHANNEL, 1]));
  host.terminate();
});

it('the protocol of ports has no message for an end', async () => {
  const { channels, host, messages } = await connect(PORT_PROTOCOL);
  channels.channel(0).end('all');
  await expect.poll(() => messages.length).toBe(1);
  host.send(message(END_CHANNEL, Buffer.from([1])));
  host.send(message(1, 'goes on'));
  host.close();
  expect(await text(channels.channel(1))).toBe('goes on');
  expect(messages).toEqual([message(0, 'all')]);
});

it('a host that sends too much at once loses the connection, and one that sends too fast waits', async () => {
  const large = await connect();
  large.host.on('error', () => undefined);
  large.host.send(message(0, Buffer.alloc(MEBIBYTE)));
  const { code, error } = await large.channels.ended;
  expect([code, error?.message]).toEqual([1006, expect.stringContaining('Max payload size exceeded')]);

  const { channels, host } = await connect();
  const count = 32;
  const channel = channels.channel(0);
  for (let sent = 0; sent < count; sent += 1) {
    host.send(message(0, Buffer.alloc(MEBIBYTE - 1)));
  }
  await expect.poll(() => channel.readableLength).toBeGreaterThan(0);
  for (let cycles = 0; cycles < 100; cycles += 1) {
    await nextCycle();
  }
  // The message that filled the channel is whole.
  expect(channel.readableLength).toBeLessThan(3 * MEBIBYTE);
  expect(host.bufferedAmount).toBeGreaterThan(count * MEBIBYTE * 0.5);
  host.close();
  let bytes = 0;
  for await (const chunk of channel as AsyncIterable<Buffer>) {
    bytes += chunk.length;
  }
  expect(bytes).toBe(count * (MEBIBYTE - 1));
});

it('an end that nobody announced ends all channels, and later writes end without an error', async () => {
  const { channels, host } = await connect();
  host.send(message(0, 'before'));
  await expect.poll(() => channels.channel(0).readableLength).toBe(6);
  host.terminate();
  expect(await channels.ended).toMatchObject({ code: 1006 });
  expect([await text(channels.channel(0)), await text(channels.channel(1))]).toEqual(['before', '']);
  const { promise, resolve } = Promise.withResolvers<unknown>();
  channels.channel(1).write('lost', resolve);
  expect(await promise).not.toBeInstanceOf(Error);
});

it('the caller ends the connection', async () => {
  const { channels, host } = await connect();
  const gone = once(host, 'close');
  channels.close();
  await gone;
  expect(await text(channels.channel(0))).toBe('');
});
