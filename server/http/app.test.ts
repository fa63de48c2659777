import { pino } from 'pino';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { KubeClient } from '../../kube/client.ts';
import { loadConfig } from '../config.ts';
import { assemble } from '../server.ts';
import { createApp } from './app.ts';

const NAMESPACE = '/api/v1/namespaces/platform-default';
const VMS = `${NAMESPACE}/vms`;
/** Answer of an API server that knows the caller. */
const REVIEW = { apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview', metadata: { name: '' } };
const TOKEN = { authorization: 'Bearer token' };
let server: Awaited<ReturnType<typeof assemble>>;

beforeAll(async () => {
  server = await assemble({
    connection: { server: 'https://127.0.0.1' },
    config: loadConfig(undefined),
    logger: pino({ level: 'silent' }),
  });
  // There is no API server, and the server reads bodies only of callers with the right of the route.
  vi.spyOn(KubeClient.prototype, 'create').mockResolvedValue(REVIEW);
  vi.spyOn(server.own.rights, 'require').mockResolvedValue();
});

afterAll(async () => await server.close());

function mapOf(length: number, value: unknown): Record<string, unknown> {
  return Object.fromEntries(Array.from({ length }, (_, index) => [`k${index}`, value]));
}

async function causesOf(body: object): Promise<{ field: string; message: string }[]> {
  const answer = await server.app.inject({
    method: 'POST',
    url: VMS,
    headers: TOKEN,
    payload: body,
  });
  return answer.json<{ details: { causes: { field: string; message: string }[] } }>().details.causes;
}

it('tells a client in a header which of its fields have no effect', async () => {
  const payload = { image: 'a', netBoost: true, legacyIO: false };
  const { headers } = await server.app.inject({ method: 'POST', url: VMS, headers: TOKEN, payload });
  expect(headers['warning']).toBe(
    '299 - "netBoost has no effect. The hosts choose the drivers of machines by themselves"',
  );
});

it('names at most twenty mistakes of a body', async () => {
  expect(await causesOf({ image: 'a', labels: mapOf(64, 5) })).toHaveLength(20);
});

it.each(['labels', 'vmMetadata', 'vm_metadata', 'customVMMetadata'])(
  'refuses %s with thousands of entries before it reads them',
  async (field) => {
    const answer = await server.app.inject({
      method: 'POST',
      url: VMS,
      headers: TOKEN,
      payload: { image: 'a', [field]: mapOf(8_000, 5) },
    });
    const name = field === 'labels' ? field : 'vmMetadata';
    expect(answer.json()).toMatchObject({ code: 422, message: `${name}: must have at most 1024 entries` });
  },
);

it.each([
  ['activeDeadlineSeconds', 0, 422, 'must be from 1 to 2147483647, not 0'],
  ['ttlSecondsAfterFinished', -1, 422, 'must be from 0 to 2147483647, not -1'],
  ['ttlSecondsAfterFinished', '1h', 400, 'must be a number'],
])('refuses the time limit %s of a VM if it is %j', async (field, value, code, message) => {
  const answer = await server.app.inject({
    method: 'POST',
    url: VMS,
    headers: TOKEN,
    payload: { image: 'a', [field]: value },
  });
  expect(answer.json()).toMatchObject({ code, message: `${field}: ${message}` });
});

it('refuses a body with more values than any client sends, before it is parsed', async () => {
  for (const payload of [
    `[${'[],'.repeat(20_000)}[]]`,
    `${'['.repeat(33)}${']'.repeat(33)}`,
    `{"a":1${',"a":1'.repeat(20_000)}`,
  ]) {
    const headers = { ...TOKEN, 'content-type': 'application/json' };
    const parse = vi.spyOn(JSON, 'parse');
    const answer = await server.app.inject({ method: 'POST', url: VMS, headers, payload });
    expect(parse).not.toHaveBeenCalled();
    parse.mockRestore();
    expect(answer.json()).toMatchObject({
      code: 413,
      message: expect.stringMatching(/^The body (has more than 16384 values|is nested)/),
    });
  }
});

it('refuses more than 64 labels', async () => {
  const message = 'must have at most 64 labels';
  expect(await causesOf({ image: 'a', labels: mapOf(65, 'a') })).toMatchObject([
    { field: 'labels', message },
  ]);
  const others = await causesOf({ image: 'a', cpu: 1_000, labels: mapOf(64, 'a') });
  expect(others.map(({ field }) => field)).toEqual(['cpu']);
});

it.each([
  [`${NAMESPACE}/cache/images/one/add`, 'nodes'],
  [`${NAMESPACE}/cache/images/one/remove`, 'tags'],
  ['/api/v1/imagecache/remove', 'nodes'],
])('refuses a list that is too long at %s before it reads the %s', async (url, field) => {
  const image = url.endsWith('imagecache/remove') ? { image: 'a' } : {};
  const payload = { ...image, [field]: Array.from({ length: 16_000 }, () => 0) };
  const answer = await server.app.inject({ method: 'POST', url, headers: TOKEN, payload });
  const message = 'must have at most 4096 names';
  expect(answer.json()).toMatchObject({ code: 422, details: { causes: [{ field, message }] } });
});

it.each(['/api/v1/imagecache/remove', '/v1/imagecache/remove'])(
  'finds no namespace that Berth does not serve in the body of %s',
  async (url) => {
    const payload = { image: 'ghcr.io/a/b', namespace: 'kube-system', all: true };
    const answer = await server.app.inject({ method: 'POST', url, headers: TOKEN, payload });
    const served = 'Berth serves only platform-default and namespaces whose names begin with platform-';
    expect(answer.json()).toMatchObject({
      code: 404,
      message: `namespaces "kube-system" not found: ${served}`,
    });
  },
);

it.each(['', 'json', 'a/', 'a/b; c'])('reads a body of the content type "%s"', async (type) => {
  const headers = { ...TOKEN, 'content-type': type };
  const sent = { method: 'POST', url: VMS, headers } as const;
  const [empty, full] = await Promise.all(
    ['', '{"image": "a", "cpu": 500}'].map(async (payload) => await server.app.inject({ ...sent, payload })),
  );
  expect(empty?.json()).toMatchObject({ code: 422, details: { causes: [{ field: 'image' }] } });
  expect(full?.json()).toMatchObject({ code: 422, details: { causes: [{ field: 'cpu' }] } });
});

it('reads no body at a path that does not exist', async () => {
  for (const headers of [{}, TOKEN]) {
    const answer = await server.app.inject({ method: 'POST', url: '/nope', headers, payload: '{"image": 5' });
    expect(answer.statusCode).toBe(404);
  }
});

it('names a refused number', async () => {
  const [cause] = await causesOf({ image: 'a', cpu: 1_000 });
  expect(cause).toMatchObject({ field: 'cpu', message: expect.stringMatching(/1000$/) });
});

it('does not match a pattern with a text that is too long', async () => {
  const causes = await causesOf({ image: 'a', reservedPorts: `1:1${' '.repeat(100_000)}x` });
  expect(causes).toMatchObject([
    { field: 'reservedPorts', message: expect.stringContaining('at most 1088') },
  ]);
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
  const answer = await server.app.inject({ method: 'POST', url: VMS, headers: TOKEN, payload });
  expect(answer.statusCode).toBe(code);
});

it('refuses fields that a VM does not have, and no VM is made', async () => {
  const payload = { vmConfig: 'a', namePrefix: 'jenkins-', nodeName: 'nohost' };
  const answer = await server.app.inject({ method: 'POST', url: VMS, headers: TOKEN, payload });
  expect(answer.json()).toMatchObject({
    code: 422,
    message: expect.stringMatching(
      /^namePrefix: is not a known field; nodeName: is not a known field\. The known fields are image, iso, /,
    ),
  });
});

it.each([
  [
    'GET',
    `${VMS}?labelselector=a`,
    'labelselector: is not a known query parameter (did you mean labelSelector?)',
  ],
  ['GET', `${NAMESPACE}/images?limit=5`, 'The known query parameters are labelSelector'],
  ['POST', `${VMS}?waitfor=ready`, 'waitfor: is not a known query parameter (did you mean waitFor?)'],
  [
    'DELETE',
    `${VMS}/one?force=true`,
    'force: is not a known query parameter. The known query parameters are wait',
  ],
  ['GET', `${VMS}/one?x`, 'x: is not a known query parameter. There are no query parameters'],
  ['GET', `/api/v1/cluster-info?__proto__=1`, '__proto__: is not a known query parameter'],
  ['GET', `${NAMESPACE}/cache/images/ghcr.io/a/b?all=true`, 'all: is not a known query parameter'],
] as const)('refuses %s %s', async (method, url, message) => {
  const answer = await server.app.inject({ method, url, headers: TOKEN });
  expect(answer.json()).toMatchObject({ code: 422, message: expect.stringContaining(message) });
});

it('shows the documentation whatever is appended to its address', async () => {
  expect((await server.app.inject({ url: '/api/v1/swagger?utm_source=mail' })).statusCode).toBe(200);
});

it('makes a VM config from what it has shown, but in no other namespace', async () => {
  const payload = { name: 'a', image: 'b', namespace: 'platform-other' };
  const url = `${NAMESPACE}/vmconfigs`;
  const refused = await server.app.inject({ method: 'POST', url, headers: TOKEN, payload });
  const message = 'namespace: must be the namespace of the path, not platform-other';
  expect(refused.json()).toMatchObject({ code: 422, message });
  const own = { ...payload, namespace: 'platform-default' };
  const answer = await server.app.inject({ method: 'POST', url, headers: TOKEN, payload: own });
  expect(answer.statusCode).not.toBe(422);
});

it.each([
  [`${VMS}/one/exec`, { command: 'start', action: 'stop' }, 'command'],
  [`${NAMESPACE}/images`, { imageName: 'a', name: 'b', size: '1G' }, 'imageName'],
  [`${NAMESPACE}/images/one/copy`, { name: 'a', destination: 'b' }, 'imageName'],
  [`${NAMESPACE}/emulators`, { vm: 'a', device: 'pixel_9', deviceProfile: 'pixel_8' }, 'device'],
  ['/api/v1/imagecache/remove', { image: 'a', imageReference: 'b', all: true }, 'image'],
])('refuses different values for two names of a field at %s', async (url, payload, field) => {
  const answer = await server.app.inject({ method: 'POST', url, headers: TOKEN, payload });
  const message = expect.stringMatching(/names of the same field$/);
  expect(answer.json()).toMatchObject({ code: 422, details: { causes: [{ field, message }] } });
});

it('keeps no body that no handler reads', async () => {
  const app = createApp({ logger: pino({ level: 'silent' }), tls: false });
  app.delete('/one', ({ body }) => ({ kept: body ?? 'nothing' }));
  const answer = await app.inject({ method: 'DELETE', url: '/one', payload: { large: 'x' } });
  expect(answer.json()).toEqual({ kept: 'nothing' });
});

it('has a limit for silent connections that is longer than four requests to an API server that does not answer', () => {
  const { server: http } = createApp({ logger: pino({ level: 'silent' }), tls: false });
  // A request to the API server has 30 s.
  expect(http.timeout).toBeGreaterThan(4 * 30_000);
});

it.each([
  ['DELETE', '/api/v1//namespaces/platform-a/vms/', 405, 'GET, HEAD, POST'],
  ['PUT', '/api/v1/namespaces/platform-a/vms/x?a=b', 405, 'GET, HEAD, DELETE'],
  ['DELETE', '/api/v1/namespaces/platform-a/cache/images/quay.io/a/b', 405, 'GET, HEAD, POST'],
  ['GET', '/api/v1/nothing', 404, undefined],
  ['GET', '/api/v1xswagger', 404, undefined],
] as const)(
  'answers %s %s with %i, and says which methods the path has',
  async (method, url, code, allow) => {
    const { statusCode, headers } = await server.app.inject({ method, url, headers: TOKEN });
    expect([statusCode, headers.allow]).toEqual([code, allow]);
  },
);

it.each([
  [
    { image: 'a', vmConfig: 'A_b' },
    422,
    /^vmConfig: must have only lower-case letters, digits, dots and dashes/,
  ],
  [{ image: 'a', reservedPorts: 'x' }, 422, /^reservedPorts: has characters, .* not allowed/],
  [{ image: 'a', name: 'x'.repeat(64) }, 422, /^name: must have at most 63 characters$/],
  [
    { image: 'a', readiness: { type: 'Port', port: 70_000 } },
    422,
    /^readiness\.port: must be at most 65535, not 70000$/,
  ],
  [{ image: 'a', readiness: { type: 'Port', port: 0 } }, 422, /^readiness\.port: must be at least 1, not 0$/],
  [{ image: 'a', tag: 5 }, 400, /^tag: must be a text, not 5$/],
  [
    { image: 'a', scheduler: 'x' },
    422,
    /^scheduler: must be default or default-scheduler or most-allocated$/,
  ],
  [{ image: 'a', vncConsole: 'yes' }, 400, /^vncConsole: must be true or false$/],
  [{ image: 'a', sshAuthorizedKeys: 'key' }, 400, /^sshAuthorizedKeys: must be a list$/],
  [{ image: 'a', userDataSecretRef: 'text' }, 400, /^userDataSecretRef: must be an object$/],
])('tells people, and no validator, what is wrong in %j', async (payload, code, message) => {
  const answer = await server.app.inject({ method: 'POST', url: VMS, headers: TOKEN, payload });
  expect(answer.json()).toMatchObject({ code, message: expect.stringMatching(message) });
});
