import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { createDriver } from './create.ts';
import type { PowerDriver } from './driver.ts';

/** Long enough for a busy machine. */
const LIMIT_MILLISECONDS = 10_000;

let server: Server;
let answer: { status: number; body: string };
let received: string[];

beforeAll(async () => {
  server = createServer((request, response) => {
    received.push(`${request.method} ${request.url} ${request.headers['content-length'] ?? 'none'}`);
    expect(request.headers.authorization).toBeUndefined();
    response.writeHead(answer.status, { location: '/other' }).end(answer.body);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
});

afterAll(() => {
  server.closeAllConnections();
  server.close();
});

beforeEach(() => {
  received = [];
  answer = { status: 200, body: '' };
});

function origin(): string {
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function settings() {
  const url = origin();
  return {
    onURL: `${url}/on?key=k`,
    offURL: `${url}/off`,
    statusURL: `${url}/status`,
    pattern: '"state":\\s*"?(\\w+)',
  };
}

function driver(more: object = {}): PowerDriver {
  return createDriver({ webhook: { ...settings(), ...more } }, undefined, LIMIT_MILLISECONDS);
}

it.each([
  ['{"state": "on"}', 'On'],
  ['{"state":"TRUE"}', 'On'],
  ['{"state":1}', 'On'],
  ['{"state":"Off"}', 'Off'],
  ['{"other":"on","state":false,"state":true}', 'Off'],
  ['{"state":0}', 'Off'],
  [`"state":on${' '.repeat(1024 * 1024)}`, 'On'],
])('the status %.20s is %s', async (body, power) => {
  answer = { status: 200, body };
  await expect(driver().read()).resolves.toBe(power);
});

it.each([
  ['', 'does not match spec.controller.webhook.pattern'],
  [`${' '.repeat(64 * 1024)}"state":on`, 'does not match spec.controller.webhook.pattern'],
  [
    '"state":standby',
    'has "standby" in the first group of the pattern, and one of on, true, 1, off, false, 0 was expected',
  ],
  [
    '"state":constructor',
    'has "constructor" in the first group of the pattern, and one of on, true, 1, off, false, 0 was expected',
  ],
])('the status %.20s is an error in words', async (body, message) => {
  answer = { status: 200, body };
  await expect(driver().read()).rejects.toMatchObject({
    reason: 'ControllerFailed',
    message: `The answer of spec.controller.webhook.statusURL ${message}`,
  });
});

it('sends each command to its URL, without a body', async () => {
  const url = origin();
  expect(driver().canReboot).toBe(false);
  const controller = driver({ rebootURL: `${url}/reboot` });
  expect(controller.canReboot).toBe(true);
  for (const command of ['On', 'Off', 'Reboot'] as const) {
    await controller.send(command);
  }
  expect(received).toEqual(['POST /on?key=k 0', 'POST /off 0', 'POST /reboot 0']);
});

it.each([
  [401, 'CredentialsRefused', true, ''],
  [404, 'ControllerFailed', true, ''],
  [500, 'ControllerFailed', false, ''],
  [303, 'ControllerFailed', false, ', a redirect, which Berth does not follow'],
])(
  'the answer %i is an error that names the field, and not the key in the URL',
  async (status, reason, isRefusal, expected) => {
    answer = { status, body: 'details' };
    await expect(driver().send('On')).rejects.toMatchObject({
      reason,
      isRefusal,
      message: `POST to spec.controller.webhook.onURL at ${origin()} was answered with ${status}${expected}`,
    });
    expect(received).toHaveLength(1);
  },
);

it.each([
  [{ pattern: '(on' }, /^spec\.controller\.webhook\.pattern is not a regular expression of RE2: /],
  [{ pattern: '(?=on)' }, /^spec\.controller\.webhook\.pattern is not a regular expression of RE2: /],
  [{ pattern: 'on' }, /^spec\.controller\.webhook\.pattern has no group, /],
  [
    { pattern: `(${'\\pL{1000}'.repeat(50)})` },
    /^spec\.controller\.webhook\.pattern is too complex: it has \d+ steps, /,
  ],
  [{ rebootURL: 'ftp://plug' }, /^spec\.controller\.webhook\.rebootURL must be a URL with/],
  [{ offURL: 'https://[x' }, /^spec\.controller\.webhook\.offURL must be a URL with/],
])('%j cannot work', (more, message) => {
  expect(() => driver(more)).toThrow(
    expect.objectContaining({
      reason: 'ControllerInvalid',
      message: expect.stringMatching(message) as string,
    }),
  );
});

it('sends no credentials without TLS', () => {
  const https = { onURL: 'https://plug/on', offURL: 'https://plug/off', pattern: '(on)' };
  const controller = { webhook: { ...https, statusURL: 'http://plug/status' } };
  expect(() => createDriver(controller, { username: 'a', password: 'b' })).toThrow(
    'spec.controller.webhook.statusURL begins with http://, but Berth sends credentials over https:// alone',
  );
  expect(() => createDriver(controller, undefined)).not.toThrow();
});

it('a pattern that would take other engines years is searched in a second', async () => {
  answer = { status: 200, body: `${'a'.repeat(64 * 1024 - 1)}!` };
  const began = performance.now();
  await expect(driver({ pattern: '^(a+)+$' }).read()).rejects.toMatchObject({ reason: 'ControllerFailed' });
  expect(performance.now() - began).toBeLessThan(LIMIT_MILLISECONDS);
});
