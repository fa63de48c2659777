import { Readable } from 'node:stream';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import * as fc from 'fast-check';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { parseChallenges, RegistryTokens } from './tokens.ts';
import type { RegistryExchange, Response, RegistryTransport } from './transport.ts';

function read(header: string | string[] | undefined): [string, Record<string, string>][] {
  return parseChallenges(header).map(({ scheme, parameters }) => [scheme, Object.fromEntries(parameters)]);
}

describe('WWW-Authenticate', () => {
  it.each<[string | string[] | undefined, [string, Record<string, string>][]]>([
    [undefined, []],
    ['', []],
    ['Basic realm="a b"', [['basic', { realm: 'a b' }]]],
    [
      'Bearer realm="https://a/token",service="a",scope="repository:x:pull,push"',
      [['bearer', { realm: 'https://a/token', service: 'a', scope: 'repository:x:pull,push' }]],
    ],
    [
      'bearer realm="https://a, Basic realm=b" , Service = a.b, BASIC realm=x',
      [
        ['bearer', { realm: 'https://a, Basic realm=b', service: 'a.b' }],
        ['basic', { realm: 'x' }],
      ],
    ],
    [
      ['Negotiate', 'Basic realm="x"'],
      [
        ['negotiate', {}],
        ['basic', { realm: 'x' }],
      ],
    ],
    [
      'Negotiate YWJj==, Basic realm="say \\"x\\""',
      [
        ['negotiate', {}],
        ['basic', { realm: 'say "x"' }],
      ],
    ],
    ['Basic realm="one", realm="two"', [['basic', { realm: 'one' }]]],
    ['Basic realm="not closed', [['basic', {}]]],
  ])('%j', (header, expected) => expect(read(header)).toEqual(expected));

  it('a written challenge is read unchanged', () => {
    const token = fc.stringMatching(/^[a-z][a-z0-9]{0,8}$/);
    const value = fc.string({ unit: fc.constantFrom('a', ',', ' ', '=', '"', '\\', ':', 'Basic ') });
    const challenge = fc.tuple(token, fc.dictionary(token, value, { minKeys: 1, maxKeys: 4 }));
    fc.assert(
      fc.property(fc.array(challenge, { maxLength: 4 }), (challenges) => {
        const header = challenges.map(([scheme, parameters]) => {
          const written = Object.entries(parameters).map(
            ([name, text]) => `${name}="${text.replaceAll(/["\\]/g, String.raw`\$&`)}"`,
          );
          return `${scheme} ${written.join(', ')}`;
        });
        const plain = challenges.map(([scheme, parameters]) => [scheme, { ...parameters }]);
        expect(read(header.join(', '))).toEqual(plain);
        expect(read(header)).toEqual(plain);
      }),
    );
  });

  it('ends soon on any input', () => {
    fc.assert(
      fc.property(fc.string({ maxLength: 200 }), (text) => {
        expect(read(text)).toBeDefined();
      }),
    );
    const before = performance.now();
    // If the time grew with the square of the length, these would take minutes. They take some milliseconds.
    read(`Bearer ${'a="\\'.repeat(400_000)}`);
    read('a='.repeat(800_000));
    expect(performance.now() - before).toBeLessThan(5_000);
  });
});

const NEED = {
  registry: new URL('https://registry.example'),
  scope: 'repository:team/base:pull',
  credential: undefined,
  trust: '',
  what: 'registry.example/team/base:1',
};
const { signal } = new AbortController();

/** Returns the registry's refusal of a request without a token. It names a token server. */
function refusalNaming(host: string): Response {
  const headers = { 'www-authenticate': `Bearer realm="https://${host}/token"` };
  return { status: 401, headers, url: NEED.registry } as unknown as Response;
}

function reply(token: string, url: URL): Response {
  const body = Readable.from([Buffer.from(JSON.stringify({ token, expires_in: 0 }))]);
  return { status: 200, headers: {}, body, url } as unknown as Response;
}

it('a token server that is gone is forgotten, so that the registry can name another one', async () => {
  const gone = new Set<string>();
  const asked: string[] = [];
  const send = async ({ url, what }: RegistryExchange): Promise<Response> => {
    asked.push(url.host);
    if (gone.has(url.host)) {
      throw new ReasonedError('ImageFetchFailed', `${what}: getaddrinfo ENOTFOUND`);
    }
    return reply(`of-${url.host}`, url);
  };
  const tokens = new RegistryTokens({ send } as unknown as RegistryTransport);
  expect(await tokens.answer(NEED, refusalNaming('old.example'), undefined, signal)).toBe(
    'Bearer of-old.example',
  );
  expect(await tokens.current(NEED, signal)).toBe('Bearer of-old.example');
  gone.add('old.example');
  expect(await tokens.current(NEED, signal)).toBeUndefined();
  expect(await tokens.answer(NEED, refusalNaming('new.example'), undefined, signal)).toBe(
    'Bearer of-new.example',
  );
  expect(await tokens.current(NEED, signal)).toBe('Bearer of-new.example');
  expect(asked).toEqual(['old.example', 'old.example', 'old.example', 'new.example', 'new.example']);
});

it('the largest tokens of a hostile token server do not fill the memory', async () => {
  const token = 'a'.repeat(250_000);
  const send = async ({ url }: RegistryExchange): Promise<Response> => {
    const body = Readable.from([Buffer.from(JSON.stringify({ token, expires_in: 3_600 }))]);
    return { status: 200, headers: {}, body, url } as unknown as Response;
  };
  const tokens = new RegistryTokens({ send } as unknown as RegistryTransport);
  const needs = Array.from({ length: 100 }, (_, index) => ({
    ...NEED,
    scope: `repository:team/base${index}:pull`,
  }));
  for (const need of needs) {
    await tokens.answer(need, refusalNaming('hostile.example'), undefined, signal);
  }
  const known = await Promise.all(needs.map((need) => tokens.current(need, signal)));
  expect(known.at(-1)).toBe(`Bearer ${token}`);
  expect(known.filter((header) => header !== undefined).join('').length).toBeLessThan(5_000_000);
});

/** Returns the tokens of a client whose token server always gives this answer. */
function answering(answer: unknown, status = 200, asked: () => void = () => undefined): RegistryTokens {
  const send = async ({ url }: RegistryExchange): Promise<Response> => {
    asked();
    const body = Readable.from([Buffer.from(typeof answer === 'string' ? answer : JSON.stringify(answer))]);
    return { status, headers: {}, body, url } as unknown as Response;
  };
  return new RegistryTokens({ send } as unknown as RegistryTransport);
}

it.each<[unknown, number]>([
  [{ token: '', access_token: 'T' }, 60],
  [{ token: null, access_token: 'T' }, 60],
  [{ token: 7, access_token: 'T' }, 60],
  [{ token: 'T', access_token: '' }, 60],
  [{ token: 'T', access_token: null, expires_in: null }, 60],
  [{ token: 'T', expires_in: 300 }, 300],
  [{ token: 'T', expires_in: '300' }, 300],
  [{ token: 'T', expires_in: 300.7 }, 300],
  [{ token: 'T', expires_in: '300.7' }, 300],
  [{ token: 'T', expires_in: -1 }, 60],
  [{ token: 'T', expires_in: 'soon' }, 60],
  [{ token: 'T', expires_in: '' }, 60],
  [{ token: 'T', expires_in: {} }, 60],
  [{ token: 'T', expires_in: 300, issued_at: '2020-01-01T00:00:00Z' }, 300],
  [{ token: 'T', issued_at: null, scope: null, refresh_token: 7 }, 60],
  ['\uFEFF{"token":"T"}', 60],
])('the answer %j gives a token for %s s', async (answer, seconds) => {
  let asked = 0;
  const tokens = answering(answer, 200, () => (asked += 1));
  const now = performance.now();
  const clock = vi.spyOn(performance, 'now').mockReturnValue(now);
  onTestFinished(() => clock.mockRestore());
  const header = await tokens.answer(NEED, refusalNaming('auth.example'), undefined, signal);
  expect(header).toBe('Bearer T');
  // A token is used for nine tenths of its life.
  clock.mockReturnValue(now + seconds * 900 - 1);
  expect(await tokens.current(NEED, signal)).toBe('Bearer T');
  expect(asked).toBe(1);
  clock.mockReturnValue(now + (seconds + 1) * 900);
  expect(await tokens.current(NEED, signal)).toBe('Bearer T');
  expect(asked).toBe(2);
});

it.each<unknown>([{}, { token: '' }, { token: null, access_token: null }, [], null, 7, { token: { a: 1 } }])(
  'the answer %j is not called a token with wrong characters',
  async (answer) => {
    const asked = answering(answer).answer(NEED, refusalNaming('auth.example'), undefined, signal);
    await expect(asked).rejects.toMatchObject({
      reason: 'ImageFetchFailed',
      message: expect.stringContaining('neither token nor access_token') as string,
    });
  },
);

it('an identity token that has expired does not stop other credentials', async () => {
  const need = { ...NEED, credential: { type: 'identityToken', token: 'old' } as const };
  const answer = { error: 'invalid_grant', error_description: 'Token has expired' };
  const asked = answering(answer, 400).answer(need, refusalNaming('auth.example'), undefined, signal);
  await expect(asked).rejects.toMatchObject({
    reason: 'ImageAccessDenied',
    message: expect.stringContaining('invalid_grant: Token has expired') as string,
  });
});

it.each<[unknown, string]>([
  [{ errors: [null, { code: null, message: 'denied' }] }, '(denied)'],
  [{ errors: [{ code: 'DENIED', message: '' }] }, '(DENIED)'],
  [{ errors: null, details: 'incorrect username or password' }, '(incorrect username or password)'],
  [{ errors: 7 }, 'answered 403'],
])('the refusal %j is told', async (answer, output) => {
  const asked = answering(answer, 403).answer(NEED, refusalNaming('auth.example'), undefined, signal);
  await expect(asked).rejects.toThrow(output);
});
