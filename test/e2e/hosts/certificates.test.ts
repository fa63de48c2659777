/** Certificates of a real agent: how it gets and renews them, and who is denied them. */
import { readFileSync } from 'node:fs';
import { X509Certificate } from 'node:crypto';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { HOST_KEY, HOST_MARK, HOST_VALUE } from '../../../api/v1alpha1/names.ts';
import {
  identityFiles,
  readPair,
  requestCertificate,
  writePair,
} from '../../../agent/identity/certificates.ts';
import {
  type Certificate,
  createKey,
  readKey,
  parseValidity,
} from '../../../kube/certificates/certificate.ts';
import { KubeClient } from '../../../kube/client.ts';
import {
  CERTIFICATE_SIGNING_REQUESTS,
  type CertificateSigningRequest,
  LEASES,
  NODES,
} from '../../../kube/core.ts';
import { loadConnection } from '../../../kube/credentials.ts';
import { createMetrics } from '../../../kube/metrics.ts';
import { Transport } from '../../../kube/transport.ts';
import { AgentProcess } from '../../../hack/cluster/agent.ts';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import { type AuditedWrite, auditedWrites } from '../../support/apiwrites.ts';
import { type Authority, issue } from '../../../hack/cluster/authority.ts';
import { waitFor } from '../../../hack/wait.ts';

/** Shortest lifetime that an API server signs for. */
const LIFETIME_SECONDS = 600;
/**
 * Lifetime of certificates with which an agent starts, and which it has to renew, and the part of it that is over before the start. The
 * agent then has 16 s for its start. It renews 16 to 28 s after the start, and has at least 6 s for that on a busy machine.
 */
const SHORT_LIFE_MILLISECONDS = 60_000;
const PAST_MILLISECONDS = 26_000;
/** Within this time the Lease is renewed four times. */
const FENCE_SECONDS = 8;
const STEP = { deadlineMilliseconds: 90_000 };
const TEST_MILLISECONDS = 240_000;
const NODE_USER = 'system:node:host';
/** An address that no host has. */
const KUBELET_ADDRESS = '127.0.0.9';

let cluster: Cluster;
let agent: AgentProcess;
/** End of the short certificates, in milliseconds since the epoch. */
let shortUntil = 0;

beforeAll(async () => {
  cluster = await startCluster({ name: `host-certificates-${process.pid}`, operator: true, audit: true });
  agent = await AgentProcess.start(cluster, {
    nodeName: 'host',
    config: {
      certificates: { clientSeconds: LIFETIME_SECONDS, servingSeconds: LIFETIME_SECONDS },
      fenceAfterSeconds: FENCE_SECONDS,
    },
  });
});

afterAll(async () => {
  await agent?.stop();
  await cluster?.stop();
});

async function requests(kind: 'client' | 'serving'): Promise<CertificateSigningRequest[]> {
  const { items } = await cluster.client().list(CERTIFICATE_SIGNING_REQUESTS);
  return items
    .filter(({ metadata }) => metadata.name.startsWith(`berth-${kind}-host-`))
    .sort((a, b) => Number(a.metadata.resourceVersion) - Number(b.metadata.resourceVersion));
}

async function signed(kind: 'client' | 'serving', count: number): Promise<CertificateSigningRequest[]> {
  return await waitFor(
    `${count} signed ${kind} certificates`,
    async () => {
      const found = await requests(kind);
      return found.length === count && found.every(({ status }) => status?.certificate) && found;
    },
    STEP,
  );
}

function secondsLeft(pem: string): number {
  return (parseValidity(pem).notAfter.getTime() - Date.now()) / 1000;
}

/** Returns the certificate on the agent's disk once it has the requested lifetime. */
async function fresh(kind: 'client' | 'serving'): Promise<string> {
  return await waitFor(
    `a fresh ${kind} certificate on the host`,
    () => {
      const pair = readPair(identityFiles(agent.dataDirectory)[kind]);
      return (
        pair !== undefined &&
        secondsLeft(pair.certificate) * 1000 > SHORT_LIFE_MILLISECONDS &&
        pair.certificate
      );
    },
    STEP,
  );
}

test(
  'a host that joins asks for two certificates, and the operator approves both for the requested lifetime',
  async () => {
    const [[client], [serving]] = [await signed('client', 1), await signed('serving', 1)];
    expect(client?.spec.username).toMatch(/^system:bootstrap:[0-9a-f]{6}$/);
    expect(serving?.spec.username).toBe(NODE_USER);
    for (const request of [client, serving]) {
      const conditions = request?.status?.conditions;
      expect(conditions).toMatchObject([{ type: 'Approved', status: 'True', reason: 'ApprovedByBerth' }]);
    }
    for (const kind of ['client', 'serving'] as const) {
      const left = secondsLeft(await fresh(kind));
      expect(left).toBeLessThanOrEqual(LIFETIME_SECONDS);
    }
  },
  TEST_MILLISECONDS,
);

test(
  'the running agent renews both between 70 % and the end of their life, and then uses only the new ones',
  async () => {
    await agent.stop();
    const stopped = Date.now();
    const begin = Math.floor(stopped / 1000) * 1000 - PAST_MILLISECONDS;
    const old = await shorten('client', begin);
    await shorten('serving', begin);
    await agent.startAgain();
    for (const kind of ['client', 'serving'] as const) {
      const [, renewal] = await signed(kind, 2);
      const age = Date.parse(renewal?.metadata.creationTimestamp ?? '') - begin;
      expect(age, `${kind}, in milliseconds`).toBeGreaterThanOrEqual(0.7 * SHORT_LIFE_MILLISECONDS);
      expect(age).toBeLessThan(SHORT_LIFE_MILLISECONDS);
      expect(renewal?.spec.username).toBe(NODE_USER);
      expect(renewal?.status?.conditions).toMatchObject([{ type: 'Approved', reason: 'ApprovedByBerth' }]);
    }
    const next = certificateHash(await fresh('client'));
    const leases = await waitFor(
      'the Lease to be renewed twice with the new certificate',
      () => {
        const found = agentWrites().filter((one) => one.certificate === next && one.what.endsWith(' leases'));
        return found.length > 1 && found;
      },
      STEP,
    );
    const [since, all] = [leases[0]?.at ?? 0, agentWrites()];
    const early = all.filter(({ at }) => at >= stopped && at < begin + 0.7 * SHORT_LIFE_MILLISECONDS);
    expect(new Set(early.map(({ certificate }) => certificate)), 'while it was not yet time').toEqual(
      new Set([certificateHash(old)]),
    );
    const late = all.filter(({ at }) => at >= since);
    expect(new Set(late.map(({ certificate }) => certificate)), 'since then').toEqual(new Set([next]));
    const { fingerprint256 } = new X509Certificate(await fresh('serving'));
    await waitFor(
      'the new certificate to be served',
      async () => (await servedFingerprint()) === fingerprint256,
      STEP,
    );
  },
  TEST_MILLISECONDS,
);

/** Returns the writes of the agent in the audit log of the API server. */
function agentWrites(): AuditedWrite[] {
  return auditedWrites(cluster).filter(({ writer }) => writer === 'berth-agent');
}

/** Returns the hash of a certificate in the form of the audit log. */
function certificateHash(pem: string): string {
  return new X509Certificate(pem).fingerprint256.replaceAll(':', '').toLowerCase();
}

function authority(): Authority {
  const pki = join(cluster.directory, 'pki');
  return {
    key: readKey(readFileSync(join(pki, 'ca.key'), 'utf8')),
    certificate: readFileSync(join(pki, 'ca.crt'), 'utf8'),
  };
}

/**
 * Replaces a certificate of the agent by one with a short life, and returns it. API servers sign no certificate for less than 10 minutes.
 */
async function shorten(kind: 'client' | 'serving', begin: number): Promise<string> {
  const key = await createKey();
  const certificate = await issue(authority(), {
    key,
    commonName: NODE_USER,
    organizations: ['system:nodes'],
    usages: [kind === 'client' ? 'client' : 'server'],
    ipAddresses: kind === 'serving' ? ['127.0.0.1'] : [],
    validity: { notBefore: new Date(begin), notAfter: new Date(begin + SHORT_LIFE_MILLISECONDS) },
  });
  shortUntil = begin + SHORT_LIFE_MILLISECONDS;
  writePair(identityFiles(agent.dataDirectory)[kind], { certificate, key: key.pem });
  return certificate;
}

/** Fingerprint of the certificate that the agent's HTTPS endpoint shows. */
async function servedFingerprint(): Promise<string> {
  const { status } = await cluster.client().get(NODES, { name: 'host' });
  const port = status?.daemonEndpoints?.kubeletEndpoint?.Port ?? 0;
  return await new Promise((resolve, reject) => {
    const socket = connect({ host: '127.0.0.1', port, rejectUnauthorized: false }, () => {
      resolve(socket.getPeerCertificate().fingerprint256);
      socket.destroy();
    });
    socket.once('error', reject);
  });
}

/** Requests a certificate as the node of this name. Its Node need not exist. */
async function askAs(
  nodeName: string,
  kind: 'client' | 'serving',
): Promise<{ name: string; answer: Promise<Certificate> }> {
  const key = await createKey();
  const clientCertificate = await issue(authority(), {
    key,
    commonName: `system:node:${nodeName}`,
    organizations: ['system:nodes'],
    usages: ['client'],
  });
  const { server, certificateAuthority } = await loadConnection({ kubeconfigPath: cluster.kubeconfig });
  const connection = { server, certificateAuthority, clientCertificate, clientKey: key.pem };
  const transport = new Transport(connection, { metrics: createMetrics() });
  const ipAddresses = kind === 'serving' ? [KUBELET_ADDRESS] : [];
  const request = { nodeName, kind, ipAddresses, expirationSeconds: LIFETIME_SECONDS };
  const answer = requestCertificate(
    new KubeClient(transport),
    request,
    AbortSignal.timeout(STEP.deadlineMilliseconds),
  ).finally(() => {
    void transport.close();
  });
  // The caller handles a refusal. Until then the rejection must not count as unhandled.
  answer.catch(() => undefined);
  const name = await waitFor(`a ${kind} request of ${nodeName}`, async () => {
    const { items } = await cluster.client().list(CERTIFICATE_SIGNING_REQUESTS);
    return items.map(({ metadata }) => metadata.name).find((one) => one.includes(`-${kind}-${nodeName}-`));
  });
  return { name, answer };
}

/** Resolves when the operator has judged a request that was made after all others. */
async function operatorIsThrough(): Promise<void> {
  const { answer } = await askAs('host', 'serving');
  await expect(answer).rejects.toThrow(/ForeignAddress/);
}

async function conditionsOf(name: string): Promise<unknown> {
  return (await cluster.client().get(CERTIFICATE_SIGNING_REQUESTS, { name })).status?.conditions;
}

test(
  'requests of nodes that are no hosts are left to others, who may approve them',
  async () => {
    const addresses = [{ type: 'InternalIP' as const, address: KUBELET_ADDRESS }];
    await cluster.client().create(NODES, { metadata: { name: 'kubelet' }, status: { addresses } });
    const asked = [await askAs('kubelet', 'client'), await askAs('kubelet', 'serving')];
    await operatorIsThrough();
    for (const { name, answer } of asked) {
      expect(await conditionsOf(name)).toBeUndefined();
      await cluster.kubectl(['certificate', 'approve', name]);
      expect((await answer).certificate).toContain('BEGIN CERTIFICATE');
    }
  },
  TEST_MILLISECONDS,
);

test(
  'a host whose Node is missing gets its renewal once the Node exists again',
  async () => {
    const { name, answer } = await askAs('late', 'client');
    await operatorIsThrough();
    expect(await conditionsOf(name)).toBeUndefined();
    const labels = { [HOST_KEY]: HOST_VALUE, [HOST_MARK]: HOST_VALUE };
    await cluster.client().create(NODES, { metadata: { name: 'late', labels } });
    expect((await answer).certificate).toContain('BEGIN CERTIFICATE');
    expect(await conditionsOf(name)).toMatchObject([{ type: 'Approved', reason: 'ApprovedByBerth' }]);
  },
  TEST_MILLISECONDS,
);

test(
  'a bootstrap token does not get the name of an existing host, and the request says why',
  async () => {
    const before = (await requests('client')).length;
    const { kubeconfig } = await cluster.createAgentBootstrap('host');
    const connection = await loadConnection({ kubeconfigPath: kubeconfig });
    const transport = new Transport(connection, { metrics: createMetrics() });
    try {
      const asked = requestCertificate(
        new KubeClient(transport),
        { nodeName: 'host', kind: 'client', ipAddresses: [], expirationSeconds: LIFETIME_SECONDS },
        AbortSignal.timeout(STEP.deadlineMilliseconds),
      );
      await expect(asked).rejects.toThrow(/was denied: NodeExists: Node host exists already/);
    } finally {
      await transport.close();
    }
    const denied = (await requests('client'))[before];
    expect(denied?.status?.certificate).toBeUndefined();
    expect(denied?.status?.conditions).toMatchObject([
      { type: 'Denied', status: 'True', reason: 'NodeExists' },
    ]);
    const { stdout } = await cluster.kubectl(['get', 'csr', denied?.metadata.name ?? '']);
    expect(stdout).toMatch(/Denied$/m);
  },
  TEST_MILLISECONDS,
);

test(
  'a host whose approved request nobody signs tells it in its log, and joins once there is a signer',
  async () => {
    const signer = cluster.component('kube-controller-manager');
    await signer.signal('SIGSTOP');
    const joining = AgentProcess.start(cluster, { nodeName: 'unsigned' });
    // The caller handles an error after the signer runs again. Until then the rejection must not count as unhandled.
    joining.catch(() => undefined);
    try {
      const log = await waitFor(
        'the words in the log of the agent',
        () => {
          const text = readFileSync(join(cluster.directory, 'unsigned.log'), 'utf8');
          return text.includes('no signer issues the certificate') && text;
        },
        STEP,
      );
      expect(log).toMatch(/The certificate request berth-client-unsigned-\w+ is approved/);
      const { stdout } = await cluster.kubectl(['get', 'csr']);
      expect(stdout).toMatch(/berth-client-unsigned-.* Approved$/m);
    } finally {
      await signer.signal('SIGCONT');
    }
    const host = await joining;
    await host.stop();
  },
  TEST_MILLISECONDS,
);

test(
  'the host goes on when its earlier certificates have ended',
  async () => {
    await waitFor(
      'the Lease to be renewed after their end',
      async () => {
        const { spec } = await cluster.client().get(LEASES, { namespace: 'kube-node-lease', name: 'host' });
        return Date.parse(spec?.renewTime ?? '') > shortUntil;
      },
      STEP,
    );
    expect(await servedFingerprint()).toBe(new X509Certificate(await fresh('serving')).fingerprint256);
  },
  TEST_MILLISECONDS,
);
