/**
 * Tests that a stored identity is used for the right cluster, and is given up when the cluster does not know it. The API server
 * of the tests gives only the answers that a test sets.
 */
import { X509Certificate } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import type { TLSSocket } from 'node:tls';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { stringify } from 'yaml';
import { type Certificate, createKey } from '../../kube/certificates/certificate.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { type Authority, createAuthority, issue } from '../../hack/cluster/authority.ts';
import { identityFiles, readPair, writePair, writeSecretFile } from './certificates.ts';
import { type Identity, type IdentityOptions, JoinError, joinAgain, takeIdentity } from './identity.ts';
import { makeFolder } from '../../test/support/folder.ts';

const REVIEW = 'POST /apis/authentication.k8s.io/v1/selfsubjectreviews';
const REQUEST = 'POST /apis/certificates.k8s.io/v1/certificatesigningrequests';
const READ = 'GET /apis/certificates.k8s.io/v1/certificatesigningrequests/mine';
const SERVER_NAME = 'api.example';
/** Address at which nothing listens. */
const NOWHERE = 'https://127.0.0.1:1';

interface Answer {
  status: number;
  body?: unknown;
}

let authority: Authority;
let otherAuthority: Authority;
let stored: Certificate;
let issued: Certificate;
let server: Server;
let url: string;
let directory: string;
/** Answers of the API server by request. All other requests get the status 404. */
let answers: Record<string, Answer | (() => Answer)>;
/** Requests that the API server received, each with the common name or the token of its client. */
let asked: string[];
let log: string[];

beforeAll(async () => {
  authority = await createAuthority('here');
  otherAuthority = await createAuthority('elsewhere');
  stored = await pairOf(otherAuthority);
  issued = await pairOf(authority);
  const key = await createKey();
  const names = { commonName: 'api', dnsNames: [SERVER_NAME], ipAddresses: ['127.0.0.1'] };
  const cert = await issue(authority, { key, ...names });
  server = createServer(
    { cert, key: key.pem, requestCert: true, rejectUnauthorized: false },
    (call, reply) => {
      const what = `${call.method} ${call.url}`;
      const { subject } = (call.socket as TLSSocket).getPeerCertificate();
      const who = call.headers.authorization ?? subject?.CN;
      asked.push(`${what} as ${who}`);
      const answer = answers[what] ?? { status: 404 };
      const { status, body = {} } = typeof answer === 'function' ? answer() : answer;
      reply.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    },
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  url = `https://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterAll(() => {
  server.close();
});

beforeEach(() => {
  directory = makeFolder();
  answers = { [REVIEW]: { status: 201 } };
  asked = [];
  log = [];
});

afterEach(() => {
  vi.restoreAllMocks();
});

async function pairOf(by: Authority): Promise<Certificate> {
  const key = await createKey();
  const commonName = 'system:node:one';
  return { certificate: await issue(by, { key, commonName }), key: key.pem };
}

interface Place {
  server: string;
  authority?: Authority;
  serverName?: string;
}

function kubeconfig(place: Place, user: object): string {
  const data = Buffer.from((place.authority ?? authority).certificate).toString('base64');
  const cluster = {
    server: place.server,
    'certificate-authority-data': data,
    ...(place.serverName === undefined ? {} : { 'tls-server-name': place.serverName }),
  };
  return stringify({
    clusters: [{ name: 'c', cluster }],
    users: [{ name: 'u', user }],
    contexts: [{ name: 'x', context: { cluster: 'c', user: 'u' } }],
    'current-context': 'x',
  });
}

function writeBootstrap(place: Place): void {
  writeFileSync(join(directory, 'bootstrap'), kubeconfig(place, { token: 'abcdef.secret' }));
}

function files(): ReturnType<typeof identityFiles> {
  return identityFiles(join(directory, 'data'));
}

/** Writes the files of a host that joined a cluster at NOWHERE with another certificate authority. */
function haveJoined(): void {
  writePair(files().client, stored);
  writePair(files().serving, stored);
  const user = { 'client-certificate': files().client, 'client-key': files().client };
  writeFileSync(files().kubeconfig, kubeconfig({ server: NOWHERE, authority: otherAuthority }, user));
}

function options(): IdentityOptions {
  const config = {
    nodeName: 'one',
    address: '127.0.0.1',
    dataDirectory: join(directory, 'data'),
    bootstrapKubeconfig: join(directory, 'bootstrap'),
    certificates: { clientSeconds: 3_600, servingSeconds: 3_600 },
  };
  return {
    config,
    logger: pino({ level: 'info' }, { write: (line: string) => log.push(line) }),
    metrics: createMetrics(),
    signal: new AbortController().signal,
  };
}

async function take(): Promise<Identity> {
  return await takeIdentity(options());
}

function warnings(): string[] {
  return log
    .map((line) => JSON.parse(line) as { level: number; msg: string })
    .filter(({ level }) => level >= pino.levels.values.warn!)
    .map(({ msg }) => msg);
}

describe('a host that has joined', () => {
  beforeEach(haveJoined);

  test('uses the address in its bootstrap kubeconfig, and still does after that file was removed', async () => {
    writeBootstrap({ server: url, serverName: SERVER_NAME });
    const wanted = {
      server: url,
      serverName: SERVER_NAME,
      certificateAuthority: authority.certificate,
      clientCertificate: readFileSync(files().client, 'utf8'),
    };
    expect(await take()).toMatchObject({ isNode: true, connection: wanted });
    rmSync(join(directory, 'bootstrap'));
    expect(await take()).toMatchObject({ isNode: true, connection: wanted });
    expect(asked).toEqual(Array.from({ length: 2 }, () => `${REVIEW} as system:node:one`));
    expect(warnings()).toEqual([]);
  });

  test('joins again if the cluster does not know its certificate, with a new client certificate and no serving certificate', async () => {
    writeBootstrap({ server: url });
    answers = {
      [REVIEW]: { status: 401 },
      [REQUEST]: { status: 201, body: { metadata: { name: 'mine' } } },
      [READ]: { status: 200, body: { status: { certificate: base64(issued.certificate) } } },
    };
    const { connection } = await take();
    expect(new X509Certificate(connection.clientCertificate ?? '').issuer).toBe('CN=here');
    expect(readPair(files().client)?.key).not.toBe(stored.key);
    expect(existsSync(files().serving)).toBe(false);
    expect(asked).toContain(`${REQUEST} as Bearer abcdef.secret`);
    expect(warnings()).toEqual([expect.stringContaining('refuses the certificate of this host')]);
  });

  test('keeps its certificates if it is not admitted again', async () => {
    writeBootstrap({ server: url });
    answers = { [REVIEW]: { status: 401 }, [REQUEST]: { status: 403, body: { message: 'not you' } } };
    await expect(take()).rejects.toThrow(new JoinError('not you'));
    expect(readPair(files().client)?.certificate).toContain(stored.certificate.trim());
    expect(existsSync(files().serving)).toBe(true);
  });

  test('continues if its certificate is unknown and it has no credentials for joining', async () => {
    writeBootstrap({ server: url });
    await take();
    rmSync(join(directory, 'bootstrap'));
    answers = { [REVIEW]: { status: 401 } };
    expect(await take()).toMatchObject({ isNode: true, connection: { server: url } });
    expect(warnings()).toEqual([expect.stringContaining('give the agent a bootstrap kubeconfig')]);
  });

  test.each([403, 404, 500])('continues if its question is answered with %i', async (status) => {
    writeBootstrap({ server: url });
    answers = { [REVIEW]: { status } };
    expect(await take()).toMatchObject({ isNode: true, connection: { server: url } });
    expect(asked).toHaveLength(1);
  });

  test.each([
    ['there is no answer', () => ({ server: NOWHERE })],
    ['the server is not to be trusted', () => ({ server: url, authority: otherAuthority })],
  ])('continues if %s', async (_what, place) => {
    writeBootstrap(place());
    expect(await take()).toMatchObject({ isNode: true, connection: { server: place().server } });
    expect(asked).toEqual([]);
    expect(warnings()).toEqual([
      'The cluster does not answer; the agent continues with its stored certificate',
    ]);
  });

  test('continues with an unreadable bootstrap kubeconfig, and logs that', async () => {
    writeBootstrap({ server: url });
    await take();
    writeFileSync(join(directory, 'bootstrap'), 'clusters: []\n');
    expect(await take()).toMatchObject({ isNode: true, connection: { server: url } });
    expect(warnings()).toEqual(['The bootstrap kubeconfig could not be read']);
  });
});

describe('a running host that the cluster refuses', () => {
  beforeEach(() => {
    haveJoined();
    writeBootstrap({ server: url });
    answers = {
      [REQUEST]: { status: 201, body: { metadata: { name: 'mine' } } },
      [READ]: { status: 200, body: { status: { certificate: base64(issued.certificate) } } },
    };
  });

  test('joins again, and stores the certificate with the address in the bootstrap kubeconfig', async () => {
    const { key } = await joinAgain(options());
    expect(readPair(files().client)?.key.trim()).toBe(key.trim());
    expect(readFileSync(files().kubeconfig, 'utf8')).toContain(url);
    expect(existsSync(files().joining)).toBe(false);
  });

  test('keeps the key of its request until the certificate is stored', async () => {
    rmSync(files().client);
    mkdirSync(files().client);
    await expect(joinAgain(options())).rejects.toThrow(files().client);
    expect(existsSync(files().joining)).toBe(true);
  });
});

test('a host without a valid certificate tells people that it needs its bootstrap kubeconfig', async () => {
  haveJoined();
  const later = Date.now() + 100 * 365 * 24 * 3600 * 1000;
  vi.spyOn(Date, 'now').mockReturnValue(later);
  const error = await take().catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(JoinError);
  expect((error as JoinError).message).toMatch(
    /^This host has no valid client certificate.*ENOENT.*bootstrap/,
  );
});

describe('a host that joins', () => {
  const MADE = { status: 201, body: { metadata: { name: 'mine' } } };
  const APPROVED = () => ({ status: 200, body: { status: { certificate: base64(issued.certificate) } } });

  beforeEach(() => writeBootstrap({ server: url }));

  /** Answers with these statuses, then with the certificate. */
  function approvedAfter(...statuses: number[]): () => Answer {
    return () => {
      const status = statuses.shift();
      return status === undefined ? APPROVED() : { status };
    };
  }

  /** Makes each look at the request happen 15 s later, and refuses all looks. */
  function refusedAlways(status: number): () => Answer {
    const now = performance.now.bind(performance);
    let later = 0;
    vi.spyOn(performance, 'now').mockImplementation(() => now() + later);
    return () => {
      later += 15_000;
      return { status, body: { message: 'not now' } };
    };
  }

  test('waits for its request although it is refused for a short time', async () => {
    answers = { [REQUEST]: MADE, [READ]: approvedAfter(401, 403, 408) };
    expect(await take()).toMatchObject({ isNode: true });
    expect(asked.filter((one) => one.startsWith('POST'))).toHaveLength(1);
    expect(existsSync(files().joining)).toBe(false);
  });

  test('tells after 3 s for whom its request waits, and tells the next obstacle at once', async () => {
    const now = performance.now.bind(performance);
    let later = 0;
    vi.spyOn(performance, 'now').mockImplementation(() => now() + later);
    const conditions = [{ type: 'Approved', status: 'True' }];
    const open = { status: 200, body: { metadata: { name: 'mine' } } };
    const looks: Answer[] = [
      open,
      open,
      open,
      { status: 200, body: { ...open.body, status: { conditions } } },
    ];
    const reported: string[][] = [];
    answers = {
      [REQUEST]: MADE,
      [READ]: () => {
        reported.push(warnings());
        later += 2_000;
        return looks.shift() ?? APPROVED();
      },
    };
    await take();
    const approval = expect.stringMatching(/^The certificate request mine waits for its approval/);
    const signer = expect.stringContaining(
      'no signer issues the certificate. The cluster needs a signer for kubernetes.io/kube-apiserver-client-kubelet',
    );
    expect(reported).toEqual([[], [], [approval], [approval], [approval, signer]]);
  });

  test('asks again if the API server had no time for its request', async () => {
    const statuses = [408, 201];
    answers = { [REQUEST]: () => ({ ...MADE, status: statuses.shift() ?? 500 }), [READ]: APPROVED() };
    expect(await take()).toMatchObject({ isNode: true });
    expect(statuses).toEqual([]);
  });

  test.each([401, 403])(
    'gives up after %i for more than 20 s, and then continues its request',
    async (status) => {
      answers = { [REQUEST]: MADE, [READ]: refusedAlways(status) };
      await expect(take()).rejects.toThrow(new JoinError('not now'));
      // Refusals after 0, 15 and 30 s: only the third one is later than 20 s.
      expect(asked.filter((one) => one.startsWith(READ))).toHaveLength(3);
      const key = readFileSync(files().joining, 'utf8');
      answers[READ] = APPROVED();
      await take();
      expect(readPair(files().client)?.key.trim()).toBe(key.trim());
    },
  );

  test('asks again with a new key if the certificate expired before the host fetched it', async () => {
    const key = await createKey();
    const validity = { notBefore: new Date(0), notAfter: new Date(1_000) };
    const expired = await issue(authority, { key, commonName: 'system:node:one', validity });
    writeSecretFile(files().joining, key.pem);
    const texts = [expired, issued.certificate];
    const read = (): Answer => ({
      status: 200,
      body: { status: { certificate: base64(texts.shift() ?? '') } },
    });
    answers = { [REQUEST]: MADE, [READ]: read };
    const { connection } = await take();
    expect(new X509Certificate(connection.clientCertificate ?? '').issuer).toBe('CN=here');
    expect(asked.filter((one) => one.startsWith(REQUEST))).toHaveLength(2);
    expect(warnings()).toEqual([expect.stringContaining('expired before')]);
  });

  test('makes a new key after its request was denied', async () => {
    const condition = { type: 'Denied', reason: 'NotItself', message: 'another host' };
    const denied = { metadata: { name: 'mine' }, status: { conditions: [condition] } };
    let deniedKey = '';
    const deny = (): Answer => {
      deniedKey = readFileSync(files().joining, 'utf8');
      return { status: 200, body: denied };
    };
    answers = { [REQUEST]: MADE, [READ]: deny };
    await expect(take()).rejects.toThrow(
      new JoinError('The certificate request mine was denied: NotItself: another host'),
    );
    answers[READ] = APPROVED();
    await take();
    const key = readPair(files().client)?.key.trim();
    expect(key).toMatch(/PRIVATE KEY/);
    expect(key).not.toBe(deniedKey.trim());
  });
});

function base64(text: string): string {
  return Buffer.from(text).toString('base64');
}
