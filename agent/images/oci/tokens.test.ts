import { Readable } from 'node:stream';
import { expect, it } from 'vitest';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { Tokens } from './tokens.ts';
import type { Exchange, Response, Transport } from './transport.ts';

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
  const send = async ({ url, what }: Exchange): Promise<Response> => {
    asked.push(url.host);
    if (gone.has(url.host)) {
      throw new ReasonedError('ImageFetchFailed', `${what}: getaddrinfo ENOTFOUND`);
    }
    return reply(`of-${url.host}`, url);
  };
  const tokens = new Tokens({ send } as unknown as Transport);
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
  const send = async ({ url }: Exchange): Promise<Response> => {
    const body = Readable.from([Buffer.from(JSON.stringify({ token, expires_in: 3_600 }))]);
    return { status: 200, headers: {}, body, url } as unknown as Response;
  };
  const tokens = new Tokens({ send } as unknown as Transport);
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
