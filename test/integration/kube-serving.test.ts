import { randomBytes } from 'node:crypto';
import { mkdtemp, rename, rm, writeFile } from 'node:fs/promises';
import { request as httpRequest } from 'node:http';
import { request } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TLSSocket } from 'node:tls';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { Authorizer } from '../../kube/serving/authorization.ts';
import { createKey, type KeyAlgorithm } from '../../kube/certificates/certificate.ts';
import { KubeClient } from '../../kube/client.ts';
import { loadConnection } from '../../kube/credentials.ts';
import type { RunningServer } from '../../kube/serving/httpserver.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { serveHealth, serveMetrics } from '../../kube/serving/endpoints.ts';
import {
  type CertificateProvider,
  certificateFromFiles,
  selfMadeCertificate,
} from '../../kube/certificates/serving.ts';
import { Transport } from '../../kube/transport.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { ApiProxy } from '../wires/apiproxy.ts';
import { createAuthority, issue } from '../../hack/cluster/authority.ts';
import { sharedCluster } from '../support/cluster.ts';
import { requestToken, SERVICE_ACCOUNTS } from '../../hack/cluster/tokens.ts';
import { waitFor } from '../../hack/wait.ts';

const namespace = `kube-serving-${randomBytes(4).toString('hex')}`;
const logger = pino({ level: 'silent' });
const LOOK_MILLISECONDS = 50;
/** More callers than the client's connections to the API server, and fewer than the server accepts. */
const STRANGERS = 100;
const OTHER_REQUEST_MILLISECONDS = 10_000;

let cluster: Cluster;
let servers: RunningServer[] = [];
let folder: string;

interface Seen {
  status: number;
  text: string;
  /** Lifetime of the serving certificate. */
  serial: string;
  keyType: 'ECDSA' | 'RSA';
}

async function get(port: number, path: string, token?: string): Promise<Seen> {
  const { promise, resolve, reject } = Promise.withResolvers<Seen>();
  const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
  const options = { host: '127.0.0.1', port, path, headers, rejectUnauthorized: false, agent: false };
  request(options, (response) => {
    const certificate = (response.socket as TLSSocket).getPeerX509Certificate();
    response
      .toArray()
      .then((chunks) =>
        resolve({
          status: response.statusCode ?? 0,
          text: Buffer.concat(chunks as Buffer[]).toString(),
          serial: certificate?.serialNumber ?? '',
          keyType: certificate?.publicKey.asymmetricKeyType === 'rsa' ? 'RSA' : 'ECDSA',
        }),
      )
      .catch(reject);
  })
    .on('error', reject)
    .end();
  return await promise;
}

async function getHealth(port: number, path: string): Promise<{ status: number; text: string }> {
  const { promise, resolve, reject } = Promise.withResolvers<{ status: number; text: string }>();
  httpRequest({ host: '127.0.0.1', port, path, agent: false }, (response) => {
    response
      .toArray()
      .then((chunks) =>
        resolve({ status: response.statusCode ?? 0, text: Buffer.concat(chunks as Buffer[]).toString() }),
      )
      .catch(reject);
  })
    .on('error', reject)
    .end();
  return await promise;
}

async function serve(
  certificates: CertificateProvider,
  authorizer = new Authorizer(cluster.client()),
): Promise<RunningServer> {
  const server = await serveMetrics({
    listen: '127.0.0.1:0',
    metrics: createMetrics(),
    authorizer,
    certificates,
    logger,
    lookMilliseconds: LOOK_MILLISECONDS,
  });
  servers.push(server);
  return server;
}

/** Returns a token of a ServiceAccount. `rule` is a rule of a ClusterRole that is bound to it. */
async function createToken(name: string, clusterRole?: string): Promise<string> {
  await cluster.client().create(SERVICE_ACCOUNTS, { metadata: { name, namespace } });
  if (clusterRole !== undefined) {
    await cluster.kubectl([
      'create',
      'clusterrole',
      clusterRole,
      '--verb=get',
      '--non-resource-url=/metrics',
    ]);
    await cluster.kubectl([
      'create',
      'clusterrolebinding',
      clusterRole,
      `--clusterrole=${clusterRole}`,
      `--serviceaccount=${namespace}:${name}`,
    ]);
  }
  return await requestToken(cluster.client(), { namespace, name }, 600);
}

/** Replaces both files one after the other, as administrators do. */
async function writePair(algorithm: KeyAlgorithm, commonName: string): Promise<CertificateProvider> {
  const authority = await createAuthority('test');
  const key = await createKey(algorithm);
  const certificate = await issue(authority, { key, commonName, dnsNames: ['localhost'] });
  const files = { certificateFile: join(folder, 'tls.crt'), keyFile: join(folder, 'tls.key') };
  await writeFile(`${files.certificateFile}.new`, certificate);
  await rename(`${files.certificateFile}.new`, files.certificateFile);
  await writeFile(files.keyFile, key.pem);
  return certificateFromFiles(files);
}

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  folder = await mkdtemp(join(tmpdir(), 'berth-serving-'));
});

afterEach(async () => {
  await Promise.all(servers.map((server) => server.close()));
  servers = [];
});

afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
  await cluster.kubectl(['delete', 'clusterrole,clusterrolebinding', namespace, '--ignore-not-found']);
  await cluster.kubectl(['delete', 'namespace', namespace, '--wait=false']);
});

describe('metrics server', () => {
  it('answers 401 without a valid token, 403 without the right to read, and 200 with it', async () => {
    const { port } = await serve(selfMadeCertificate({ commonName: 'berth', dnsNames: ['localhost'] }));
    const reader = await createToken('reader', namespace);
    const stranger = await createToken('stranger');
    expect(await get(port, '/metrics')).toMatchObject({ status: 401, text: 'Unauthorized' });
    expect(await get(port, '/metrics', 'forged')).toMatchObject({ status: 401 });
    expect(await get(port, '/metrics', stranger)).toMatchObject({ status: 403, text: 'Forbidden' });
    const allowed = await waitFor('the right to be known', async () => {
      const answer = await get(port, '/metrics', reader);
      return answer.status === 200 && answer;
    });
    expect(allowed.text).toContain('rest_client_requests_total');
    expect(await get(port, '/other', reader)).toMatchObject({ status: 403 });
  });

  it('serves another certificate when its files have one, RSA or ECDSA, without a restart', async () => {
    const { port } = await serve(await writePair('RSA', 'first'));
    const first = await get(port, '/metrics');
    expect(first).toMatchObject({ status: 401, keyType: 'RSA' });
    await writePair('ECDSA', 'second');
    const second = await waitFor('the second certificate', async () => {
      const answer = await get(port, '/metrics');
      return answer.serial !== first.serial && answer;
    });
    expect(second).toMatchObject({ status: 401, keyType: 'ECDSA' });
  });

  it('keeps the old certificate while the files have none', async () => {
    let looks = 0;
    const files = await writePair('ECDSA', 'good');
    const { port } = await serve(async () => {
      looks += 1;
      return await files();
    });
    const before = await get(port, '/metrics');
    await writeFile(join(folder, 'tls.crt'), 'half a certif');
    const until = looks + 3;
    await waitFor('the server to read the files again', () => looks >= until);
    expect((await get(port, '/metrics')).serial).toBe(before.serial);
    await writePair('ECDSA', 'next');
    const replaced = async () => (await get(port, '/metrics')).serial !== before.serial;
    expect(await waitFor('the next good certificate', replaced)).toBe(true);
  });

  it.each<KeyAlgorithm>(['ECDSA', 'RSA'])(
    'renews its own %s certificate before it ends',
    async (algorithm) => {
      let now = Date.now();
      const provider = selfMadeCertificate({
        commonName: 'berth',
        dnsNames: ['localhost'],
        algorithm,
        days: 30,
        clock: () => now,
      });
      const { port } = await serve(provider);
      const first = await get(port, '/metrics');
      now += 21 * 24 * 60 * 60 * 1000;
      const second = await waitFor('another certificate', async () => {
        const answer = await get(port, '/metrics');
        return answer.serial !== first.serial && answer;
      });
      expect([first.keyType, second.keyType]).toEqual([algorithm, algorithm]);
    },
  );
});

describe('invalid tokens', () => {
  it('are reviewed a few at a time, so that other requests to the API server go on', async () => {
    const proxy = await ApiProxy.start(cluster, `${namespace}-proxy`);
    const connection = await loadConnection({ kubeconfigPath: proxy.kubeconfig });
    const transport = new Transport(connection, { metrics: createMetrics() });
    const client = new KubeClient(transport);
    try {
      const authorizer = new Authorizer(client);
      const { port } = await serve(selfMadeCertificate({ commonName: 'berth', dnsNames: ['a'] }), authorizer);
      // From now on no review is answered, as if the API server were overloaded.
      proxy.stopAt('before', ({ path }) => path.endsWith('/tokenreviews'));
      const statuses: number[] = [];
      const asked = Array.from({ length: STRANGERS }, async (_, number) => {
        statuses.push((await get(port, '/metrics', `stranger-${number}`)).status);
      });
      await proxy.untilStopped();
      await client.list(VMS, { namespace, deadlineMilliseconds: OTHER_REQUEST_MILLISECONDS });
      await waitFor('strangers to be refused', () => statuses.length > 0);
      expect(new Set(statuses)).toEqual(new Set([429]));
      proxy.goOn('late');
      await Promise.all(asked);
      expect(new Set(statuses)).toEqual(new Set([401, 429]));
    } finally {
      await transport.close();
      await proxy.close();
    }
  });
});

describe('health server', () => {
  it('shows the names of its checks but not their reasons, and can leave checks out', async () => {
    let reason: string | undefined;
    const server = await serveHealth({
      listen: '127.0.0.1:0',
      live: { ping: () => undefined },
      ready: { ping: () => undefined, caches: () => reason },
      logger,
    });
    servers.push(server);
    expect(await getHealth(server.port, '/healthz')).toEqual({ status: 200, text: 'ok' });
    expect(await getHealth(server.port, '/readyz')).toEqual({ status: 200, text: 'ok' });
    reason = 'secret words';
    expect(await getHealth(server.port, '/readyz')).toEqual({
      status: 500,
      text: '[+]ping ok\n[-]caches failed: reason withheld\nreadyz check failed\n',
    });
    expect(await getHealth(server.port, '/readyz?exclude=caches&verbose')).toEqual({
      status: 200,
      text: '[+]ping ok\nreadyz check passed\n',
    });
    expect(await getHealth(server.port, '/readyz/ping')).toMatchObject({ status: 200 });
    expect(await getHealth(server.port, '/healthz/caches')).toMatchObject({ status: 404 });
    expect(await getHealth(server.port, '/')).toMatchObject({ status: 404 });
  });
});
