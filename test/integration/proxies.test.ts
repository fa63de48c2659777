/** Proxies from the environment: tunnels, and the requests of the command to the HTTP API and to identity providers. */
import { once } from 'node:events';
import { createServer as createPlainServer } from 'node:http';
import { createServer as createSecureServer, type Server } from 'node:https';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { type Proxy, Proxies } from '../../base/proxy.ts';
import { openTunnel } from '../../base/tunnel.ts';
import { directOrAsked } from '../../cli/httpapi.ts';
import { fetchFrom } from '../../cli/login/https.ts';
import { selfMadeCertificate } from '../../kube/certificates/serving.ts';
import { ApiError } from '../../kube/errors.ts';
import { HttpProxy } from '../wires/httpproxy.ts';

const SHORT_MILLISECONDS = 200;
const LONG_MILLISECONDS = 30_000;
const TARGET = { host: 'server.test', port: 7000, timeoutMilliseconds: LONG_MILLISECONDS };

/** Opens a server that calls `talk` for each connection, and returns its port. */
async function serve(talk: (socket: Socket) => void): Promise<number> {
  const server = createServer(talk).listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => void server.close());
  return (server.address() as AddressInfo).port;
}

async function proxyTo(port: number, credentials?: string): Promise<HttpProxy> {
  const proxy = await HttpProxy.open({
    servers: { 'server.test:7000': port, '[fd00::1]:7000': port },
    ...(credentials !== undefined && { credentials }),
  });
  onTestFinished(async () => await proxy[Symbol.asyncDispose]());
  return proxy;
}

function at(url: string): Proxy {
  return new Proxies({ HTTPS_PROXY: url }).proxyFor(new URL('https://server.test')) as Proxy;
}

describe('a tunnel', () => {
  it('carries bytes in both directions, also after its time limit', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout'] });
    onTestFinished(() => void vi.useRealTimers());
    const port = await serve((socket) => void socket.on('data', (data) => socket.end(`got ${String(data)}`)));
    const proxy = await proxyTo(port, 'user:secret');
    const socket = await openTunnel(at(proxy.url), TARGET);
    vi.advanceTimersByTime(LONG_MILLISECONDS);
    socket.write('hello');
    expect(await text(socket)).toBe('got hello');
    expect(proxy.requests).toEqual(['CONNECT server.test:7000']);
  });

  it('names an IPv6 address in brackets', async () => {
    const proxy = await proxyTo(await serve((socket) => void socket.end('hi')));
    expect(await text(await openTunnel(at(proxy.url), { ...TARGET, host: 'fd00::1' }))).toBe('hi');
    expect(proxy.requests).toEqual(['CONNECT [fd00::1]:7000']);
  });

  it.each([
    [403, 'PROXY_REFUSED'],
    [407, 'PROXY_REFUSED'],
    [502, 'PROXY_FAILED'],
    [204, 'PROXY_REFUSED'],
  ])('fails with the status %i of the proxy as %s, without the credentials', async (status, code) => {
    const proxy = await proxyTo(1, 'user:secret');
    proxy.status = status;
    const address = proxy.url.replace('user:secret@', '');
    await expect(openTunnel(at(proxy.url), TARGET)).rejects.toMatchObject({
      code,
      message: `The proxy ${address} answered ${status} to a connection to server.test:7000`,
    });
  });

  it('fails when the proxy does not answer in time, and closes the connection', async () => {
    const closed = Promise.withResolvers<void>();
    const port = await serve(
      (socket) =>
        void socket
          .on('error', () => undefined)
          .resume()
          .once('close', closed.resolve),
    );
    await expect(
      openTunnel(at(`http://user:secret@127.0.0.1:${port}`), {
        ...TARGET,
        timeoutMilliseconds: SHORT_MILLISECONDS,
      }),
    ).rejects.toMatchObject({
      code: 'PROXY_UNREACHABLE',
      message: `The proxy http://127.0.0.1:${port} does not answer: the time limit is over`,
    });
    await closed.promise;
  });

  it('fails when there is no proxy', async () => {
    await expect(openTunnel(at('http://127.0.0.1:1'), TARGET)).rejects.toMatchObject({
      code: 'PROXY_UNREACHABLE',
      message: expect.stringContaining('ECONNREFUSED') as string,
    });
  });
});

describe('a sign-in', () => {
  const NAME = 'login.example';

  let server: Server;
  let authority: string;
  let proxy: HttpProxy;

  beforeEach(async () => {
    const made = { commonName: NAME, dnsNames: [NAME], ipAddresses: ['127.0.0.1'] };
    const { certificate, key } = await selfMadeCertificate(made)();
    authority = certificate;
    server = createSecureServer({ cert: certificate, key }, ({ headers }, response) => {
      response.end(JSON.stringify(headers));
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const { port } = server.address() as AddressInfo;
    proxy = await HttpProxy.open({ servers: { [`${NAME}:443`]: port }, credentials: 'user:secret' });
  });

  afterEach(async () => {
    server.closeAllConnections();
    server.close();
    await proxy[Symbol.asyncDispose]();
  });

  async function ask(url: string, environment: Record<string, string>): Promise<string> {
    const { signal } = new AbortController();
    const fetch = fetchFrom({ who: 'identity provider', authority, signal, environment });
    return await (await fetch(url, {})).text();
  }

  it('reaches an identity provider through the proxy, to which alone its credentials go', async () => {
    const headers = await ask(`https://${NAME}/keys`, { HTTPS_PROXY: proxy.url });
    expect(JSON.parse(headers)).toMatchObject({ host: NAME });
    expect(headers).not.toContain('proxy-authorization');
    expect(proxy.requests).toEqual([`CONNECT ${NAME}:443`]);
  });

  it('reaches a server on this computer directly', async () => {
    const { port } = server.address() as AddressInfo;
    expect(await ask(`https://127.0.0.1:${port}/`, { HTTPS_PROXY: proxy.url })).toContain(
      `127.0.0.1:${port}`,
    );
    expect(proxy.requests).toEqual([]);
  });

  it('tells that the proxy refuses, without the credentials of the proxy', async () => {
    proxy.status = 403;
    const answer = ask(`https://${NAME}/keys`, { https_proxy: proxy.url });
    await expect(answer).rejects.toThrow(
      /^The identity provider https:\/\/login\.example does not answer: Failed to establish tunnel .* 403/,
    );
    await expect(answer).rejects.not.toThrow('secret');
  });
});

describe('the HTTP API', () => {
  /** Asks the HTTP API at an address, after the API server has refused. */
  async function ask(apiURL: string, environment: Record<string, string>): Promise<unknown> {
    const connection = { server: 'https://cluster.example', token: 'mine' };
    const refusal = new ApiError('nodes is forbidden: User "me" cannot list', {
      status: 403,
      reason: 'Forbidden',
    });
    return await directOrAsked(
      { apiURL, connection, environment },
      new AbortController().signal,
      async () => await Promise.reject(refusal),
      async (asked) => await asked({ method: 'GET', path: '/nodes' }),
    );
  }

  it('is reached through the proxy, unless NO_PROXY names its host', async () => {
    const api = createPlainServer(({ url = '' }, response) => {
      const facts = { apiEndpoint: 'https://cluster.example' };
      response.setHeader('content-type', 'application/json').end(JSON.stringify({ ...facts, url }));
    });
    await once(api.listen(0, '127.0.0.1'), 'listening');
    onTestFinished(() => void api.close());
    const { port } = api.address() as AddressInfo;
    await using proxy = await HttpProxy.open({ servers: { 'api.example:80': port } });
    const HTTP_PROXY = proxy.url;
    expect(await ask('http://api.example', { HTTP_PROXY })).toMatchObject({ url: '/api/v1/nodes' });
    expect(new Set(proxy.requests)).toEqual(new Set(['CONNECT api.example:80']));
    proxy.requests.length = 0;
    // Nobody listens at this address.
    const direct = ask('http://127.0.0.2:1', { HTTP_PROXY, NO_PROXY: '127.0.0.2' });
    await expect(direct).rejects.toThrow('ECONNREFUSED');
    expect(proxy.requests).toEqual([]);
  });

  it('is not asked if a variable is not the address of a proxy, and the message does not show its value', async () => {
    const environment = { HTTP_PROXY: 'socks5://user:secret@proxy.example' };
    await expect(ask('http://api.example', environment)).rejects.toThrow(
      /^HTTP_PROXY is not the address of an HTTP proxy\. Use http:\/\/HOST:PORT or https:\/\/HOST:PORT$/,
    );
  });
});
