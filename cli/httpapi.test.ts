import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { ApiError } from '../kube/errors.ts';
import { directOrAsked } from './httpapi.ts';

const pemOf = (text: string) => `-----BEGIN CERTIFICATE-----\n${text}\n-----END CERTIFICATE-----\n`;
const AUTHORITY = pemOf('b3du') + pemOf('b2xk');

let server: Server;
let apiEndpoint: string;
let certData: unknown;
/** Answer to each request except the first one. */
let answer: { status: number; body: object } | undefined;
/** Tokens that the HTTP API has received. */
let tokens: string[];

beforeEach(async () => {
  tokens = [];
  apiEndpoint = 'https://other.example';
  answer = undefined;
  server = createServer((request, response) => {
    tokens.push(...(request.headers.authorization === undefined ? [] : [request.headers.authorization]));
    response.setHeader('content-type', 'application/json');
    const later = request.url === '/api/v1/cluster-info' ? undefined : answer;
    response.statusCode = later?.status ?? 200;
    response.end(JSON.stringify(later?.body ?? { apiEndpoint, certData }));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
});

afterEach(() => {
  server.closeAllConnections();
  server.close();
});

async function ask(address = 'https://cluster.example'): Promise<unknown> {
  const connection = {
    server: address,
    certificateAuthority: AUTHORITY,
    token: 'mine',
  };
  const apiURL = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const refusal = new ApiError('nodes is forbidden: User "me" cannot list', {
    status: 403,
    reason: 'Forbidden',
  });
  return await directOrAsked(
    { apiURL, connection, environment: {} },
    new AbortController().signal,
    async () => await Promise.reject(refusal),
    async (asked) => await asked({ method: 'GET', path: '/nodes' }),
  );
}

it('sends the token to the HTTP API of the cluster', async () => {
  certData = pemOf(' b2xk');
  await ask();
  expect(tokens).toEqual(['Bearer mine']);
});

it.each([
  [
    'GET /api/v1/nodes not found',
    /does not support this command, because the HTTP API has an older release$/,
  ],
  ['nodes "a" not found', /^nodes "a" not found$/],
])('tells an HTTP API that is too old from an object that is missing: %s', async (message, expected) => {
  certData = pemOf('b2xk');
  answer = { status: 404, body: { kind: 'Status', message, reason: 'NotFound', code: 404 } };
  await expect(ask()).rejects.toThrow(expected);
});

it.each([' ', '-', 'b3', pemOf(''), pemOf('b3d1'), AUTHORITY + pemOf('bmV3'), 7])(
  'sends no token to a server whose certificate authority is %j',
  async (claimed) => {
    certData = claimed;
    await expect(ask()).rejects.toThrow('does not belong to the cluster');
    expect(tokens).toEqual([]);
  },
);

it.each([
  ['another authority', ''],
  ['the authority of the proxy', AUTHORITY],
])('sends no token to a server of another cluster behind the same proxy with %s', async (_, claimed) => {
  certData = claimed;
  apiEndpoint = 'https://other.example:443/clusters/b';
  for (const path of ['/clusters/a', ':443/b', '/']) {
    await expect(ask(`https://other.example${path}`)).rejects.toThrow('does not belong to the cluster');
  }
  expect(tokens).toEqual([]);
  await ask('https://other.example/clusters/b/');
  expect(tokens).toEqual(['Bearer mine']);
});
