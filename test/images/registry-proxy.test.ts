/** Registries and web servers of images behind a proxy: what the proxy hears, and what no tenant can reach through it. */
import { once } from 'node:events';
import { lookup as lookUpForConnection } from 'node:dns';
import { lookup } from 'node:dns/promises';
import { writeFile } from 'node:fs/promises';
import { createServer as createPlainServer, type Server } from 'node:http';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Proxies } from '../../base/proxy.ts';
import { selfMadeCertificate } from '../../kube/certificates/serving.ts';
import { HttpProxy } from '../wires/httpproxy.ts';
import { retrying, TransientError } from '../../agent/images/oci/failures.ts';
import { RegistryTransport } from '../../agent/images/oci/transport.ts';
import { makeFolder } from '../support/folder.ts';

vi.mock(import('node:dns'), { spy: true });
vi.mock(import('node:dns/promises'), { spy: true });

const ANSWER_MILLISECONDS = 30_000;
const SECURE = 'secure.example:7443';
const PLAIN = 'plain.example:7080';
/** Time limit of the look-up of a target's name, in milliseconds. */
const LOOKUP_MILLISECONDS = 5_000;

let folder: string;
let proxy: HttpProxy;
let transport: RegistryTransport;
/** Requests that reached the servers, with their headers. */
let received: string[];
let secure: Server;
let plain: Server;

beforeEach(async () => {
  received = [];
  folder = makeFolder();
  const made = { commonName: 'server', dnsNames: ['secure.example'], ipAddresses: [] };
  const { certificate, key } = await selfMadeCertificate(made)();
  await writeFile(join(folder, 'ca.crt'), certificate);
  const note = (kind: string, server: Server): Server =>
    server.on('request', (request, response) => {
      received.push(`${kind} ${request.url} ${JSON.stringify(request.headers)}`);
      if (request.url === '/redirect') {
        response.writeHead(302, { location: 'http://192.168.9.9.nip.example/' });
      }
      response.end(kind);
    });
  secure = note('secure', createServer({ cert: certificate, key }));
  plain = note('plain', createPlainServer());
  for (const server of [secure, plain]) {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
  }
  proxy = await HttpProxy.open({
    servers: { [SECURE]: portOf(secure), [PLAIN]: portOf(plain) },
    credentials: 'user:secret',
  });
  transport = transportWith({});
  // As on a host without a DNS server that knows the world.
  vi.mocked(lookup).mockRejectedValue(
    Object.assign(new Error('getaddrinfo ENOTFOUND'), { code: 'ENOTFOUND' }),
  );
});

afterEach(async () => {
  await transport.close();
  await proxy[Symbol.asyncDispose]();
  secure.close();
  plain.close();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

function transportWith(
  environment: Record<string, string>,
  named: { host: string }[] = [],
): RegistryTransport {
  const [HTTPS_PROXY, HTTP_PROXY] = [proxy.url, proxy.url];
  return new RegistryTransport({
    allowLoopbackHttp: false,
    clusterCIDRs: ['10.96.0.0/12'],
    registries: [{ host: SECURE, caFile: join(folder, 'ca.crt') }, ...named],
    proxies: new Proxies({ HTTPS_PROXY, HTTP_PROXY, ...environment }),
  });
}

async function ask(url: string): Promise<string> {
  const exchange = { method: 'GET', url: new URL(url), headers: {}, what: 'The image' } as const;
  const { status, body } = await transport.send(exchange, AbortSignal.timeout(ANSWER_MILLISECONDS));
  return `${status} ${await text(body)}`;
}

/** Returns the message for the user and the cause for the log of a failed request. */
async function failureOf(url: string): Promise<{ message: string; cause: string }> {
  const thrown: unknown = await ask(url).catch((error: unknown) => error);
  const { message, cause } = (thrown instanceof TransientError ? thrown.final : thrown) as Error;
  return { message, cause: cause instanceof Error ? cause.message : '' };
}

it('reaches a server with TLS through a tunnel, in which the proxy reads nothing', async () => {
  expect(await ask(`https://${SECURE}/v2/`)).toBe('200 secure');
  expect(proxy.requests).toEqual([`CONNECT ${SECURE}`]);
  expect(received).toHaveLength(1);
  expect(received[0]).toMatch(/^secure \/v2\/ /);
  expect(received[0]).not.toContain('proxy-authorization');
});

it('asks the proxy for a page of a server without TLS', async () => {
  expect(await ask(`http://${PLAIN}/disk.raw?a=b`)).toBe('200 plain');
  expect(proxy.requests).toEqual([`GET http://${PLAIN}/disk.raw?a=b`]);
  expect(received[0]).toMatch(/^plain \/disk\.raw\?a=b .*"host":"plain\.example:7080"/);
});

it('reaches a server that NO_PROXY names directly', async () => {
  await transport.close();
  transport = transportWith({ NO_PROXY: '10.0.0.0/8,direct.example' });
  // This look-up is only for a direct connection.
  const direct = vi
    .mocked(lookUpForConnection)
    .mockImplementation(((
      _name: string,
      _options: object,
      answered: (error: null, addresses: object[]) => void,
    ) => answered(null, [{ address: '127.0.0.1', family: 4 }])) as unknown as typeof lookUpForConnection);
  const { cause } = await failureOf('https://direct.example/v2/');
  expect(direct).toHaveBeenCalled();
  expect(cause).toContain('direct.example resolves to 127.0.0.1');
  expect(proxy.requests).toEqual([]);
});

it.each([
  ['https://169.254.169.254/latest/', 'a metadata address of a cloud'],
  ['http://169.254.169.254/latest/', 'a metadata address of a cloud'],
  ['http://[fd00:ec2::254]/', 'a metadata address of a cloud'],
  ['http://0xa9fea9fe/', 'a metadata address of a cloud'],
  ['https://10.96.0.1/', 'an address of the cluster'],
  ['http://224.0.0.1/', 'a reserved address'],
  ['https://kubernetes/', 'a name of a local network'],
  ['https://kubernetes.default.svc/', 'a name of a local network'],
  ['https://kubernetes.default.svc.cluster.local/', 'a name of a local network'],
  ['http://metadata.google.internal/', 'a name of a local network'],
  ['http://metadata.google.internal./', 'a name of a local network'],
  ['http://printer.local/', 'a name of a local network'],
])('refuses %s before the proxy hears of it', async (url, why) => {
  const { message, cause } = await failureOf(url);
  expect(message).toMatch(
    /^The address of \S+ is not allowed for images; an administrator can name the server/,
  );
  expect(cause).toContain(why);
  expect(proxy.requests).toEqual([]);
});

it.each(['http', 'https'])(
  'refuses a name that leads to an address that is not allowed: %s',
  async (scheme) => {
    vi.mocked(lookup).mockResolvedValue([
      { address: '8.8.8.8', family: 4 },
      { address: '169.254.169.254', family: 4 },
    ] as never);
    const { message, cause } = await failureOf(`${scheme}://rebinding.example/`);
    expect(message).toContain('The address of rebinding.example is not allowed');
    expect(message).not.toContain('169.254');
    expect(cause).toContain('rebinding.example leads to 169.254.169.254');
    expect(proxy.requests).toEqual([]);
  },
);

it('checks the target of a redirect', async () => {
  vi.mocked(lookup).mockResolvedValueOnce([{ address: '8.8.8.8', family: 4 }] as never);
  vi.mocked(lookup).mockResolvedValueOnce([{ address: '10.96.0.1', family: 4 }] as never);
  const { message } = await failureOf(`http://${PLAIN}/redirect`);
  expect(message).toContain('The address of 192.168.9.9.nip.example is not allowed');
  expect(proxy.requests).toEqual([`GET http://${PLAIN}/redirect`]);
});

it('asks the proxy for a name whose look-up does not end', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  vi.mocked(lookup).mockReturnValue(new Promise(() => undefined));
  const answer = ask(`http://${PLAIN}/`);
  await vi.waitFor(() => expect(lookup).toHaveBeenCalled());
  expect(proxy.requests).toEqual([]);
  await vi.advanceTimersByTimeAsync(LOOKUP_MILLISECONDS);
  expect(await answer).toBe('200 plain');
});

it('reaches a server that the administrator has named, whatever its name is', async () => {
  await transport.close();
  transport = transportWith({}, [{ host: 'registry.internal' }]);
  const { message } = await failureOf('https://registry.internal/v2/');
  expect(message).toBe('The image: the proxy of this host refuses the connection to the server');
  expect(proxy.requests).toEqual(['CONNECT registry.internal:443']);
  expect(lookup).not.toHaveBeenCalled();
});

it.each([
  [403, `https://${SECURE}/`, 'the proxy of this host refuses the connection to the server'],
  [407, `https://${SECURE}/`, 'the proxy of this host refuses the connection to the server'],
  [407, `http://${PLAIN}/`, 'the proxy of this host refuses the connection to the server'],
  [503, `https://${SECURE}/`, 'the proxy of this host cannot reach the server'],
])(
  'tells the status %i of the proxy for %s, and its credentials to nobody',
  async (status, url, expected) => {
    proxy.status = status;
    const { message, cause } = await failureOf(url);
    expect(message).toBe(`The image: ${expected}`);
    expect(cause).toMatch(
      /^The proxy http:\/\/127\.0\.0\.1:\d+ answered \d+ to a connection to (?:secure|plain)\.example:7\d+$/,
    );
  },
);

it('tries again while the proxy is away', async () => {
  proxy.status = 503;
  let tries = 0;
  const answer = await retrying(async () => {
    tries += 1;
    proxy.status = tries === 1 ? 503 : undefined;
    return await ask(`https://${SECURE}/v2/`);
  }, AbortSignal.timeout(ANSWER_MILLISECONDS));
  expect([answer, tries]).toEqual(['200 secure', 2]);
});
