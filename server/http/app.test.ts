import { pino } from 'pino';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { loadConfig } from '../config.ts';
import { assemble } from '../server.ts';
import { createApp } from './app.ts';

const VMS = '/api/v1/namespaces/platform-default/vms';
let server: Awaited<ReturnType<typeof assemble>>;

beforeAll(async () => {
  server = await assemble({
    connection: { server: 'https://127.0.0.1' },
    config: loadConfig(undefined),
    logger: pino({ level: 'silent' }),
  });
});

afterAll(async () => await server.close());

async function causesOf(body: object): Promise<{ field: string; message: string }[]> {
  const answer = await server.app.inject({
    method: 'POST',
    url: VMS,
    headers: { authorization: 'Bearer token' },
    payload: body,
  });
  return answer.json<{ details: { causes: { field: string; message: string }[] } }>().details.causes;
}

it('names at most twenty mistakes of a body', async () => {
  const labels = Object.fromEntries(Array.from({ length: 3_000 }, (_, index) => [`k${index}`, index]));
  expect(await causesOf({ image: 'a', labels })).toHaveLength(20);
});

it('names a refused number', async () => {
  const [cause] = await causesOf({ image: 'a', cpu: 1_000 });
  expect(cause).toMatchObject({ field: 'cpu', message: expect.stringMatching(/1000$/) });
});

it('does not match a pattern with a text that is too long', async () => {
  const causes = await causesOf({ image: 'a', reservedPorts: `1:1${' '.repeat(100_000)}x` });
  expect(causes).toMatchObject([{ field: 'reservedPorts', message: expect.stringContaining('<=1088') }]);
});

it.each([
  [400, { image: 5 }],
  [400, { image: 'a', scheduler: 5 }],
  [400, { image: 'a', gpuPassthrough: 'no' }],
  [400, { image: 'a', vmMetadata: 5 }],
  [400, { image: 'a', vmMetadata: { items: 5 } }],
  [422, { image: 'a', scheduler: 'fastest' }],
  [422, { image: 'a', gpuPassthrough: true }],
  [422, { image: 'a', vmMetadata: { items: Array.from({ length: 65 }, () => ({ key: 'a', value: 'b' })) } }],
  [422, { image: 'a', vmMetadata: { items: [{ key: 'a' }] } }],
  [422, { image: null }],
])('answers %i for %j', async (code, payload) => {
  const headers = { authorization: 'Bearer token' };
  const answer = await server.app.inject({ method: 'POST', url: VMS, headers, payload });
  expect(answer.statusCode).toBe(code);
});

it('keeps no body that no handler reads', async () => {
  const app = createApp({ logger: pino({ level: 'silent' }), tls: false });
  app.delete('/one', ({ body }) => ({ kept: body ?? 'nothing' }));
  const answer = await app.inject({ method: 'DELETE', url: '/one', payload: { large: 'x' } });
  expect(answer.json()).toEqual({ kept: 'nothing' });
});
