/** What an operator said in its log and its metrics. */
import { readFileSync } from 'node:fs';
import { Agent, get } from 'node:https';
import { text } from 'node:stream/consumers';
import type { Cluster, OperatorProcess } from '../cluster/index.ts';

export interface LogLine {
  level: number;
  msg: string;
  err?: { message: string; status?: number };
}

const ERROR_LEVEL = 50;
const READER = 'metrics-reader';

export function readLog(file: string): LogLine[] {
  const lines = readFileSync(file, 'utf8').split('\n');
  return lines.filter((line) => line.startsWith('{')).map((line) => JSON.parse(line) as LogLine);
}

/** Lines that must not be there: errors, and refusals of the operator's own writes (403: a right is missing, 422: an invalid status). */
export function faultsIn(file: string): LogLine[] {
  return readLog(file).filter(
    ({ level, err }) => level >= ERROR_LEVEL || err?.status === 403 || err?.status === 422,
  );
}

/** The operator's metrics, as somebody who may read them sees them. */
export async function readMetrics(cluster: Cluster, operator: OperatorProcess): Promise<string> {
  const { stdout } = await cluster.kubectl(['create', 'token', READER, '-n', 'berth-system']);
  return new Promise((resolve, reject) => {
    const request = get(
      operator.metricsUrl,
      // The operator's own certificate is made anew at each start; what is tested here are the numbers.
      {
        headers: { authorization: `Bearer ${stdout.trim()}` },
        agent: new Agent({ rejectUnauthorized: false }),
      },
      (response) => {
        if (response.statusCode !== 200) reject(new Error(`metrics: HTTP ${response.statusCode}`));
        text(response).then(resolve, reject);
      },
    );
    request.once('error', reject);
  });
}

/** Makes the account that `readMetrics` uses. */
export async function allowMetrics(cluster: Cluster): Promise<void> {
  await cluster.kubectl(['create', 'serviceaccount', READER, '-n', 'berth-system']);
  await cluster.kubectl([
    'create',
    'clusterrolebinding',
    READER,
    '--clusterrole=berth-metrics-reader',
    `--serviceaccount=berth-system:${READER}`,
  ]);
}
