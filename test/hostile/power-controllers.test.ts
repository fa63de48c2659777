/**
 * A controller of a server that somebody else has taken over. It must not cost the operator memory or time, learn a password that is meant
 * for another server, or send Berth to another server.
 */
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { createServer, type TLSSocket } from 'node:tls';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { gzipSync } from 'node:zlib';
import * as fc from 'fast-check';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { selfMadeCertificate } from '../../kube/certificates/serving.ts';
import { createDriver } from '../../operator/server/drivers/create.ts';
import { type PowerDriver, PowerError } from '../../operator/server/drivers/driver.ts';
import { hostileRuns, tried } from './support/attempts.ts';

const MEBIBYTE = 1024 * 1024;
const CREDENTIALS = { username: 'berth', password: 'pass-word' };
const TOKEN = Buffer.from('berth:pass-word').toString('base64');
const SYSTEM = '/redfish/v1/Systems/1';
/** Time limit of a call in this file. */
const LIMIT_MILLISECONDS = 3_000;
/** Longest time between the limit of a call and its end, on a busy machine. */
const SLACK_MILLISECONDS = 5_000;
/** Largest number of bytes of an endless answer that Berth takes, with the buffers of the kernel. */
const TAKEN_LIMIT_BYTES = 8 * MEBIBYTE;
/** Longest time for which one answer may block the operator, on a busy machine. The answers below take up to 50 ms. */
const BLOCKED_LIMIT_MILLISECONDS = 1_000;
/** Longest message. The status of a Server has room for 1,024 characters. */
const MESSAGE_LIMIT = 1_000;

type Play = (socket: TLSSocket, path: string) => void;

interface Asked {
  readonly line: string;
  readonly headers: string;
}

/** A server that plays one part. It answers each request with raw bytes. */
class HostileServer {
  readonly #server;
  readonly authority: string;
  play: Play = () => undefined;
  asked: Asked[] = [];

  private constructor(pair: { certificate: string; key: string }) {
    this.authority = pair.certificate;
    this.#server = createServer({ cert: pair.certificate, key: pair.key }, (socket) => this.#serve(socket));
  }

  /** The server has a certificate with these names, by default with that of its address. */
  static async start(
    dnsNames: string[] = ['localhost'],
    ipAddresses = ['127.0.0.1'],
  ): Promise<HostileServer> {
    const subject = { commonName: 'bmc', dnsNames, ipAddresses };
    const server = new HostileServer(await selfMadeCertificate(subject)());
    await once(server.#server.listen(0, '127.0.0.1'), 'listening');
    return server;
  }

  get origin(): string {
    return `https://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  stop(): void {
    this.#server.close();
  }

  #serve(socket: TLSSocket): void {
    let text = '';
    socket.on('error', () => undefined);
    socket.on('data', (data: Buffer) => {
      text += data.toString('latin1');
      for (let end = text.indexOf('\r\n\r\n'); end >= 0; end = text.indexOf('\r\n\r\n')) {
        const [line = '', ...headers] = text.slice(0, end).split('\r\n');
        const length = Number(/^content-length: (\d+)/im.exec(headers.join('\n'))?.[1] ?? 0);
        text = text.slice(end + 4 + length);
        this.asked.push({ line, headers: headers.join('\n') });
        this.play(socket, line.split(' ')[1] ?? '');
      }
    });
  }
}

function answer(socket: TLSSocket, body: string | Buffer, status = '200 OK', headers = ''): void {
  socket.write(`HTTP/1.1 ${status}\r\ncontent-length: ${Buffer.byteLength(body)}\r\n${headers}\r\n`);
  socket.write(body);
}

/** Writes pieces until the other side closes the connection. Returns a function that tells the number of written bytes. */
function flood(socket: TLSSocket, head: string, piece: string | Buffer): () => number {
  let bytes = 0;
  socket.write(head);
  const go = (): void => {
    while (!socket.destroyed) {
      bytes += piece.length;
      if (!socket.write(piece)) {
        socket.once('drain', go);
        return;
      }
    }
  };
  go();
  return () => bytes;
}

let server: HostileServer;
let other: HostileServer;

beforeAll(async () => {
  server = await HostileServer.start();
  other = await HostileServer.start();
});

afterAll(() => {
  server.stop();
  other.stop();
});

beforeEach(() => {
  server.asked = [];
  other.asked = [];
});

function driver(systemPath: string | undefined = SYSTEM): PowerDriver {
  const redfish = { endpoint: server.origin, authority: server.authority };
  return createDriver(
    { redfish: systemPath === '' ? redfish : { ...redfish, systemPath } },
    CREDENTIALS,
    LIMIT_MILLISECONDS,
  );
}

/** Returns the error of a call. Its message is fit for a status. */
async function errorOf(work: Promise<unknown>): Promise<PowerError> {
  const error = await work.then(
    (value) => new Error(`expected an error, got ${String(value)}`),
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(PowerError);
  const { message } = error as PowerError;
  expect(message).toMatch(/^[^\p{Cc}\p{Zl}\p{Zp}]+$/u);
  expect(message).not.toContain(CREDENTIALS.password);
  expect(message).not.toContain(TOKEN);
  expect(message.length).toBeLessThan(MESSAGE_LIMIT);
  return error as PowerError;
}

const CHUNKED = 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n';
const CHUNK = `10000\r\n${' '.repeat(0x1_0000)}\r\n`;
const BLANKS = Buffer.alloc(64 * 1024, ' ');

describe('an answer without an end', () => {
  it.each<[string, string, string | Buffer, string]>([
    ['a body in chunks', CHUNKED, CHUNK, 'ControllerFailed'],
    ['a body without a length', 'HTTP/1.1 200 OK\r\n\r\n', BLANKS, 'ControllerFailed'],
    [
      'a body of a terabyte',
      'HTTP/1.1 200 OK\r\ncontent-length: 1099511627776\r\n\r\n',
      BLANKS,
      'ControllerFailed',
    ],
    ['the body of an error', CHUNKED.replace('200 OK', '500 No'), CHUNK, 'ControllerFailed'],
    ['headers', 'HTTP/1.1 200 OK\r\n', 'x-more: and more\r\n', 'ControllerFailed'],
    ['one header', 'HTTP/1.1 200 OK\r\nx: ', 'y'.repeat(64 * 1024), 'ControllerFailed'],
    ['interim answers', '', 'HTTP/1.1 102 Processing\r\n\r\n'.repeat(100), 'ControllerUnreachable'],
  ])('is cut: %s', async (_, head, piece, reason) => {
    let written = (): number => 0;
    server.play = (socket) => {
      written = flood(socket, head, piece);
    };
    const began = performance.now();
    const error = await errorOf(driver().read());
    expect(performance.now() - began).toBeLessThan(LIMIT_MILLISECONDS + SLACK_MILLISECONDS);
    expect(error.reason).toBe(reason);
    if (reason === 'ControllerFailed') {
      expect(written()).toBeLessThan(TAKEN_LIMIT_BYTES);
    }
  });

  it('ends at the time limit if its bytes come one by one', async () => {
    server.play = (socket) => {
      socket.write('HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n');
      const timer = setInterval(() => socket.write(' '), 20);
      socket.once('close', () => clearInterval(timer));
    };
    const began = performance.now();
    await expect(errorOf(driver().read())).resolves.toMatchObject({ reason: 'ControllerUnreachable' });
    expect(performance.now() - began).toBeLessThan(LIMIT_MILLISECONDS + SLACK_MILLISECONDS);
  });
});

describe('a small answer that costs much', () => {
  it.each([
    ['brackets', '['.repeat(MEBIBYTE)],
    ['depth', `{"PowerState":${'['.repeat(100_000)}${']'.repeat(100_000)}}`],
    ['empty arrays', `{"PowerState":[${'[],'.repeat(300_000)}[]]}`],
    ['keys', `{${Array.from({ length: 90_000 }, (_, index) => `"k${index}":0`).join(',')}}`],
    ['gzip', gzipSync(Buffer.alloc(64 * MEBIBYTE, ' '))],
  ])('is refused: %s', async (_, body) => {
    const encoding = typeof body === 'string' ? '' : 'content-encoding: gzip\r\n';
    server.play = (socket) => answer(socket, body, '200 OK', encoding);
    const delay = monitorEventLoopDelay({ resolution: 5 });
    delay.enable();
    await expect(errorOf(driver().read())).resolves.toMatchObject({ reason: 'ControllerFailed' });
    delay.disable();
    expect(delay.max / 1e6).toBeLessThan(BLOCKED_LIMIT_MILLISECONDS);
  });
});

describe('a way to another server', () => {
  const links: [string, (target: string) => Play][] = [
    ...[301, 302, 303, 307, 308].map((status): [string, (target: string) => Play] => [
      `redirect ${status}`,
      (target) => (socket) => answer(socket, '', `${status} Elsewhere`, `location: ${target}\r\n`),
    ]),
    [
      'member',
      (target) => (socket) => answer(socket, JSON.stringify({ Members: [{ '@odata.id': target }] })),
    ],
    [
      'action info',
      (target) => (socket) =>
        answer(socket, reset({ target: `${SYSTEM}/Reset`, '@Redfish.ActionInfo': target })),
    ],
    ['target', (target) => (socket) => answer(socket, reset({ target }))],
  ];

  function reset(action: object): string {
    return JSON.stringify({ PowerState: 'On', Actions: { '#ComputerSystem.Reset': action } });
  }

  it.each(links)('is not taken: %s', async (kind, play) => {
    const authority = other.origin.replace('https://', '');
    for (const target of [other.origin, `//${authority}/`, `https:\\\\${authority}`, `\\\\${authority}\\x`]) {
      server.play = play(target);
      const error = await errorOf(driver(kind === 'member' ? '' : SYSTEM).send('Off'));
      expect(error).toMatchObject({ reason: 'ControllerFailed', isRefusal: true });
    }
    expect(other.asked).toEqual([]);
    expect(server.asked.filter(({ line }) => line.startsWith('POST'))).toEqual([]);
  });
});

it('a certificate with many names gets a short message', async () => {
  const names = Array.from({ length: 300 }, (_, index) => `${index}.${'x'.repeat(60)}.example`);
  const many = await HostileServer.start(names, []);
  try {
    const redfish = { endpoint: many.origin.replace('127.0.0.1', 'localhost'), authority: many.authority };
    const call = createDriver({ redfish }, CREDENTIALS, LIMIT_MILLISECONDS).send('On');
    await expect(errorOf(call)).resolves.toMatchObject({ reason: 'CertificateRefused', isRefusal: true });
    expect(many.asked).toEqual([]);
  } finally {
    many.stop();
  }
});

describe('documents of any form', () => {
  const value = fc.oneof(
    fc.constantFrom(
      'On',
      'Off',
      'ForceOff',
      SYSTEM,
      '/redfish/v1/x',
      'https://192.0.2.1/',
      '\u001b[2J',
      `\u202e${TOKEN}`,
    ),
    fc.jsonValue(),
  );
  const maybe = (inner: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> =>
    fc.oneof({ weight: 3, arbitrary: inner }, value);
  const record = (fields: Record<string, fc.Arbitrary<unknown>>) => fc.record(fields, { requiredKeys: [] });
  const action = record({
    target: value,
    'ResetType@Redfish.AllowableValues': maybe(fc.array(value)),
    '@Redfish.ActionInfo': value,
  });
  const document = maybe(
    record({
      PowerState: value,
      Members: maybe(fc.array(maybe(record({ '@odata.id': value })))),
      Parameters: maybe(fc.array(maybe(record({ Name: value, AllowableValues: maybe(fc.array(value)) })))),
      Actions: maybe(record({ '#ComputerSystem.Reset': maybe(action) })),
      error: maybe(
        record({
          message: value,
          '@Message.ExtendedInfo': maybe(fc.array(maybe(record({ Message: value })))),
        }),
      ),
    }),
  );
  const status = fc.constantFrom('200 OK', '204 None', '400 No', '401 No', '500 No', '307 There', '999 What');

  it('give a power or an error in words, and Berth stays at the controller', async (context) => {
    await fc.assert(
      fc.asyncProperty(document, status, fc.boolean(), async (content, code, isFound) => {
        server.play = (socket) => answer(socket, code.startsWith('204') ? '' : JSON.stringify(content), code);
        const controller = driver(isFound ? '' : SYSTEM);
        for (const call of [() => controller.read(), () => controller.send('On')]) {
          const made = call();
          const outcome = await made.then(
            (power) => power ?? 'accepted',
            async () => (await errorOf(made)).reason,
          );
          tried(context, 'document of Redfish', outcome);
        }
        const hosts = server.asked.map(({ headers }) => /^host: (.*)$/im.exec(headers)?.[1]);
        expect(new Set(hosts)).toEqual(new Set([server.origin.replace('https://', '')]));
      }),
      hostileRuns(1_000),
    );
  });
});
