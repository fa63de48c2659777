/** Tests the ends of requests, over real connections. */
import { once } from 'node:events';
import { connect } from 'node:net';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import * as fc from 'fast-check';
import { listen, type ListeningServer } from '../../kube/serving/httpserver.ts';
import { type App, createApp } from '../http/app.ts';
import { addCallers, Callers, challengeOf } from './caller.ts';

/** Length of an answer that is too long for the buffers of the kernel. */
const LONG = 24 * 1024 * 1024;
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };

let app: App;
let running: ListeningServer;
/** Signals of the requests. */
const ended: AbortSignal[] = [];

beforeAll(async () => {
  app = createApp({ logger: pino({ level: 'silent' }), tls: false });
  // Nothing listens there, and no test gets that far.
  addCallers(app, new Callers({ server: 'http://127.0.0.1:1' }, new Registry()));
  app.get('/long', ({ caller }) => {
    ended.push(caller().ended);
    return 'x'.repeat(LONG);
  });
  app.get('/never', async ({ caller }) => {
    ended.push(caller().ended);
    await new Promise(() => undefined);
  });
  await app.ready();
  running = await listen(app.server, '127.0.0.1:0');
});

afterAll(async () => {
  await running?.close();
});

it.each(['/long', '/never'])(
  'the signal of a request aborts when its answer is written, or when its client is gone: %s',
  async (path) => {
    ended.length = 0;
    const socket = connect(running.port, '127.0.0.1');
    socket.write(`GET ${path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\n\r\n`);
    if (path === '/long') {
      await once(socket, 'readable');
    }
    await vi.waitFor(() => expect(ended).toHaveLength(1), WAIT);
    expect(ended[0]?.aborted).toBe(path === '/long');
    socket.destroy();
    await vi.waitFor(() => expect(ended[0]?.aborted).toBe(true), WAIT);
  },
);

const NOW = Date.parse('2026-11-23T12:00:00Z');
const SECONDS = NOW / 1000;
const SIGN_IN = { issuer: 'https://id.example', clientID: 'berth' };
const GOOD = {
  iss: SIGN_IN.issuer,
  aud: 'berth',
  iat: SECONDS,
  exp: SECONDS + 3600,
  email_verified: true,
};
/** Characters that RFC 6750 allows in a description. */
const HEADER = /^Bearer(?: error="invalid_token"(?:, error_description="[\x20-\x21\x23-\x5b\x5d-\x7e]+")?)?$/;

function challenge(claims: unknown, signIn: Parameters<typeof challengeOf>[1] = SIGN_IN): string {
  const payload = Buffer.from(JSON.stringify(claims)).toString('base64url');
  return challengeOf(`Bearer e30.${payload}.c2ln`, signIn, NOW);
}

it.each<[string, object, string]>([
  ['expired', { exp: SECONDS - 1 }, 'expired at 2026-11-23T11:59:59.000Z'],
  ['of the future', { nbf: SECONDS + 61 }, 'Compare the clocks'],
  ['for another client', { aud: 'desk' }, 'another client'],
  ['for other clients', { aud: ['desk', 'chair'] }, 'another client'],
  ['of 61 minutes', { exp: SECONDS + 3660 }, 'longer than one hour'],
  ['without the time of its issue', { iat: undefined }, 'does not tell its lifetime'],
  ['without an end', { exp: undefined }, 'does not tell its lifetime'],
  ['of an unverified address', { email_verified: 'true' }, 'not verified'],
])('tells that a token is %s', (_, changes, expected) => {
  expect(challenge({ ...GOOD, ...changes })).toContain(expected);
  expect(challenge({ ...GOOD, ...changes })).toMatch(HEADER);
});

it('tells no cause that the token does not show', () => {
  const unknown = 'Bearer error="invalid_token"';
  expect(challenge(GOOD)).toBe(unknown);
  expect(challenge({ ...GOOD, aud: ['desk', 'berth'], nbf: SECONDS + 59 })).toBe(unknown);
  // Tokens of service accounts have other audiences, and may live longer.
  const account = { iss: 'https://kubernetes.default.svc', exp: SECONDS + 86_400 };
  expect(challenge(account)).toBe(unknown);
  expect(challenge({ ...GOOD, aud: 'desk' }, { clientID: 'berth' })).toBe(unknown);
  expect(challengeOf(undefined, SIGN_IN, NOW)).toBe('Bearer');
  expect(challengeOf('Basic YTpi', SIGN_IN, NOW)).toBe('Bearer');
});

it('is a valid header for everything that callers send', () => {
  const times = fc.oneof(fc.double(), fc.integer(), fc.constant(1e300), fc.anything());
  const claims = fc.record({
    iss: fc.constant(SIGN_IN.issuer),
    exp: times,
    nbf: times,
    iat: times,
    aud: fc.anything(),
  });
  const bodies = fc.oneof(
    claims,
    fc.json().map((text) => JSON.parse(text) as unknown),
  );
  fc.assert(
    fc.property(bodies, (body) => {
      expect(challenge(body)).toMatch(HEADER);
    }),
  );
  fc.assert(
    fc.property(
      fc.oneof(
        fc.string(),
        fc.string().map((text) => `Bearer ${text}`),
      ),
      (text) => {
        expect(challengeOf(text, SIGN_IN, NOW)).toMatch(HEADER);
      },
    ),
  );
});
