import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import * as z from 'zod';
import { loadConfig, type ServerConfig } from '../config.ts';
import { addAliases, decodedImageName, splitImagePath } from './aliases.ts';
import { type App, createApp } from '../http/app.ts';
import { refuseOtherNamespaces } from '../http/namespaces.ts';

const PATH = '/api/v1/namespaces/:namespace/rolebindings/:binding/subjects';
const TOKEN = { authorization: 'Bearer some.token' };
const namespaces = { system: 'berth-system', default: 'platform-default', prefix: 'platform-' };
const account = z.object({ name: z.string(), namespace: z.string() });
const anything = z.object({
  name: z.string(),
  namespace: z.string().optional(),
  items: z.array(account).optional(),
});

/** Returns an application with two routes that answer what they were asked. */
function appWith(aliases: ServerConfig['http']['aliases']): App {
  const { http } = loadConfig(undefined);
  const app = createApp({ logger: pino({ level: 'silent' }), tls: true });
  addAliases(app, { http: { ...http, aliases }, namespaces });
  refuseOtherNamespaces(app, namespaces);
  const body = z.object({ namespace: z.string().optional(), serviceaccounts: z.array(account).optional() });
  app.post(PATH, { schema: { body, response: { 200: anything } } }, ({ params, body }) => {
    const { namespace, binding } = params as { namespace: string; binding: string };
    return {
      name: binding,
      namespace,
      items: [...(body.serviceaccounts ?? []), { name: 'platform-a', namespace: body.namespace ?? 'none' }],
    };
  });
  app.get(
    '/api/v1/namespaces/:namespace',
    { schema: { response: { 200: z.object({ name: z.string() }) } } },
    ({ params }) => ({ name: (params as { namespace: string }).namespace }),
  );
  return app;
}

async function post(app: App, namespace: string, binding: string, payload: object = {}) {
  const url = PATH.replace(':namespace', namespace).replace(':binding', binding);
  const { statusCode, body } = await app.inject({ method: 'POST', url, payload, headers: TOKEN });
  return { statusCode, body: JSON.parse(body) as unknown };
}

async function get(app: App, namespace: string): Promise<unknown> {
  const { body } = await app.inject({ url: `/api/v1/namespaces/${namespace}`, headers: TOKEN });
  return JSON.parse(body);
}

describe('with aliases', () => {
  let app: App;
  beforeAll(async () => {
    app = appWith({ namespacePrefix: 'former-', devRoleBinding: 'former-dev' });
  });
  afterAll(async () => await app.close());

  it('a request has them in its path and body, and its answer too', async () => {
    const payload = {
      namespace: 'former-b',
      serviceaccounts: [
        { name: 'former-x', namespace: 'former-c' },
        { name: 'y', namespace: 'platform-default' },
      ],
    };
    expect(await post(app, 'former-default', 'former-dev', payload)).toEqual({
      statusCode: 200,
      body: {
        name: 'berth-role-dev',
        namespace: 'former-default',
        items: [
          { name: 'former-x', namespace: 'former-c' },
          { name: 'y', namespace: 'former-default' },
          { name: 'platform-a', namespace: 'former-b' },
        ],
      },
    });
    expect(await get(app, 'former-a')).toEqual({ name: 'former-a' });
  });

  it('the own names stay as they are', async () => {
    const payload = { namespace: 'platform-b' };
    expect(await post(app, 'platform-a', 'berth-role-dev', payload)).toEqual({
      statusCode: 200,
      body: {
        name: 'berth-role-dev',
        namespace: 'platform-a',
        items: [{ name: 'platform-a', namespace: 'platform-b' }],
      },
    });
    expect(await get(app, 'platform-a')).toEqual({ name: 'platform-a' });
  });
});

describe('without aliases', () => {
  it('another prefix is a missing namespace, and names are passed on', async () => {
    const app = appWith({});
    expect(await post(app, 'former-a', 'former-dev')).toMatchObject({
      statusCode: 404,
      body: { reason: 'NotFound', message: expect.stringMatching(/^namespaces "former-a" not found: /) },
    });
    expect(await post(app, 'platform-a', 'former-dev')).toMatchObject({ body: { name: 'former-dev' } });
    await app.close();
  });
});

const IMAGE = 'ghcr.io/berth/base:26@sha256:0a';

it('reads a name that is encoded once, twice or three times', () => {
  const once = encodeURIComponent(IMAGE);
  expect([IMAGE, once, encodeURIComponent(once)].map(decodedImageName)).toEqual([IMAGE, IMAGE, IMAGE]);
});

it('refuses an encoding that is not valid', () => {
  expect(() => decodedImageName('a%ff')).toThrow(expect.objectContaining({ status: 400 }));
});

it('finds the action after a name with raw slashes', () => {
  const split = (path: string) => splitImagePath(path, ['add', 'remove']);
  expect(split(`${IMAGE}/remove`)).toEqual({ image: IMAGE, action: 'remove' });
  expect(split(`${encodeURIComponent(IMAGE)}/add`)).toEqual({ image: IMAGE, action: 'add' });
  expect(split('ghcr.io/berth/add-on')).toEqual({ image: 'ghcr.io/berth/add-on', action: undefined });
});
