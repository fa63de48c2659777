import { pino } from 'pino';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { loadConfig } from '../config.ts';
import { assemble } from '../server.ts';

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
