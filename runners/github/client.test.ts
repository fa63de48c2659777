import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Proxies } from '../../base/proxy.ts';
import { createAuthority } from '../../hack/cluster/authority.ts';
import { appValues, connectTo, githubSecret } from '../../test/support/github/client.ts';
import type { SeenRequest } from '../../test/support/github/model.ts';
import { HttpProxy } from '../../test/wires/httpproxy.ts';
import { GitHubStub } from '../../test/support/github/stub.ts';
import { parseAddress } from './address.ts';
import type { GitHub } from './client.ts';
import { readAuthorities, readCredentials } from './credentials.ts';
import { quote } from './error.ts';

const TRACE = join(import.meta.dirname, '..', '..', 'test', 'fixtures', 'github', 'scaleset-trace.txt');
const never = new AbortController().signal;

let stub: GitHubStub;
let github: GitHub;
let close: () => Promise<void>;

beforeEach(async () => {
  stub = await GitHubStub.start();
  ({ github, close } = connectTo(stub));
});

afterEach(async () => {
  await close();
  await stub[Symbol.asyncDispose]();
});

/** The parts of a request in which a client can differ from GitHub's own. */
interface Shape {
  readonly method: string;
  readonly path: string;
  readonly query: readonly string[];
  readonly headers: Readonly<Record<string, string>>;
  readonly body: readonly string[];
}

const HEADERS = ['authorization', 'content-type', 'accept', 'x-scalesetmaxcapacity', 'user-agent'];

/** Keeps the scheme of a token, the keys of the user agent, and everything of other headers. */
function shapeHeader(name: string, value: string): string {
  if (name === 'authorization') {
    return value.split(' ')[0] ?? '';
  }
  return name === 'user-agent' ? Object.keys(JSON.parse(value) as object).join() : value;
}

function keysOf(body: unknown): string[] {
  return typeof body === 'object' && body !== null ? Object.keys(body).toSorted() : [];
}

/** Numbers and ids differ from run to run. */
function shapePath(path: string): string {
  return path.replace('/tenant/acme/', '/tenant/').replaceAll(/\/(?:\d+|[0-9a-f-]{36})(?=\/|$)/g, '/N');
}

function recorded(): Shape[] {
  return readFileSync(TRACE, 'utf8')
    .trim()
    .split(/\n(?=[A-Z]+ \/)/)
    .map((text) => {
      const [head = '', ...lines] = text.split('\n');
      const [method = '', target = ''] = head.split(' ');
      const url = new URL(target, 'https://recorded');
      const fields = lines.map((line) => /^ {2}([a-z-]+): (.*)$/.exec(line) ?? []);
      const body = fields.find(([, name]) => name === 'body')?.[2];
      return {
        method,
        path: shapePath(url.pathname),
        query: [...url.searchParams.keys()],
        headers: Object.fromEntries(
          fields
            .filter(([, name = '']) => HEADERS.includes(name))
            .map(([, name = '', value = '']) => [name, shapeHeader(name, value)]),
        ),
        body: body === undefined ? [] : keysOf(JSON.parse(body)),
      };
    });
}

function sent({ method, path, query, headers, body }: SeenRequest): Shape {
  return {
    method,
    path: shapePath(path),
    query: Object.keys(query),
    headers: Object.fromEntries(
      HEADERS.flatMap((name) => {
        const value = headers[name];
        return value === undefined ? [] : [[name, shapeHeader(name, value)]];
      }),
    ),
    body: keysOf(body),
  };
}

describe('the requests', () => {
  it('equal those of the official client in the recorded trace', async () => {
    const group = await github.findGroup('default', never);
    expect(await github.findScaleSet(group, 'mac', never)).toBeUndefined();
    const { id } = await github.createScaleSet({ groupID: group, name: 'mac', labels: ['mac'] }, never);
    github.useScaleSet(id);
    let session = await github.openSession(id, 'berth-runners-0', never);
    await expect(github.openSession(id, 'berth-runners-1', never)).rejects.toMatchObject({
      reason: 'SessionConflict',
    });
    const { messages } = stub.set('acme', 'mac');
    const take = async (lastID: number | undefined, message: object | undefined) => {
      const next = messages.length + (lastID ?? 0) + 1;
      if (message !== undefined) {
        messages.push({ id: next, items: [message] });
      }
      const taken = await github.nextMessage(session, { lastID, capacity: 4 }, never);
      if (taken !== undefined) {
        await github.acknowledge(session, taken.id, never);
      }
      return taken;
    };
    const first = await take(undefined, { messageType: 'JobAvailable', runnerRequestId: 77 });
    expect(first?.items).toMatchObject([{ runnerRequestId: 77 }]);
    await github.acquire(id, session, [77], never);
    await take(1, { messageType: 'JobAssigned' });
    await github.registerRunner(id, 'mac-00001', never);
    await expect(github.registerRunner(id, 'mac-00001', never)).rejects.toMatchObject({
      typeName: 'AgentExistsException',
    });
    expect(await take(2, undefined)).toBeUndefined();
    await take(2, { messageType: 'JobStarted' });
    stub.expireQueueTokens();
    await expect(github.nextMessage(session, { lastID: 3, capacity: 4 }, never)).rejects.toMatchObject({
      status: 401,
    });
    session = await github.refreshSession(id, session, never);
    await take(3, { messageType: 'JobCompleted' });
    expect(await github.removeRunner('mac-00001', never)).toBe(true);
    await github.endSession(id, session, never);
    await github.deleteScaleSet(id, never);
    expect(stub.requests.map(sent)).toEqual(recorded());
  });

  it('of an address go to the API of its server', () => {
    const bases = [
      'github.com/acme',
      'www.github.com/acme/app',
      'x.ghe.com/acme',
      'ghes.example/enterprises/e',
    ];
    expect(
      bases.map((base) => parseAddress(`https://${base}`)).map(({ api, scope }) => `${api} ${scope}`),
    ).toEqual([
      'https://api.github.com orgs/acme',
      'https://api.github.com repos/acme/app',
      'https://api.x.ghe.com orgs/acme',
      'https://ghes.example/api/v3 enterprises/e',
    ]);
  });
});

describe('a fault of GitHub', () => {
  it.each([
    [401, {}, 'Unauthorized'],
    [403, {}, 'Unauthorized'],
    [403, { 'x-ratelimit-remaining': '0' }, 'RateLimited'],
    [429, { 'retry-after': '7' }, 'RateLimited'],
    [500, {}, 'GitHubFailed'],
    [302, { location: 'https://elsewhere.example/' }, 'GitHubFailed'],
  ])('%i %j is %s', async (status, headers, reason) => {
    stub.fault = { status, headers };
    await expect(github.findGroup('default', never)).rejects.toMatchObject({ reason, status });
  });

  it('asks for a wait', async () => {
    stub.fault = { status: 429, headers: { 'retry-after': '7' } };
    await expect(github.findGroup('default', never)).rejects.toMatchObject({ retryAfterMilliseconds: 7_000 });
  });

  it('of its certificate is told, and no byte of the request is sent', async () => {
    const { certificate } = await createAuthority('another');
    const untrusting = connectTo(stub, 'acme', { authorities: certificate });
    await expect(untrusting.github.findGroup('default', never)).rejects.toMatchObject({
      reason: 'GitHubCertificateRefused',
    });
    await untrusting.close();
    expect(stub.requests).toEqual([]);
  });

  it.each([
    ['an address of this host', 'https://127.0.0.1:PORT/acme'],
    ['a name that leads to this host', 'https://localhost:PORT/acme'],
    ['a private address', 'https://10.1.2.3/acme'],
    ['the metadata of a cloud', 'https://169.254.169.254/acme'],
    ['a metadata address in a name', 'https://[fd00:ec2::254]/acme'],
  ])('is not asked at all if it has %s, unless an administrator has named it', async (_, text) => {
    const url = text.replace('PORT', stub.host.split(':')[1] ?? '');
    const { host } = parseAddress(url);
    await using proxy = await HttpProxy.open({ servers: {} });
    const refused = {
      reason: 'GitHubAddressRefused',
      message: expect.stringContaining('is not allowed') as string,
    };
    for (const proxies of [new Proxies({}), new Proxies({ HTTPS_PROXY: proxy.url })]) {
      const stranger = connectTo(stub, 'acme', {
        url,
        values: appValues(host),
        namedHosts: ['ghes.example'],
        proxies,
      });
      await expect(stranger.github.findGroup('default', never)).rejects.toMatchObject(refused);
      await stranger.close();
    }
    expect([...stub.requests, ...proxy.requests]).toEqual([]);
  });

  it('cannot lead the long poll to a private address, nor tell its users where it leads', async () => {
    const other = await GitHubStub.start();
    const { id } = await github.createScaleSet({ groupID: 1, name: 'mac', labels: ['mac'] }, never);
    const session = await github.openSession(id, 'berth', never);
    const away = {
      ...session,
      messageQueueUrl: new URL(`${other.url('acme').replace('127.0.0.1', 'localhost')}/q`),
    };
    const error: unknown = await github
      .nextMessage(away, { lastID: 0, capacity: 1 }, never)
      .catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({
      reason: 'GitHubAddressRefused',
      message: 'The message queue: the address of localhost is not allowed',
      cause: { message: expect.stringContaining('localhost resolves to') as string },
    });
    expect(other.requests).toEqual([]);
    await other[Symbol.asyncDispose]();
  });

  it('of its clock is corrected: the proof of the App has the time of the server', async () => {
    const late = connectTo(stub, 'acme', { clock: () => Date.now() + 600_000 });
    stub.fault = { status: 401 };
    await expect(late.github.findGroup('default', never)).rejects.toMatchObject({ reason: 'Unauthorized' });
    await late.close();
    const proofs = stub.requests.map(({ headers }) => headers['authorization']?.split('.')[1] ?? '');
    const [first = 0, second = 0] = proofs.map(
      (claims) => (JSON.parse(Buffer.from(claims, 'base64url').toString()) as { iat: number }).iat,
    );
    expect(first - second).toBeGreaterThan(595);
  });

  it('does not disturb: a byte order mark, and a runner with a job that must stay', async () => {
    stub.hasMark = true;
    const { id } = await github.createScaleSet({ groupID: 1, name: 'mac', labels: ['mac'] }, never);
    await github.registerRunner(id, 'mac-1', never);
    const job = stub.queueJob(stub.set('acme', 'mac'));
    job.state = 'assigned';
    stub.connect('mac-1');
    expect(await github.removeRunner('mac-1', never)).toBe(false);
    expect(await github.listRunners('mac-', never)).toMatchObject([
      { name: 'mac-1', isOnline: true, isBusy: true },
    ]);
    stub.finish('mac-1');
    expect(await github.removeRunner('mac-1', never)).toBe(true);
  });
});

describe('a Secret', () => {
  const good = { token: 'ghp_x' };

  it('has a token or the key of an App, for one server', () => {
    expect(readCredentials(githubSecret(good), 'github', 'github.com')).toEqual(good);
    expect(readCredentials(githubSecret(appValues('a.example')), 'github', 'a.example')).toMatchObject({
      issuer: 'Iv1',
      installationID: '42',
    });
  });

  it.each([
    ['another type', githubSecret(good, 'kubernetes.io/service-account-token'), 'has not the type'],
    ['another server', githubSecret({ ...good, host: 'b.example' }), 'is for another server'],
    ['no key', githubSecret({ host: 'a.example' }), 'needs the key token, or the keys'],
    ['no number', githubSecret({ ...appValues('a.example'), installationId: '../1' }), 'that is no number'],
    ['no PEM', githubSecret({ ...appValues('a.example'), privateKey: 'x' }), 'no RSA key as PEM'],
    ['two lines', githubSecret({ token: 'a\nb', host: 'a.example' }), 'needs the key token'],
    ['nothing', undefined, 'does not exist'],
  ])('with %s is refused, and the message has no value of it', (_, secret, message) => {
    expect(() => readCredentials(secret, 'github', 'a.example')).toThrow(message);
  });

  it('with authorities must have a certificate', () => {
    expect(() => readAuthorities(githubSecret({ 'ca.crt': 'x' }), 'ca')).toThrow(
      'has no certificate in its key',
    );
  });
});

it('a text of the server is on one line, short, and has no token', () => {
  const text = quote(`Bad\u001b[31m\ncredentials ghs_0123456789abcdefghijklmnop ${'x '.repeat(300)}`);
  expect(text).toMatch(/^Bad \[31m credentials … x x/);
  expect(text.length).toBeLessThanOrEqual(200);
});
