import { once } from 'node:events';
import { type Duplex, duplexPair, PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import { SharedConsole } from './terminal.ts';

const BACKLOG_BYTES = 1024 * 1024;

/** A console with the guest's end of each connection to it. */
function consoleOf(): { console: SharedConsole; guests: Duplex[] } {
  const guests: Duplex[] = [];
  const console = new SharedConsole(async () => {
    const [agent, guest] = duplexPair();
    // Like the two ends of a real socket, both ends close together.
    agent.once('close', () => guest.destroy());
    guest.once('close', () => agent.destroy());
    guests.push(guest);
    return agent;
  });
  return { console, guests };
}

async function opened(console: SharedConsole, input: boolean): Promise<Duplex> {
  const stream = await console.open({ input });
  if (stream === undefined) {
    throw new Error('another stream has the input');
  }
  return stream;
}

async function textOf(stream: Duplex): Promise<string> {
  const [chunk] = (await once(stream, 'data')) as [Buffer];
  return chunk.toString();
}

test('all readers get the output over one connection, and one of them types', async () => {
  const { console, guests } = consoleOf();
  const [writer, reader] = await Promise.all([opened(console, true), opened(console, false)]);
  expect(guests).toHaveLength(1);
  const texts = Promise.all([textOf(writer), textOf(reader)]);
  guests[0]?.write('login: ');
  expect(await texts).toEqual(['login: ', 'login: ']);
  const typed = textOf(guests[0] as Duplex);
  writer.write('root\n');
  expect(await typed).toBe('root\n');
  expect(reader.writable).toBe(false);
});

test('the input is free after its stream has ended its input or is closed', async () => {
  const { console } = consoleOf();
  const first = await opened(console, true);
  expect(await console.open({ input: true })).toBeUndefined();
  first.end();
  await once(first, 'finish');
  const second = await opened(console, true);
  expect(await console.open({ input: true })).toBeUndefined();
  second.destroy();
  await once(second, 'close');
  await opened(console, true);
});

test('the last stream closes the connection, and the next one opens another', async () => {
  const { console, guests } = consoleOf();
  const [one, other] = [await opened(console, false), await opened(console, false)];
  one.destroy();
  await once(one, 'close');
  expect(guests[0]?.destroyed).toBe(false);
  const closed = once(guests[0] as Duplex, 'close');
  other.destroy();
  await closed;
  const next = await opened(console, true);
  expect(guests).toHaveLength(2);
  const text = textOf(next);
  guests[1]?.write('again');
  expect(await text).toBe('again');
});

test('a reader that is too slow gets an error, and neither the guest nor other readers wait', async () => {
  const { console, guests } = consoleOf();
  const [slow, good] = [await opened(console, false), await opened(console, false)];
  const guest = guests[0] as Duplex;
  let bytes = 0;
  good.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
  });
  const errors: Error[] = [];
  slow.on('error', (error) => errors.push(error));
  const piece = Buffer.alloc(64 * 1024);
  for (let sent = 0; sent < 2 * BACKLOG_BYTES; sent += piece.length) {
    await new Promise((resolve) => guest.write(piece, resolve));
  }
  expect(errors[0]?.message).toContain('not read');
  expect(slow.readableLength).toBeLessThanOrEqual(BACKLOG_BYTES);
  expect(bytes).toBe(2 * BACKLOG_BYTES);
});

test('input that the guest does not read fills no memory, and later input waits for the guest', async () => {
  const connection = new PassThrough();
  const console = new SharedConsole(async () => connection);
  await opened(console, false);
  connection.pause();
  const piece = Buffer.alloc(64 * 1024, 'x');
  for (let streams = 0; streams < 50; streams += 1) {
    const stream = await opened(console, true);
    stream.write(piece);
    stream.destroy();
    await once(stream, 'close');
  }
  expect(connection.writableLength + connection.readableLength).toBeLessThan(4 * piece.length);
  expect(connection.listenerCount('drain')).toBe(0);
  const last = await opened(console, true);
  last.write('root\n');
  let text = '';
  connection.on('data', (chunk: Buffer) => {
    text += String(chunk);
  });
  connection.resume();
  await expect.poll(() => text).toMatch(/^x+root\n$/u);
});

test('streams end with the connection after their last output, also while they wait to type', async () => {
  const { console, guests } = consoleOf();
  const stream = await opened(console, true);
  // The guest reads nothing.
  stream.write(Buffer.alloc(BACKLOG_BYTES));
  const guest = guests[0] as Duplex;
  guest.write('the end');
  await new Promise((resolve) => setImmediate(resolve));
  guest.destroy();
  let text = '';
  for await (const chunk of stream) {
    text += String(chunk);
  }
  expect(text).toBe('the end');
  await opened(console, true);
  expect(guests).toHaveLength(2);
});

test('a failed connection fails all that wait for it, and the next stream tries again', async () => {
  let attempts = 0;
  const console = new SharedConsole(async () => {
    attempts += 1;
    if (attempts === 1) {
      throw new Error('no console');
    }
    return duplexPair()[0];
  });
  const both = await Promise.allSettled([console.open({ input: true }), console.open({ input: false })]);
  expect(both.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
  await expect(console.open({ input: true })).resolves.toBeDefined();
});
