import { EventEmitter } from 'node:events';
import type { FastifyRequest } from 'fastify';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { WebSocket } from 'ws';
import { rest } from '../../base/time.ts';
import { ApiError } from '../../kube/errors.ts';
import type { Transport } from '../../kube/transport.ts';
import { PageWatches } from './watches.ts';

const MEBIBYTE = 1024 * 1024;

/** The WebSocket of a page. What the server sends is read when the test wants it. */
class FakePage extends EventEmitter {
  readyState: number = WebSocket.OPEN;
  readonly OPEN = WebSocket.OPEN;
  readonly isPaused = false;
  readonly unread: { message: Buffer | string; onRead: (error?: Error) => void }[] = [];
  end: string | undefined;

  send(message: Buffer | string, onRead: (error?: Error) => void): void {
    this.unread.push({ message, onRead });
  }

  /** Reads what was sent: the texts, and the pieces of watches with their numbers. */
  async read(): Promise<string[]> {
    const read = this.unread.splice(0).map(({ message, onRead }) => {
      onRead();
      return typeof message === 'string'
        ? message
        : `${message.readUInt32BE()} ${message.toString('utf8', 4, 40)}`;
    });
    await vi.advanceTimersByTimeAsync(0);
    return read;
  }

  ask(request: object): void {
    this.emit('message', Buffer.from(JSON.stringify(request)));
  }

  watch(id: number, path: string): void {
    this.ask({ start: { id, path, resourceVersion: '7' } });
  }

  close(code: number, reason: string): void {
    this.end = `${code} ${reason}`;
    this.leave();
  }

  leave(): void {
    this.readyState = WebSocket.CLOSED;
    this.unread.splice(0).forEach(({ onRead }) => onRead(new Error('The WebSocket is closed')));
    this.emit('close', 1006);
  }

  resume(): void {
    // The test sends messages by itself.
  }

  ping(): void {
    this.emit('pong');
  }

  terminate(): void {
    // A page that the test has ended has no connection.
  }
}

let page: FakePage;
let places: number;
let addresses: string[];
let signals: AbortSignal[];
const server = new AbortController();
const error = vi.fn<() => void>();
/** Watches of the API server by their type. */
let watches: Record<string, (signal: AbortSignal) => AsyncGenerator<Buffer>>;

beforeEach(() => {
  vi.useFakeTimers();
  page = new FakePage();
  [places, addresses, signals] = [0, [], []];
  error.mockReset();
  watches = {
    async *vms(signal) {
      yield Buffer.from('{"type":"ADDED"}\n');
      await rest(300_000, signal);
      signal.throwIfAborted();
    },
    async *images() {
      for (let count = 0; ; count += 1) {
        yield Buffer.alloc(MEBIBYTE, `${count}\n`);
      }
    },
    async *isos() {
      yield await Promise.reject(new Error('a fault of the server'));
    },
  };
  const stream = async (address: string, signal: AbortSignal) => {
    addresses.push(address);
    signals.push(signal);
    const plural = /(\w+)\?/.exec(address)?.[1] ?? '';
    const watch = watches[plural];
    if (watch === undefined) {
      throw new ApiError(`cannot watch resource "${plural}"`, { status: 403, reason: 'Forbidden' });
    }
    return await Promise.resolve(watch(signal));
  };
  const pages = new PageWatches({
    request: { log: { error } } as unknown as FastifyRequest,
    browser: page as unknown as WebSocket,
    pages: { stream } as unknown as Transport,
    namespaces: { default: 'platform-default', prefix: 'platform-', system: 'berth-system' },
    hold: () => {
      places += 1;
      return () => {
        places -= 1;
      };
    },
  });
  void pages.serve(server.signal);
});

afterEach(() => {
  page.leave();
  vi.useRealTimers();
});

async function runPending(): Promise<void> {
  await vi.advanceTimersByTimeAsync(0);
}

it('reads a piece of a watch only when the page has read the one before', async () => {
  page.watch(1, 'namespaces/platform-ci/images');
  page.watch(2, 'vms');
  await runPending();
  expect(addresses[0]).toBe(
    '/apis/berth.dev/v1alpha1/namespaces/platform-ci/images?watch=true&allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=300',
  );
  expect(page.unread).toHaveLength(2);
  expect(await page.read()).toEqual(['1 \n', '2 \n']);
  expect(page.unread).toHaveLength(2);
  expect(places).toBe(2);
});

it('ends a watch after 64 MiB, without an error, and frees its place', async () => {
  page.watch(1, 'images');
  let read: string[] = [];
  for (let count = 0; count < 100; count += 1) {
    await runPending();
    read = [...read, ...(await page.read())];
  }
  expect(read).toHaveLength(1 + 64 + 1);
  expect(read.at(-1)).toBe('{"id":1}');
  expect([places, page.end]).toEqual([0, undefined]);
});

it('tells of a fault of one watch without its words, and logs it', async () => {
  page.watch(1, 'isos');
  page.watch(2, 'servers');
  await runPending();
  const sent = [...(await page.read()), ...(await page.read())];
  expect(sent).toEqual([
    '1 \n',
    '{"id":2,"code":403,"message":"cannot watch resource \\"servers\\""}',
    '{"id":1,"code":500,"message":"Internal error"}',
  ]);
  expect(error).toHaveBeenCalledOnce();
  expect(places).toBe(0);
});

it('disconnects a page that does not read for a minute', async () => {
  page.watch(1, 'vms');
  await vi.advanceTimersByTimeAsync(59_000);
  expect(page.end).toBeUndefined();
  await vi.advanceTimersByTimeAsync(1_000);
  expect([page.end, places]).toEqual(['1008 The page does not read what it asks for', 0]);
  expect(error).not.toHaveBeenCalled();
});

it('disconnects a page that causes refusals and reads none', async () => {
  for (let id = 1; id <= 100; id += 1) {
    page.watch(id, 'secrets');
  }
  await runPending();
  expect(page.end).toMatch(/^1008 /);
  expect(page.unread.length).toBeLessThanOrEqual(64);
});

it('disconnects a page without a watch, and one that leaves keeps no place', async () => {
  page.watch(1, 'vms');
  await runPending();
  await page.read();
  page.ask({ stop: 1 });
  // The last piece counts until it is read. A watch that the page has stopped ends without a word.
  expect([await page.read(), places, page.unread.length]).toEqual([['1 {"type":"ADDED"}\n'], 0, 0]);
  await vi.advanceTimersByTimeAsync(29_000);
  page.watch(2, 'vms');
  await vi.advanceTimersByTimeAsync(5_000);
  await page.read();
  await vi.advanceTimersByTimeAsync(50_000);
  await page.read();
  expect([page.end, places]).toEqual([undefined, 1]);
  page.ask({ stop: 2 });
  await vi.advanceTimersByTimeAsync(30_000);
  expect(page.end).toBe('1000 There is no watch');
  expect(places).toBe(0);
});

it('begins no watch after the end of the page, and ends those at the API server that it cannot send', async () => {
  page.watch(1, 'vms');
  page.watch(2, 'images');
  await runPending();
  page.ask({ unknown: 1 });
  await runPending();
  expect(page.end).toBe('1008 A message is no request of a watch');
  page.watch(3, 'vms');
  await runPending();
  expect(addresses).toHaveLength(2);
  expect(signals.map(({ aborted }) => aborted)).toEqual([true, true]);
  expect(places).toBe(0);
});

it('ends a watch at the API server when it cannot be sent', async () => {
  page.watch(1, 'vms');
  await runPending();
  page.unread.splice(0).forEach(({ onRead }) => onRead(new Error('The WebSocket is closing')));
  await runPending();
  expect([signals[0]?.aborted, places]).toEqual([true, 0]);
});
