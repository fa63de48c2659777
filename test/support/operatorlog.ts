/** Reads the log of an operator, and the metrics of operators and agents. */
import { readFileSync } from 'node:fs';
import { Agent, get } from 'node:https';
import { text } from 'node:stream/consumers';
import type { KubeObject, Resource } from '../../kube/objects.ts';
import type { Cluster, OperatorProcess } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { isError, type LogLine, readLogLines } from './loglines.ts';

const READER = 'metrics-reader';

/**
 * Returns log lines that must not exist. These are errors, and refusals of the operator's own writes (403: a permission is
 * missing, 422: a status is invalid).
 */
export function faultsIn(file: string): LogLine[] {
  return readLogLines(readFileSync(file, 'utf8')).filter(
    (line) => isError(line) || line.err?.status === 403 || line.err?.status === 422,
  );
}

/** Returns the metrics of an operator or agent, read by an account with the permission to read them. */
export async function readMetrics(
  cluster: Cluster,
  { metricsUrl }: Pick<OperatorProcess, 'metricsUrl'>,
): Promise<string> {
  const { stdout } = await cluster.kubectl(['create', 'token', READER, '-n', 'berth-system']);
  return await new Promise((resolve, reject) => {
    const request = get(
      metricsUrl,
      // The certificate is not checked, because an operator makes a new one at each start and the test needs only the numbers.
      {
        headers: { authorization: `Bearer ${stdout.trim()}` },
        agent: new Agent({ rejectUnauthorized: false }),
      },
      (response) => {
        if (response.statusCode !== 200) {
          reject(new Error(`metrics: HTTP ${response.statusCode}`));
        }
        text(response).then(resolve, reject);
      },
    );
    request.once('error', reject);
  });
}

/**
 * Waits until the operator's cache contains this version of the object. A VM that is created afterwards is not resolved with an
 * older version. The test must have called `allowMetrics`.
 */
export async function untilKnown<T extends KubeObject>(
  cluster: Cluster,
  operator: OperatorProcess,
  { apiVersion, plural }: Resource<T>,
  { metadata }: T,
): Promise<void> {
  const label = `resource="${plural}.${apiVersion.split('/')[0]}"`;
  await waitFor(`the operator to know ${plural} ${metadata.name} as it is`, async () => {
    const lines = (await readMetrics(cluster, operator)).split('\n');
    const line = lines.find((one) => one.startsWith('store_resource_version{') && one.includes(label));
    return Number(line?.split(' ').at(-1)) >= Number(metadata.resourceVersion);
  });
}

/** Creates the account that `readMetrics` uses, and lets it read the metrics of operators. */
export async function allowMetrics(cluster: Cluster): Promise<void> {
  await cluster.kubectl(['create', 'serviceaccount', READER, '-n', 'berth-system']);
  await bind(cluster, 'berth-metrics-reader');
}

/** Lets the same account read the metrics of agents. */
export async function allowAgentMetrics(cluster: Cluster): Promise<void> {
  const role = 'node-metrics-reader';
  await cluster.kubectl(['create', 'clusterrole', role, '--verb=get', '--resource=nodes/metrics']);
  await bind(cluster, role);
}

async function bind(cluster: Cluster, role: string): Promise<void> {
  const binding = ['create', 'clusterrolebinding', `${READER}-${role}`, `--clusterrole=${role}`];
  await cluster.kubectl([...binding, `--serviceaccount=berth-system:${READER}`]);
}
