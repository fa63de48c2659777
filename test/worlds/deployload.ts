/** Many deployments over the HTTP API that all wait at the same time, on simulated hosts. */
import { startCluster, type Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { requestToken, SERVICE_ACCOUNTS } from '../../hack/cluster/tokens.ts';
import { waitFor } from '../../hack/wait.ts';
import { peakMegabytes } from '../bench/measure.ts';
import { IMAGE, numbered } from '../fixtures/vms.ts';
import { allowMetrics, readMetrics } from '../support/operatorlog.ts';
import { type HTTPAnswer, HTTPClient } from '../wires/httpapi.ts';

/** There are several callers, because one caller cannot have all waiting requests. */
const CALLERS = 5;
/** Time limit of the waits for all deployments. It is many times longer than a busy machine needs. */
const LIMIT_MILLISECONDS = 600_000;
const namespace = 'platform-default';
const VMS = `/api/v1/namespaces/${namespace}/vms`;

export interface DeployLoad {
  /** Number of answers with code 200, and of different names and hosts in them. */
  readonly answered: number;
  readonly names: number;
  readonly hosts: number;
  /** Seconds from the first request until all waited, and from there to the last answer. */
  readonly waitSeconds: number;
  readonly answerSeconds: number;
  /** Largest memory of the server's process, in MB of 1024². */
  readonly peakMegabytes: number;
}

/** Sends the deployments to a new cluster. Its operator starts when all of them wait. */
export async function deployMany(deployments: number, hosts: number): Promise<DeployLoad> {
  const cluster = await startCluster({ name: `deploys-${process.pid}`, hosts });
  try {
    await allowMetrics(cluster);
    const server = await cluster.startServer();
    const api = new HTTPClient(server);
    try {
      return await load({ cluster, server, api }, deployments);
    } finally {
      await api.close();
      await server.process.stop();
    }
  } finally {
    await cluster.stop();
  }
}

interface Parts {
  readonly cluster: Cluster;
  readonly server: ServerProcess;
  readonly api: HTTPClient;
}

async function load(parts: Parts, deployments: number): Promise<DeployLoad> {
  const tokens: string[] = [];
  for (const name of numbered('caller', CALLERS)) {
    tokens.push(await callerToken(parts, name));
  }
  const deploy = async (_: unknown, index: number): Promise<HTTPAnswer> =>
    await parts.api.call(VMS, { method: 'POST', token: tokens[index % CALLERS], body: { image: IMAGE } });
  const began = performance.now();
  const allWait = async (): Promise<number> => {
    await waitFor('all deployments to wait', async () => (await waiting(parts)) === deployments, {
      deadlineMilliseconds: LIMIT_MILLISECONDS,
    });
    const seconds = secondsSince(began);
    await parts.cluster.startOperator();
    return seconds;
  };
  const [waitSeconds, ...answers] = await Promise.all([
    allWait(),
    ...Array.from({ length: deployments }, deploy),
  ]);
  const good = answers.filter(({ status }) => status === 200).map(({ body }) => body as DeployedVM);
  return {
    answered: good.length,
    names: new Set(good.map(({ name }) => name)).size,
    hosts: new Set(good.map(({ node }) => node)).size,
    waitSeconds,
    answerSeconds: secondsSince(began) - waitSeconds,
    peakMegabytes: peakMegabytes(parts.server.process.pid),
  };
}

interface DeployedVM {
  readonly name: string;
  readonly node: string;
}

async function callerToken({ cluster, api }: Parts, name: string): Promise<string> {
  const account = { namespace, name };
  await cluster.client().create(SERVICE_ACCOUNTS, { metadata: account });
  const role = ['rolebinding', name, '--clusterrole=berth-role-dev', `--serviceaccount=${namespace}:${name}`];
  await cluster.kubectl(['-n', namespace, 'create', ...role]);
  const token = await requestToken(cluster.client(), account, 3600);
  await waitFor('the rights', async () => (await api.call(VMS, { token })).status === 200);
  return token;
}

async function waiting({ cluster, server }: Parts): Promise<number> {
  const metrics = await readMetrics(cluster, server.process);
  return Number(/^berth_http_waiting_requests (\d+)$/m.exec(metrics)?.[1]);
}

function secondsSince(began: number): number {
  return (performance.now() - began) / 1000;
}
