import { once } from 'node:events';
import { Agent, createServer, type IncomingMessage, request, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, it } from 'vitest';
import { UnreadBodies } from './unreadbodies.ts';

const MEBIBYTE = 1024 ** 2;
const BODIES = 4;

let server: Server;

afterEach(() => void server.close());

it('refused bodies of several clients are dropped at no more than 16 MiB per second together', async () => {
  const unread = new UnreadBodies();
  server = createServer((incoming, answer) => {
    incoming.read(0);
    unread.drop(incoming);
    answer.writeHead(403).end();
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const agent = new Agent({ keepAlive: true });
  const send = async (): Promise<number | undefined> => {
    const sent = request({ port, host: '127.0.0.1', method: 'POST', agent });
    const answered = once(sent, 'response');
    sent.end(Buffer.alloc(4 * MEBIBYTE));
    const [[answer]] = (await Promise.all([answered, once(sent, 'finish')])) as [[IncomingMessage], unknown];
    answer.resume();
    return answer.statusCode;
  };
  const began = performance.now();
  expect(await Promise.all(Array.from({ length: BODIES }, send))).toEqual([403, 403, 403, 403]);
  agent.destroy();
  // A part of each body fits into buffers, and the end of the last body needs no pause. So only half of the bytes count here.
  expect(performance.now() - began).toBeGreaterThan(((BODIES * 4) / 2 / 16) * 1000);
});
