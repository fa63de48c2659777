import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname } from 'node:path';
import { EventEmitter } from 'node:events';
import type { ServerResponse } from 'node:http';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it, vi } from 'vitest';
import { loadConfig } from './config.ts';
import { assemble } from './server.ts';
import { FileDownloads } from './documentation.ts';

const PAGE = '/api/v1/swagger';
const PACKAGE = dirname(createRequire(import.meta.url).resolve('swagger-ui-dist/package.json'));
const TYPES: Record<string, string> = {
  css: 'text/css; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
};

let server: Awaited<ReturnType<typeof assemble>>;

beforeAll(async () => {
  server = await assemble({
    connection: { server: 'https://127.0.0.1:1' },
    config: loadConfig(undefined),
    logger: pino({ level: 'silent' }),
  });
});

afterAll(async () => await server?.close());

it('has a page for everybody, whose files all come from this server', async () => {
  const { body } = await server.app.inject({ url: PAGE });
  const files = [...body.matchAll(/ (?:src|href)="([^"]*)"/g)].map(([, path = '']) => path);
  expect(files.toSorted()).toEqual([
    `${PAGE}/start.js`,
    `${PAGE}/swagger-ui-bundle.js`,
    `${PAGE}/swagger-ui.css`,
    'data:,',
  ]);
  for (const url of files.filter((path) => !path.startsWith('data:'))) {
    const { statusCode, headers } = await server.app.inject({ url });
    expect([url, statusCode, headers['content-type']]).toEqual([
      url,
      200,
      TYPES[url.split('.').at(-1) ?? ''],
    ]);
    const head = await server.app.inject({ method: 'HEAD', url });
    expect([url, head.statusCode, head.body]).toEqual([url, 200, '']);
  }
});

it.each(['/', '/api/v1', '/api/v1/'])('%s leads to the page', async (url) => {
  const { statusCode, headers } = await server.app.inject({ url });
  expect([statusCode, headers.location]).toEqual([302, PAGE]);
});

it.each(['swagger-ui.css', 'swagger-ui-bundle.js', 'swagger-ui-bundle.js.LICENSE.txt'])(
  'gives all of %s',
  async (file) => {
    const { rawPayload } = await server.app.inject({ url: `${PAGE}/${file}` });
    const sum = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
    expect(sum(rawPayload)).toBe(sum(await readFile(`${PACKAGE}/${file}`)));
  },
);

it('allows the page no script but those of this server', async () => {
  for (const url of [PAGE, `${PAGE}/`, `/${PAGE}//`]) {
    const { statusCode, headers, body } = await server.app.inject({ url });
    expect([url, statusCode]).toEqual([url, 200]);
    const policy = headers['content-security-policy'];
    expect(policy).toContain("default-src 'none'; script-src 'self'; style-src 'self';");
    expect(policy).toContain("frame-ancestors 'none'");
    expect(policy).not.toContain('unsafe');
    expect(body).not.toMatch(/<script[^>]*>[^<]|<style| on[a-z]+=/);
  }
});

it('shows the document, and starts with it', async () => {
  const { body } = await server.app.inject({ url: `${PAGE}/start.js` });
  const [, url = ''] = /url: '([^']+)'/.exec(body) ?? [];
  expect((await server.app.inject({ url })).json()).toEqual(JSON.parse(JSON.stringify(server.app.swagger())));
});

it('gives no other file of the package', async () => {
  for (const file of ['package.json', 'index.html', '../routes.ts', '%2e%2e%2fpackage.json']) {
    const { statusCode } = await server.app.inject({ url: `${PAGE}/${file}` });
    expect([file, statusCode]).toEqual([file, 404]);
  }
});

class FakeResponse extends EventEmitter {
  closed = false;

  destroy(): void {
    this.closed = true;
    this.emit('close');
  }
}

let downloads: FileDownloads;

beforeEach(() => {
  vi.useFakeTimers();
  downloads = new FileDownloads();
});

afterEach(() => {
  vi.useRealTimers();
});

function begin(destroyed = false, remoteAddress = '192.0.2.1'): FakeResponse {
  const raw = Object.assign(new FakeResponse(), { destroyed, socket: { remoteAddress } });
  downloads.begin(raw as unknown as ServerResponse);
  return raw;
}

it('a further answer beyond the limit displaces the oldest one', () => {
  const answers = Array.from({ length: 32 }, () => begin());
  expect(answers.map(({ closed }) => closed)).toEqual(Array.from({ length: 32 }, () => false));
  begin();
  expect(answers.filter(({ closed }) => closed)).toEqual([answers[0]]);
  answers[1]?.destroy();
  begin();
  expect(answers.filter(({ closed }) => closed)).toEqual(answers.slice(0, 2));
});

it('sources that take many places displace nobody who takes few', () => {
  const one = begin(false, '198.51.100.7');
  const networks = ['192.0.2.1', '192.0.2.2', '2001:db8:1:2::', '2001:db8:1:3::'];
  for (let count = 0; count < 40; count += 1) {
    networks.forEach((address) => begin(false, address.endsWith('::') ? `${address}${count + 1}` : address));
  }
  const other = begin(false, '198.51.100.8');
  networks.forEach((address) => begin(false, address));
  expect([one.closed, other.closed]).toEqual([false, false]);
});

it('does not count the answers of clients that are gone', () => {
  const one = begin();
  Array.from({ length: 33 }, () => begin(true));
  expect(one.closed).toBe(false);
});

it('ends an answer that takes too long', () => {
  const one = begin();
  vi.advanceTimersByTime(29_000);
  expect(one.closed).toBe(false);
  vi.advanceTimersByTime(1_000);
  expect(one.closed).toBe(true);
});
