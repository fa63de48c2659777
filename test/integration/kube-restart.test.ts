/** Tests that restart an API server. They have a server of their own, so that other tests do not notice. */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createKey } from '../../kube/certificates/certificate.ts';
import { KubeClient } from '../../kube/client.ts';
import { CONFIG_MAPS } from '../../kube/core.ts';
import { type Connection, loadConnection } from '../../kube/credentials.ts';
import { Informer } from '../../kube/informer.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { Transport } from '../../kube/transport.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { issue } from '../../hack/cluster/authority.ts';
import { requestToken } from '../../hack/cluster/tokens.ts';
import { waitFor } from '../../hack/wait.ts';

const namespace = 'default';
const logger = pino({ level: 'silent' });

let cluster: Cluster;
let admin: Connection;
let folder: string;
const transports: Transport[] = [];

function connect(connection: Connection): KubeClient {
  const transport = new Transport(connection, { metrics: createMetrics() });
  transports.push(transport);
  return new KubeClient(transport);
}

beforeAll(async () => {
  cluster = await startCluster({ name: `kube-restart-${process.pid}` });
  admin = await loadConnection({ kubeconfigPath: cluster.kubeconfig });
  folder = await mkdtemp(join(tmpdir(), 'berth-kube-'));
});

afterAll(async () => {
  await Promise.all(transports.map((transport) => transport.close()));
  await cluster.stop();
  await rm(folder, { recursive: true, force: true });
});

async function createToken(): Promise<string> {
  return await waitFor('the default ServiceAccount', () =>
    requestToken(cluster.client(), { namespace, name: 'default' }, 600),
  );
}

/** Returns the user name that the API server sees. */
async function whoAmI(client: KubeClient): Promise<string | number> {
  const { status, body } = await client.raw('POST', '/apis/authentication.k8s.io/v1/selfsubjectreviews', {
    body: { apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview' },
  });
  return status === 201
    ? (body as { status: { userInfo: { username: string } } }).status.userInfo.username
    : status;
}

describe('credentials', () => {
  it('a token file is read again when the API server refuses its token', async () => {
    const tokenFile = join(folder, 'token');
    await writeFile(tokenFile, 'no token');
    const client = connect({
      server: admin.server,
      certificateAuthority: admin.certificateAuthority,
      tokenFile,
    });
    expect(await whoAmI(client)).toBe(401);
    await writeFile(tokenFile, `${await createToken()}\n`);
    expect(await whoAmI(client)).toBe('system:serviceaccount:default:default');
  });

  it('a client certificate is replaced while the process runs, and watches stay open', async () => {
    const client = connect(admin);
    const end = new AbortController();
    const informer = new Informer(client, CONFIG_MAPS, { namespace, logger });
    informer.start(end.signal);
    await informer.synced;
    expect(await whoAmI(client)).toBe('berth-admin');
    client.transport.replaceCredentials(await certificateFor('somebody', ['system:masters']));
    expect(await whoAmI(client)).toBe('somebody');
    await client.create(CONFIG_MAPS, { metadata: { namespace, name: 'after' } });
    await waitFor('the change on the old watch', () => informer.cache.get('default/after'));
    const { values } = await client.transport.metrics.relists.get();
    expect(values.map(({ value }) => value)).toEqual([1]);
    end.abort();
  });

  it('a server is refused if the authority did not sign its certificate', async () => {
    const other = await certificateFor('somebody', []);
    const client = connect({ server: admin.server, certificateAuthority: other.clientCertificate });
    await expect(whoAmI(client)).rejects.toThrow(/certificate/);
  });
});

/** Returns a certificate that the cluster's authority has signed. */
async function certificateFor(commonName: string, organizations: string[]): Promise<Connection> {
  const pki = join(cluster.directory, 'pki');
  const [certificate, pem] = await Promise.all([
    readFile(join(pki, 'ca.crt'), 'utf8'),
    readFile(join(pki, 'ca.key'), 'utf8'),
  ]);
  const key = await createKey('RSA');
  const authority = { certificate, key: { algorithm: 'ECDSA' as const, pem } };
  const clientCertificate = await issue(authority, { key, commonName, organizations });
  return { server: admin.server, certificateAuthority: certificate, clientCertificate, clientKey: key.pem };
}

describe('API server', () => {
  it('after a kill and a start of the server, watches miss nothing, and read everything again only if the server has lost its history', async () => {
    const client = connect(admin);
    const end = new AbortController();
    const informer = new Informer(client, CONFIG_MAPS, { namespace, logger });
    const seen: string[] = [];
    informer.cache.onChange(({ type, object }) => seen.push(`${type} ${object.metadata.name}`));
    informer.start(end.signal);
    await informer.synced;
    await cluster.component('kube-apiserver').restart('SIGKILL');
    await client.create(CONFIG_MAPS, { metadata: { namespace, name: 'restarted' } });
    await waitFor('the new one', () => seen.includes('added restarted'));
    await client.delete(CONFIG_MAPS, { namespace, name: 'restarted' });
    await waitFor('its end', () => seen.includes('deleted restarted'));
    expect(seen.filter((one) => one.endsWith('restarted'))).toEqual(['added restarted', 'deleted restarted']);
    const { values } = await client.transport.metrics.relists.get();
    // The history of a new server begins at its start. For a kind with writes just before, it answers 410.
    const unasked = values.filter(({ labels }) => labels.reason !== '410');
    expect(unasked).toMatchObject([{ labels: { reason: 'start' }, value: 1 }]);
    end.abort();
  });
});
