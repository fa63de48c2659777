import { pino } from 'pino';
import { afterAll, beforeAll, beforeEach, expect, it, type MockInstance, vi } from 'vitest';
import { KubeClient } from '../../kube/client.ts';
import { loadConfig } from '../config.ts';
import { assemble } from '../server.ts';

const VMS = '/api/v1/namespaces/platform-default/vms';
/** Answer of an API server that knows the caller. */
const REVIEW = {
  apiVersion: 'authentication.k8s.io/v1',
  kind: 'SelfSubjectReview',
  metadata: { name: '' },
  status: { userInfo: { username: 'somebody' } },
};
const TOKEN = { authorization: 'Bearer token' };
const UUID = /^[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/;

interface Line {
  level: number;
  requestID: string;
  msg: string;
}

const lines: Line[] = [];
let server: Awaited<ReturnType<typeof assemble>>;
let rights: MockInstance<typeof server.own.rights.require>;

beforeAll(async () => {
  server = await assemble({
    connection: { server: 'https://127.0.0.1' },
    config: loadConfig(undefined),
    logger: pino(
      { level: 'debug', base: null },
      { write: (line: string) => void lines.push(JSON.parse(line) as Line) },
    ),
  });
  // There is no API server.
  vi.spyOn(KubeClient.prototype, 'create').mockImplementation(async () => REVIEW);
  rights = vi.spyOn(server.own.rights, 'require').mockResolvedValue();
});

beforeEach(() => {
  lines.length = 0;
});

afterAll(async () => await server.close());

/** Returns the lines about answers, without their times. */
function answered(): unknown[] {
  return lines
    .filter(({ msg }) => msg === 'Request answered')
    .map(({ level, ...line }) => ({ ...line, level: pino.levels.labels[level] }));
}

it('have an id in the answer, in the Status of an error and in the log', async () => {
  const answer = await server.app.inject({
    method: 'POST',
    url: `${VMS}?secret=1`,
    headers: TOKEN,
    payload: { image: 'a', cpu: 'x' },
  });
  const { requestID } = answer.json<{ requestID: string }>();
  expect(answer.statusCode).toBe(422);
  expect(requestID).toMatch(UUID);
  expect(answer.headers['x-request-id']).toBe(requestID);
  await vi.waitFor(() => expect(answered()).toHaveLength(1));
  expect(answered()).toEqual([
    {
      time: expect.any(Number) as number,
      requestID,
      level: 'info',
      method: 'POST',
      path: VMS,
      status: 422,
      username: 'somebody',
      milliseconds: expect.any(Number) as number,
      msg: 'Request answered',
    },
  ]);
});

it.each([
  ['b9f2c1d4a5e60718', 'b9f2c1d4a5e60718'],
  ['7f1d3c1e-59a5-4c2e-8a53-0d5f6f0f2f11', '7f1d3c1e-59a5-4c2e-8a53-0d5f6f0f2f11'],
  ['Root=1:a.b_c', undefined],
  ['a b', undefined],
  ['', undefined],
  ['x'.repeat(65), undefined],
  ['{"level":"fatal"}', undefined],
])('take the id %j of a client only in the form of one', async (sent, taken) => {
  const headers = { 'x-request-id': sent };
  const answer = await server.app.inject({ method: 'GET', url: '/api/v1/cluster-info', headers });
  expect(answer.headers['x-request-id']).toEqual(taken ?? (expect.stringMatching(UUID) as string));
});

it.each([
  ['GET', '/api/v1/cluster-info', {}, 200, 'debug'],
  ['GET', '/api/v1/nothing', {}, 404, 'debug'],
  ['GET', `/api/v1/namespaces/${'x'.repeat(3000)}/vms`, {}, 414, undefined],
  ['DELETE', `${VMS}/a`, {}, 401, 'debug'],
  ['DELETE', '/api/v1/nothing', TOKEN, 404, 'info'],
] as const)(
  '%s %s with %j is answered with %i and logged as %s',
  async (method, url, headers, status, level) => {
    const answer = await server.app.inject({ method, url, headers });
    expect(answer.statusCode).toBe(status);
    expect(answer.headers['x-request-id']).toMatch(UUID);
    if (level !== undefined) {
      await vi.waitFor(() => expect(answered()).toMatchObject([{ status, level }]));
    }
  },
);

it('that the server cannot answer are logged as a warning, with the cause under the same id', async () => {
  rights.mockRejectedValueOnce(new TypeError('a mistake in the program'));
  const payload = { image: 'a' };
  const answer = await server.app.inject({ method: 'POST', url: VMS, headers: TOKEN, payload });
  expect(answer.json()).toMatchObject({ code: 500, message: 'Internal error' });
  const { requestID } = answer.json<{ requestID: string }>();
  await vi.waitFor(() => expect(answered()).toMatchObject([{ level: 'warn', status: 500, requestID }]));
  expect(lines).toContainEqual(expect.objectContaining({ requestID, msg: 'request failed' }));
});
