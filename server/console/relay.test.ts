import { createHash } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { Duplex } from 'node:stream';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { acceptWebSocket } from '../../kube/serving/websockets.ts';
import { MESSAGE_BYTES, relay } from './relay.ts';

const KIBIBYTE = 1024;
/** Number of bytes that a server reads from a connection at once. */
const PIECE_BYTES = 64 * KIBIBYTE;
const STREAMS = 16;
/** Memory that a stream may need in one direction: what the relay and the library keep. */
const DIRECTION_BYTES = 768 * KIBIBYTE;

let end: AbortController;
const cleanups: (() => void)[] = [];

beforeEach(() => {
  end = new AbortController();
});

afterEach(() => {
  end.abort();
  cleanups.splice(0).forEach((clean) => clean());
});

/** One end of a WebSocket. Messages to it are written when the test wants it. */
class FakeSocket extends EventEmitter {
  readyState: number = WebSocket.OPEN;
  isPaused = true;
  bufferedAmount = 0;
  readonly unwritten: { message: Buffer; onWritten: () => void }[] = [];

  send(message: Buffer, onWritten: () => void): void {
    this.unwritten.push({ message, onWritten });
  }

  /** Writes what waits, and returns it. */
  write(): Buffer[] {
    const written = this.unwritten.splice(0);
    written.forEach(({ onWritten }) => onWritten());
    return written.map(({ message }) => message);
  }

  pause(): void {
    this.isPaused = true;
  }

  resume(): void {
    this.isPaused = false;
  }

  close(): void {
    this.readyState = WebSocket.CLOSED;
    // As with a real one, the event comes after the call.
    queueMicrotask(() => this.emit('close', 1000, Buffer.alloc(0)));
  }
}

function fakeStream() {
  const [browser, host] = [new FakeSocket(), new FakeSocket()];
  const never = new Promise<never>(() => undefined);
  void relay(browser as unknown as WebSocket, host as unknown as WebSocket, {
    signal: end.signal,
    end: never,
  });
  return { browser, host };
}

it('hands on few messages at a time, however many come in one piece, in their order and unchanged', () => {
  const { browser, host } = fakeStream();
  const lengths = Array.from({ length: 10_000 }, (_, number) => (number % 1_000 === 7 ? 40_000 : number % 3));
  const sent = lengths.map((length, number) => Buffer.alloc(length, number % 251));
  const received: Buffer[] = [];
  let most = 0;
  for (const message of sent) {
    browser.emit('message', message, true);
    most = Math.max(most, host.unwritten.length);
  }
  expect(browser.isPaused).toBe(true);
  while (host.unwritten.length > 0) {
    received.push(...host.write());
    most = Math.max(most, host.unwritten.length);
  }
  expect(most).toBeLessThanOrEqual(64);
  expect(received.length).toBe(sent.length);
  expect(Buffer.concat(received).equals(Buffer.concat(sent))).toBe(true);
  expect(received.map(({ length }) => length)).toEqual(lengths);
  expect(browser.isPaused).toBe(false);
});

it('reads a sender again when most of its messages are written', () => {
  const { browser, host } = fakeStream();
  for (let count = 0; count < 4; count += 1) {
    browser.emit('message', Buffer.alloc(40 * KIBIBYTE), true);
  }
  expect([browser.isPaused, host.unwritten.length]).toEqual([true, 1]);
  host.write();
  // Two of the three that waited are one batch. The last one waits.
  expect([browser.isPaused, host.unwritten.length]).toEqual([true, 2]);
  host.write();
  expect([browser.isPaused, host.unwritten.length]).toEqual([false, 1]);
});

/** A connection to a host that accepts the WebSocket, and then takes nothing. */
class StuckHost extends Duplex {
  #isOpen = false;

  override _read(): void {
    // Only the answer to the handshake comes.
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, onWritten: () => void): void {
    if (this.#isOpen) {
      return;
    }
    this.#isOpen = true;
    const [, key = ''] = /sec-websocket-key: (\S+)/i.exec(chunk.toString()) ?? [];
    const accepted = createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64');
    this.push(
      `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accepted}\r\n\r\n`,
    );
    onWritten();
  }
}

async function connectStuckHost(): Promise<WebSocket> {
  const host = new WebSocket('ws://host.example', {
    createConnection: () => new StuckHost() as unknown as Socket,
  });
  host.on('error', () => undefined);
  cleanups.push(() => host.terminate());
  await once(host, 'open');
  host.pause();
  return host;
}

/** Returns a piece of messages with one byte each, as a browser masks them. */
function tinyMessages(): Buffer {
  const one = Buffer.from([0x82, 0x81, 0, 0, 0, 0, 0x61]);
  return Buffer.alloc(Math.floor(PIECE_BYTES / one.length) * one.length, one);
}

async function connectBrowsers(server: Server, count: number): Promise<WebSocket[]> {
  const { port } = server.address() as AddressInfo;
  const browsers: WebSocket[] = [];
  server.on('upgrade', (request, socket, head) => {
    const browser = acceptWebSocket(
      { request, socket, head },
      { protocol: 'a', messageBytes: MESSAGE_BYTES },
    );
    browser.pause();
    browsers.push(browser);
  });
  const clients = Array.from({ length: count }, () => connect(port, '127.0.0.1'));
  cleanups.push(() => clients.forEach((client) => client.destroy()));
  for (const client of clients) {
    client.on('error', () => undefined);
    client.write(
      'GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n' +
        'Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: a\r\n\r\n',
    );
    await once(client, 'data');
    client.write(Buffer.concat([tinyMessages(), tinyMessages()]));
  }
  return browsers;
}

it('keeps little of streams with messages of one byte whose other side takes nothing', async () => {
  const server = createServer();
  cleanups.push(() => server.close());
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const browsers = await connectBrowsers(server, STREAMS);
  cleanups.push(() => browsers.forEach((browser) => browser.terminate()));
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const used = () => {
    collect();
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external;
  };
  const hosts = await Promise.all(browsers.map(connectStuckHost));
  const before = used();
  const never = new Promise<never>(() => undefined);
  for (const [index, browser] of browsers.entries()) {
    void relay(browser, hosts[index] as WebSocket, { signal: end.signal, end: never });
  }
  await expect.poll(() => browsers.every(({ isPaused }) => isPaused)).toBe(true);
  expect((used() - before) / STREAMS).toBeLessThan(DIRECTION_BYTES);
});
