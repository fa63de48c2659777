import { once } from 'node:events';
import { Agent, createServer, type IncomingMessage, request, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, it } from 'vitest';
import { UnreadBodies } from './unreadbodies.ts';

const MEBIBYTE = 1024 ** 2;
const BODIES = 4;

let server: Server;

afterEach(() => {
  server.closeAllConnections();
  server.close();
});

/** Starts a server that refuses each request before its body. `ends` has a promise for each body, which resolves when all of it is dropped. */
async function refuseAll(): Promise<{ port: number; ends: Promise<unknown>[] }> {
  const unread = new UnreadBodies();
  const ends: Promise<unknown>[] = [];
  server = createServer((incoming, answer) => {
    const ended = once(incoming, 'end');
    ended.catch(() => undefined);
    ends.push(ended);
    // Otherwise Node.js would drop the body at once when the answer is sent.
    incoming.read(0);
    unread.drop(incoming);
    answer.writeHead(403).end();
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port, ends };
}

it('refused bodies of several clients are dropped at no more than 16 MiB per second together', async () => {
  const { port, ends } = await refuseAll();
  const agent = new Agent({ keepAlive: true });
  const send = async (): Promise<number | undefined> => {
    const sent = request({ port, host: '127.0.0.1', method: 'POST', agent });
    const answered = once(sent, 'response');
    sent.end(Buffer.alloc(4 * MEBIBYTE));
    const [answer] = (await answered) as [IncomingMessage];
    answer.resume();
    return answer.statusCode;
  };
  const began = performance.now();
  expect(await Promise.all(Array.from({ length: BODIES }, send))).toEqual([403, 403, 403, 403]);
  await Promise.all(ends);
  const seconds = (performance.now() - began) / 1000;
  agent.destroy();
  // The last bytes need no pause after them. So a part of the bytes does not count here.
  expect(seconds).toBeGreaterThan((BODIES * 4 * 0.9) / 16);
});

it('a client that sends nothing more delays no other body', async () => {
  const { port, ends } = await refuseAll();
  const headers = { 'content-length': 2 };
  const silent = request({ port, host: '127.0.0.1', method: 'POST', headers });
  silent.on('error', () => undefined).write('a');
  await once(silent, 'response');
  const other = request({ port, host: '127.0.0.1', method: 'POST', headers }).end('ab');
  await once(other, 'response');
  await expect(ends[1]).resolves.toBeDefined();
  silent.destroy();
});
