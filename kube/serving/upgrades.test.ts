import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { HttpError } from './httperror.ts';
import { acceptUpgrades, type UpgradeHandler } from './upgrades.ts';

let server: Server;
let handle: UpgradeHandler;
let log: string[];

beforeEach(async () => {
  log = [];
  server = createServer();
  const logger = pino({ level: 'info' }, { write: (line) => log.push(line) });
  acceptUpgrades(server, (upgrade) => handle(upgrade), logger);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
});

afterEach(() => server.close());

function ask(target: string) {
  const socket = connect({ port: (server.address() as AddressInfo).port, host: '127.0.0.1' });
  socket.write(`GET ${target} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\nfirst`);
  return socket;
}

describe('an upgrade', () => {
  it('gets the first bytes of the client, and its connection is closed after the handler', async () => {
    handle = async ({ socket, head, url }) => {
      socket.write(`${url.pathname} ${head.toString()}`);
    };
    expect(await text(ask('/path'))).toBe('/path first');
  });

  it('is refused by the text of the handler', async () => {
    handle = async () => {
      throw new HttpError(429, 'Too many');
    };
    const answer = await text(ask('/'));
    expect(answer).toMatch(/^HTTP\/1\.1 429 Too Many Requests\r\n/);
    expect(answer).toMatch(/\r\n\r\nToo many\n$/);
    expect(await text(ask('//['))).toMatch(/^HTTP\/1\.1 (400|429) /);
    expect(log).toEqual([]);
  });

  it('that fails is answered by 500, and its query is not logged', async () => {
    handle = async () => {
      throw new TypeError('a fault');
    };
    expect(await text(ask('/exec?command=secret'))).toMatch(/^HTTP\/1\.1 500 /);
    expect(log.join()).toContain('"path":"/exec"');
    expect(log.join()).not.toContain('secret');
  });

  it('that fails after its answer has begun only ends', async () => {
    handle = async ({ socket }) => {
      socket.write('begun');
      throw new Error('a fault');
    };
    expect(await text(ask('/'))).toBe('begun');
  });
});
