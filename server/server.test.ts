/** Rules of the HTTP API that need no API server. */
import type { Server } from 'node:https';
import { text } from 'node:stream/consumers';
import { connect } from 'node:tls';
import { pino } from 'pino';
import type { Registry } from 'prom-client';
import { afterAll, afterEach, beforeAll, expect, it, vi } from 'vitest';
import { createKey, selfSigned, parseValidity } from '../kube/certificates/certificate.ts';
import { listen } from '../kube/serving/httpserver.ts';
import { CallerClient } from './callers/caller.ts';
import type { App } from './http/app.ts';
import { StatusError } from './http/errors.ts';
import type { WaitingRequests } from './http/waiting.ts';
import type { Own } from './own/own.ts';
import { configSchema, loadConfig } from './config.ts';
import { assemble, serveClients } from './server.ts';

const NAMESPACE = '/api/v1/namespaces/platform-default';
const TOKEN = { authorization: 'Bearer some.token' };

let app: App;
let own: Own;
let waiting: WaitingRequests;
let metrics: Registry;
let close: () => Promise<void>;

beforeAll(async () => {
  const parts = await assemble({
    // Nothing listens there, and no test gets that far.
    connection: { server: 'https://127.0.0.1:1' },
    config: loadConfig(undefined),
    logger: pino({ level: 'silent' }),
  });
  ({ app, own, waiting, metrics, close } = parts);
});

afterAll(async () => {
  await close?.();
});

afterEach(() => {
  vi.restoreAllMocks();
});

/** Makes the API server know the caller, who has all rights. */
function know(): void {
  vi.spyOn(CallerClient.prototype, 'username').mockResolvedValue('ann');
  vi.spyOn(own.rights, 'require').mockResolvedValue();
}

it.each([
  ['POST', '/vms', '{"image": 5'],
  ['POST', '/vms', '{"cpu": 99999}'],
  ['DELETE', '/secrets/registrycredentials/remove', 'no JSON'],
  ['POST', '/images/one/copy', ''],
  ['POST', '/upload/image', 'a whole disk'],
  ['HEAD', '/vms', ''],
] as const)('%s %s without a token is 401 before its body is read', async (method, path, payload) => {
  const answer = await app.inject({ method, url: NAMESPACE + path, payload });
  expect([answer.statusCode, answer.headers['www-authenticate']]).toEqual([401, 'Bearer']);
});

it('facts about the cluster and the document need no token', async () => {
  for (const url of ['/api/v1/cluster-info', '/api/v1/swagger/json', '//api/v1/cluster-info/']) {
    for (const headers of [{}, { authorization: 'Bearer' }]) {
      expect([url, (await app.inject({ url, headers })).statusCode]).toEqual([url, 200]);
    }
  }
});

it.each(['application/x-www-form-urlencoded', 'application/json; charset=utf-8', 'text/plain'])(
  'an empty body of type %s has no fields',
  async (type) => {
    const headers = { ...TOKEN, 'content-type': type };
    know();
    const answer = await app.inject({ method: 'POST', url: `${NAMESPACE}/vms`, headers, payload: '' });
    expect(answer.json()).toMatchObject({ code: 422, details: { causes: [{ field: 'image' }] } });
  },
);

it('a transfer that is not offered is a Status', async () => {
  const url = `${NAMESPACE}/remoteimages/one/pull`;
  const answer = await app.inject({ method: 'POST', url, headers: TOKEN });
  expect(answer.json()).toMatchObject({ kind: 'Status', code: 501, reason: 'NotImplemented' });
});

it.each([
  [400, 'multipart/form-data', 'text'],
  [400, 'multipart/form-data; boundary=', 'text'],
  [400, 'multipart/form-data; boundary=x', 'text'],
  [422, 'multipart/form-data; boundary=x', '--x--\r\n'],
  [415, 'application/json', '{}'],
])('%i for an upload of a certificate as %s with the body %j', async (code, type, payload) => {
  know();
  const headers = { ...TOKEN, 'content-type': type };
  const answer = await app.inject({ method: 'POST', url: '/api/v1/upload/cert', headers, payload });
  expect(answer.json()).toMatchObject({ kind: 'Status', code });
});

it.each([
  ['password', 'is not a known field'],
  ['keyPath', 'is given more than once'],
])('an upload of a certificate refuses the further field %s', async (field, message) => {
  know();
  const parts = ['certPath', 'keyPath', field].map(
    (name) => `--x\r\nContent-Disposition: form-data; name="${name}"\r\n\r\na\r\n`,
  );
  const headers = { ...TOKEN, 'content-type': 'multipart/form-data; boundary=x' };
  const payload = `${parts.join('')}--x--\r\n`.replace('"certPath"', '"certPath"; filename="a"');
  const answer = await app.inject({ method: 'POST', url: '/api/v1/upload/cert', headers, payload });
  expect(answer.json()).toMatchObject({ code: 422, details: { causes: [{ field, message }] } });
});

it.each([
  [400, 'no request\r\n\r\n'],
  [431, `GET / HTTP/1.1\r\nHost: a\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`],
])('answers bytes that are no request with a Status %i', async (code, bytes) => {
  const key = await createKey();
  const cert = await selfSigned({ key, commonName: 'server', ipAddresses: ['127.0.0.1'], days: 1 });
  (app.server as Server).setSecureContext({ cert, key: key.pem });
  const running = await listen(app.server, '127.0.0.1:0');
  const socket = connect({ port: running.port, host: '127.0.0.1', rejectUnauthorized: false });
  socket.write(bytes);
  const answer = await text(socket);
  await running.close();
  expect(answer).toMatch(new RegExp(`^HTTP/1.1 ${code} `));
  expect(JSON.parse(answer.split('\r\n\r\n')[1] ?? '')).toMatchObject({ kind: 'Status', code });
});

it('counts requests by route, and never by the path that a client chose', async () => {
  await app.inject({ url: '/api/v1/cluster-info' });
  await app.inject({ url: '/chosen-by-client' });
  const exposed = await metrics.metrics();
  expect(exposed).toContain('{method="GET",route="/api/v1/cluster-info",code="200"}');
  expect(exposed).toContain('{method="GET",route="none",code="404"} 1');
  expect(exposed).toMatch(/^berth_http_waiting_requests 0$/m);
  expect(exposed).not.toContain('chosen-by-client');
});

it('tells when the certificate ends that it shows to its clients', async () => {
  const key = await createKey();
  const certificate = await selfSigned({ key, commonName: 'server', days: 1 });
  const provider = async () => ({ certificate, key: key.pem });
  const [logger, ended] = [pino({ level: 'silent' }), new AbortController()];
  await serveClients(app.server, { provider, logger, metrics, signal: ended.signal });
  ended.abort();
  const end = parseValidity(certificate).notAfter.getTime() / 1000;
  const reported = `berth_certificate_expiration_timestamp_seconds{certificate="http"} ${end}\n`;
  expect(await metrics.metrics()).toContain(reported);
});

it('speaks plain HTTP if the configuration says so', async () => {
  const parts = await assemble({
    connection: { server: 'https://127.0.0.1:1' },
    config: configSchema.parse({ http: { tls: false } }),
    logger: pino({ level: 'silent' }),
  });
  const running = await listen(parts.app.server, '127.0.0.1:0');
  const answer = await fetch(`http://127.0.0.1:${running.port}/api/v1/cluster-info`);
  expect(answer.status).toBe(200);
  await running.close();
  await parts.close();
});

it('tells only users who may create VMs whether a host exists', async () => {
  know();
  const host = { metadata: { name: 'absent' } } as ReturnType<typeof own.hosts.of>[number];
  const hosts = vi.spyOn(own.hosts, 'of');
  const rights = vi.spyOn(own.rights, 'require');
  const payload = { image: 'image', node: 'absent' };
  const call = { method: 'POST', url: `${NAMESPACE}/vms`, headers: TOKEN, payload } as const;
  for (const isThere of [true, false]) {
    hosts.mockReturnValue(isThere ? [host] : []);
    rights.mockRejectedValueOnce(new StatusError(403, 'forbidden'));
    expect((await app.inject(call)).json()).toMatchObject({ code: 403, message: 'forbidden' });
  }
  rights.mockResolvedValueOnce();
  expect((await app.inject(call)).json()).toMatchObject({ code: 404, message: 'nodes "absent" not found' });
});

it.each([
  ['nodes', 'a,'.repeat(4_096)],
  ['tags', Array.from({ length: 4_097 }, () => 'a')],
])('refuses too many %s for the cache of images, and says how many are allowed', async (field, names) => {
  know();
  const url = `${NAMESPACE}/cache/images/image/add`;
  const answer = await app.inject({ method: 'POST', url, headers: TOKEN, payload: { [field]: names } });
  const message = 'must have at most 4096 names';
  expect(answer.json()).toMatchObject({ code: 422, details: { causes: [{ field, message }] } });
});

it.each([
  ['POST', '/vms', { image: 'image' }],
  ['POST', '/emulators', { vm: 'mac' }],
  ['DELETE', '/vms/mac?wait=true', {}],
] as const)(
  '%s %s takes no place of waiting requests before the API server knows the caller',
  async (method, path, payload) => {
    const run = vi.spyOn(waiting, 'run');
    const answer = await app.inject({ method, url: NAMESPACE + path, headers: TOKEN, payload });
    expect([answer.statusCode, answer.headers['retry-after']]).toEqual([503, '5']);
    expect(run).not.toHaveBeenCalled();
  },
);

it.each([
  ['POST', '/vms', { image: 'image' }],
  ['POST', '/emulators', { vm: 'mac' }],
  ['DELETE', '/vms/mac?wait=true', {}],
] as const)(
  '%s %s takes no place of waiting requests in a namespace in which the caller has no right',
  async (method, path, payload) => {
    const refusal = new StatusError(403, 'forbidden');
    const run = vi.spyOn(waiting, 'run').mockResolvedValue(undefined);
    const spies = [
      run,
      vi.spyOn(CallerClient.prototype, 'username').mockResolvedValue('stranger'),
      vi.spyOn(own.rights, 'require').mockRejectedValue(refusal),
      vi.spyOn(CallerClient.prototype, 'get').mockRejectedValue(refusal),
    ];
    const answer = await app.inject({ method, url: NAMESPACE + path, headers: TOKEN, payload });
    expect([answer.statusCode, run.mock.calls]).toEqual([403, []]);
    spies.forEach((spy) => spy.mockRestore());
  },
);

it.each(['vms', 'vmconfigs', 'images', 'isos', 'emulators', 'serviceaccounts'])(
  'the list of %s has only the objects that the label selector chooses',
  async (plural) => {
    const username = vi.spyOn(CallerClient.prototype, 'username').mockResolvedValue('ann');
    const body = { message: 'forbidden', reason: 'Forbidden' };
    const answer = { status: 403, body, retryAfterMilliseconds: undefined };
    const raw = vi.spyOn(CallerClient.prototype, 'raw').mockResolvedValue(answer);
    await app.inject({ url: `${NAMESPACE}/${plural}?labelSelector=team%3Da`, headers: TOKEN });
    expect(raw.mock.calls.map(([, path]) => path)).toEqual([
      expect.stringMatching(new RegExp(`/namespaces/platform-default/${plural}\\?labelSelector=team%3Da$`)),
    ]);
    username.mockRestore();
    raw.mockRestore();
  },
);

it('names the field when a new namespace lacks the prefix', async () => {
  know();
  const call = {
    method: 'POST',
    url: '/api/v1/namespaces',
    headers: TOKEN,
    payload: { name: 'else' },
  } as const;
  expect((await app.inject(call)).json()).toMatchObject({
    code: 422,
    message: 'name: must begin with platform-',
  });
});
