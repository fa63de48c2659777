/** A host of one cluster that joins another: a new cluster with the same name, or one that moved to another address. */
import { X509Certificate } from 'node:crypto';
import { cpSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { parse, stringify } from 'yaml';
import { loadConfig } from '../../../agent/config.ts';
import { identityFiles, readPair } from '../../../agent/identity/certificates.ts';
import { JoinError, takeIdentity } from '../../../agent/identity/identity.ts';
import { type Lease, LEASES } from '../../../kube/core.ts';
import { createMetrics } from '../../../kube/metrics.ts';
import { AgentProcess } from '../../../hack/cluster/agent.ts';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import { waitFor } from '../../../hack/wait.ts';

const STEP = { deadlineMilliseconds: 90_000 };
const TEST_MILLISECONDS = 240_000;
/** Address of the cluster before its move. Nothing listens there. */
const FORMER_SERVER = 'https://127.0.0.1:1';

let former: Cluster;
let cluster: Cluster;
let agent: AgentProcess | undefined;
/** Data directory of the host in each cluster. */
let dataDirectory: string;
/** Copy of the data directory from the time when the host left its former cluster. */
let leftWith: string;

beforeAll(async () => {
  leftWith = mkdtempSync(join(tmpdir(), 'berth-rejoin-'));
  former = await startCluster({ name: `host-rejoin-former-${process.pid}`, operator: true });
  cluster = await startCluster({ name: `host-rejoin-${process.pid}`, operator: true });
  agent = await AgentProcess.start(former, { nodeName: 'host' });
  ({ dataDirectory } = agent);
  await waitFor('a serving certificate', () => readPair(identityFiles(dataDirectory).serving), STEP);
  await agent.stop();
  agent = undefined;
  cpSync(dataDirectory, leftWith, { recursive: true });
});

afterAll(async () => {
  await agent?.stop();
  await cluster?.stop();
  await former?.stop();
  rmSync(leftWith, { recursive: true, force: true });
});

function isFrom(which: Cluster, kind: 'client' | 'serving'): boolean {
  const pem = readPair(identityFiles(dataDirectory)[kind])?.certificate;
  const authority = new X509Certificate(readFileSync(join(which.directory, 'pki', 'ca.crt')));
  return pem !== undefined && new X509Certificate(pem).verify(authority.publicKey);
}

async function lease(): Promise<Lease> {
  return await cluster.client().get(LEASES, { namespace: 'kube-node-lease', name: 'host' });
}

/** Starts the agent again and waits until it has renewed its Lease. */
async function isHeardOf(started: AgentProcess): Promise<void> {
  const before = (await lease()).spec?.renewTime;
  await started.startAgain();
  await waitFor('the Lease to be renewed', async () => (await lease()).spec?.renewTime !== before, STEP);
}

test(
  'the data directory of a host does not keep it from joining another cluster, with two new certificates',
  async () => {
    expect([isFrom(former, 'client'), isFrom(former, 'serving')]).toEqual([true, true]);
    agent = await AgentProcess.start(cluster, { nodeName: 'host', config: { dataDirectory } });
    expect(isFrom(cluster, 'client')).toBe(true);
    await waitFor('a serving certificate of this cluster', () => isFrom(cluster, 'serving'), STEP);
    expect(readFileSync(agent.logFile, 'utf8')).toContain(
      'The cluster refuses the certificate of this host; the host joins again',
    );
  },
  TEST_MILLISECONDS,
);

test(
  'a host uses the address of the cluster in its bootstrap kubeconfig, and remembers it',
  async () => {
    const host = agent!;
    await host.stop();
    const { kubeconfig } = identityFiles(dataDirectory);
    const text = parse(readFileSync(kubeconfig, 'utf8')) as { clusters: { cluster: object }[] };
    const authority = readFileSync(join(former.directory, 'pki', 'ca.crt')).toString('base64');
    const moved = { server: FORMER_SERVER, 'certificate-authority-data': authority };
    text.clusters[0]!.cluster = moved;
    writeFileSync(kubeconfig, stringify(text));
    await isHeardOf(host);
    expect(readFileSync(kubeconfig, 'utf8')).toContain(`server: ${cluster.server}\n`);
    await host.stop();
    const { bootstrapKubeconfig } = loadConfig(host.configFile);
    renameSync(bootstrapKubeconfig!, `${bootstrapKubeconfig}.away`);
    try {
      await isHeardOf(host);
    } finally {
      renameSync(`${bootstrapKubeconfig}.away`, bootstrapKubeconfig!);
    }
  },
  TEST_MILLISECONDS,
);

test('a host of another cluster does not take the name of an existing host, and keeps its data', async () => {
  const config = { ...loadConfig(agent!.configFile), dataDirectory: leftWith };
  const { client, serving } = identityFiles(leftWith);
  const before = [readPair(client), readPair(serving)];
  const taken = takeIdentity({
    config,
    logger: pino({ level: 'silent' }),
    metrics: createMetrics(),
    signal: AbortSignal.timeout(STEP.deadlineMilliseconds),
  });
  await expect(taken).rejects.toThrow(JoinError);
  await expect(taken).rejects.toThrow(/NodeExists: Node host exists already/);
  expect([readPair(client), readPair(serving)]).toEqual(before);
});
