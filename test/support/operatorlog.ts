/** What an operator said in its log, and in its metrics, which agents have too. */
import { readFileSync } from 'node:fs';
import { Agent, get } from 'node:https';
import { text } from 'node:stream/consumers';
import type { KubeObject, Resource } from '../../kube/objects.ts';
import type { Cluster, OperatorProcess } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';

export interface LogLine {
  level: number;
  msg: string;
  err?: { message: string; status?: number };
}

const ERROR_LEVEL = 50;
const READER = 'metrics-reader';

function readLog(file: string): LogLine[] {
  const lines = readFileSync(file, 'utf8').split('\n');
  return lines.filter((line) => line.startsWith('{')).map((line) => JSON.parse(line) as LogLine);
}

/** Lines that must not be there: errors, and refusals of the operator's own writes (403: a right is missing, 422: an invalid status). */
export function faultsIn(file: string): LogLine[] {
  return readLog(file).filter(
    ({ level, err }) => level >= ERROR_LEVEL || err?.status === 403 || err?.status === 422,
  );
}

/** The metrics of an operator or agent, as somebody who may read them sees them. */
export async function readMetrics(
  cluster: Cluster,
  { metricsUrl }: Pick<OperatorProcess, 'metricsUrl'>,
): Promise<string> {
  const { stdout } = await cluster.kubectl(['create', 'token', READER, '-n', 'berth-system']);
  return await new Promise((resolve, reject) => {
    const request = get(
      metricsUrl,
      // An operator's own certificate is made anew at each start; what is tested here are the numbers.
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

/** The operator's cache has this object as it is here: a VM that is made from now on gets nothing older. See `allowMetrics`. */
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

/** Makes the account that `readMetrics` uses, for operators. */
export async function allowMetrics(cluster: Cluster): Promise<void> {
  await cluster.kubectl(['create', 'serviceaccount', READER, '-n', 'berth-system']);
  await bind(cluster, 'berth-metrics-reader');
}

/** The same account may read those of agents too. */
export async function allowAgentMetrics(cluster: Cluster): Promise<void> {
  const role = 'node-metrics-reader';
  await cluster.kubectl(['create', 'clusterrole', role, '--verb=get', '--resource=nodes/metrics']);
  await bind(cluster, role);
}

async function bind(cluster: Cluster, role: string): Promise<void> {
  const binding = ['create', 'clusterrolebinding', `${READER}-${role}`, `--clusterrole=${role}`];
  await cluster.kubectl([...binding, `--serviceaccount=berth-system:${READER}`]);
}
