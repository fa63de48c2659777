/**
 * Measures the HTTP API beside the API server: lists of VMs, and deployments that are accepted and not waited for. Both sides get the same
 * requests from the same client with the same token, in turns.
 */
import { bundle } from '../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { requestToken, SERVICE_ACCOUNTS } from '../../hack/cluster/tokens.ts';
import { waitFor } from '../../hack/wait.ts';
import { DEV_ROLE } from '../../api/v1alpha1/names.ts';
import { pathOf } from '../../kube/objects.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { allowMetrics, readMetrics } from '../support/operatorlog.ts';
import { hostsAreReady, IMAGE_ENVIRONMENT, IMAGE_OPERATOR } from './contestants.ts';
import { apiServerDoor, HTTPSide, serverDoor, type Work } from './httpside.ts';
import { runLoad } from './load.ts';
import { peakMegabytes, residentMegabytes } from './measure.ts';
import { quantile } from './report.ts';

const SLOTS_PER_HOST = 4;
/** Namespace of the VMs that are listed. Their number does not change. */
const LISTED = 'platform-bench';
/** Namespace of the VMs that are deployed. They are deleted after each turn. */
const DEPLOYED = 'platform-bench-deploys';
const ACCOUNT = { namespace: LISTED, name: 'bench' };
const TOKEN_SECONDS = 3 * 3600;
/** Clients at the same time in the measurement of requests per second. More would only wait for the two processors. */
const CLIENTS = 8;
/** Requests before each measurement, for connections and for compilation of code. */
const WARM_UP = 20;

/** Number of requests in each turn: one after the other, and by all clients. A deployment takes much less time than a list. */
const REQUESTS = { list: { alone: 200, crowd: 80 }, deploy: { alone: 300, crowd: 800 } } as const;

/** Figures of one turn. */
export interface Batch {
  /** Milliseconds of a request, when no other is under way. */
  p50: number;
  p99: number;
  /** Requests per second of all clients. */
  perSecond: number;
}

export interface Compared {
  /** One turn for each round. */
  apiServer: Batch[];
  server: Batch[];
  /** 99th percentile of the delay of the server's event loop in each of its turns, in milliseconds. */
  delays: number[];
}

export interface HTTPFigures {
  vms: number;
  work: Record<Work, Compared>;
  /** Milliseconds from the start of the process until it is ready. */
  startMilliseconds: number;
  /** Memory of the process before the first request, and its peak, in MB of 1024². */
  idleMegabytes: number;
  peakMegabytes: number;
}

export async function measureHTTP({ vms, rounds }: { vms: number; rounds: number }): Promise<HTTPFigures> {
  await bundle();
  const cluster = await startCluster({ name: 'bench-http', hosts: Math.ceil(vms / SLOTS_PER_HOST) });
  try {
    await prepare(cluster, vms);
    const began = performance.now();
    const server = await cluster.startServer({ bundle: true, environment: IMAGE_ENVIRONMENT });
    const startMilliseconds = performance.now() - began;
    const idleMegabytes = residentMegabytes(server.process.pid);
    const work = await measure(cluster, server, rounds);
    return { vms, work, startMilliseconds, idleMegabytes, peakMegabytes: peakMegabytes(server.process.pid) };
  } finally {
    await cluster.stop();
  }
}

/** Makes VMs that run. The operator then ends, because it would use the processors for the deployments of both sides. */
async function prepare(cluster: Cluster, vms: number): Promise<void> {
  await cluster.createNamespace(LISTED);
  await cluster.createNamespace(DEPLOYED);
  const operator = await cluster.startOperator(IMAGE_OPERATOR);
  await hostsAreReady(cluster);
  await runLoad(cluster.client(), LISTED, vms);
  await operator.stop();
  await allowMetrics(cluster);
  await cluster.client().create(SERVICE_ACCOUNTS, { metadata: ACCOUNT });
  const subject = `--serviceaccount=${ACCOUNT.namespace}:${ACCOUNT.name}`;
  for (const namespace of [LISTED, DEPLOYED]) {
    const binding = ['create', 'rolebinding', ACCOUNT.name, `--clusterrole=${DEV_ROLE}`, subject];
    await cluster.kubectl(['-n', namespace, ...binding]);
  }
}

async function measure(
  cluster: Cluster,
  server: ServerProcess,
  rounds: number,
): Promise<Record<Work, Compared>> {
  const token = await requestToken(cluster.client(), ACCOUNT, TOKEN_SECONDS);
  const places = { token, listed: LISTED, deployed: DEPLOYED };
  const owner = `system:serviceaccount:${ACCOUNT.namespace}:${ACCOUNT.name}`;
  const connection = await loadConnection({ kubeconfigPath: cluster.kubeconfig });
  await using apiServer = new HTTPSide(apiServerDoor(connection, owner), places);
  await using http = new HTTPSide(serverDoor(server), places);
  const compared = (): Compared => ({ apiServer: [], server: [], delays: [] });
  const work = { list: compared(), deploy: compared() };
  for (const side of [apiServer, http]) {
    await waitFor('the rights of the token', async () => {
      await side.send('list');
      await side.send('deploy');
      return true;
    });
  }
  for (let round = 0; round < rounds; round += 1) {
    for (const kind of ['list', 'deploy'] as const) {
      const batches = [
        async () => {
          work[kind].apiServer.push(await runBatch(apiServer, kind));
        },
        async () => {
          await delayOf(cluster, server);
          work[kind].server.push(await runBatch(http, kind));
          work[kind].delays.push(await delayOf(cluster, server));
        },
      ];
      for (const run of round % 2 === 0 ? batches : batches.toReversed()) {
        await run();
        await cluster.client().raw('DELETE', pathOf(VMS, { namespace: DEPLOYED }));
      }
    }
  }
  return work;
}

async function runBatch(side: HTTPSide, work: Work): Promise<Batch> {
  const { alone, crowd } = REQUESTS[work];
  for (let count = 0; count < WARM_UP; count += 1) {
    await side.send(work);
  }
  const times: number[] = [];
  for (let count = 0; count < alone; count += 1) {
    const began = performance.now();
    await side.send(work);
    times.push(performance.now() - began);
  }
  const began = performance.now();
  const batches = Array(crowd).keys();
  const client = async (): Promise<void> => {
    for (const _ of batches) {
      await side.send(work);
    }
  };
  await Promise.all(Array.from({ length: CLIENTS }, client));
  const perSecond = (crowd * 1000) / (performance.now() - began);
  return { p50: quantile(times, 0.5), p99: quantile(times, 0.99), perSecond };
}

/** Returns the 99th percentile since the last call, in milliseconds. Each read of the metrics begins a new histogram. */
async function delayOf(cluster: Cluster, { process }: ServerProcess): Promise<number> {
  const metrics = await readMetrics(cluster, process);
  return Number(/^nodejs_eventloop_lag_p99_seconds (\S+)$/m.exec(metrics)?.[1]) * 1000;
}
