/** Times of jobs that the console shows from Prometheus. A real Prometheus has them in blocks that promtool has made. */
import { randomBytes } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { TimesAnswer } from '../../api/http/consoletimes.ts';
import { run } from '../../base/exec.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { type ProcessRecord, startProcess, stopProcess } from '../../hack/cluster/processes.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import { HTTPClient } from '../wires/httpapi.ts';

const namespace = `platform-prom-${randomBytes(4).toString('hex')}`;
const DEFAULT = 'platform-default';
const MINUTE = 60;
/** Seconds between two jobs. They are in step with neither the scrapes nor the five minutes. */
const BETWEEN = 47;
/** Jobs of two hours, and the share by which an estimate may differ. */
const JOBS = (120 * MINUTE) / BETWEEN;
const SLACK = 0.15;
/** Time limit in milliseconds of promtool on a busy machine. */
const PROMTOOL_MILLISECONDS = 60_000;
/** Seconds between two scrapes. */
const SCRAPE = 30;

let cluster: Cluster;
let server: ServerProcess;
let prometheus: ProcessRecord;
let folder: string;
let api: HTTPClient;
let lead: string;
let member: string;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  folder = join(cluster.directory, `prometheus-${namespace}`);
  await mkdir(folder);
  const address = `127.0.0.1:${await freePort()}`;
  prometheus = await startPrometheus(address);
  server = await cluster.startServer({
    name: `server-${namespace}`,
    config: { prometheus: { address: `http://${address}`, labels: { cluster: 'here' } } },
  });
  api = new HTTPClient(server);
  lead = await accountToken(cluster, { namespace, name: 'lead' }, { role: 'cluster-admin', in: 'cluster' });
  member = await accountToken(cluster, { namespace, name: 'member' }, { role: 'berth-role-dev' });
});

afterAll(async () => {
  await server?.process.stop();
  await stopProcess(cluster.directory, prometheus);
});

/** Starts Prometheus with jobs of the last two hours. The operator has restarted one hour ago, so its counters began again. */
async function startPrometheus(address: string): Promise<ProcessRecord> {
  const now = Math.floor(Date.now() / 1_000);
  const begin = now - 120 * MINUTE;
  const lines = ['waited', 'ran'].flatMap((measure) => {
    const name = measure === 'waited' ? 'berth_job_wait_seconds' : 'berth_job_run_seconds';
    return [`# TYPE ${name} histogram`, ...samples(name, { begin, end: now - SCRAPE })];
  });
  await writeFile(join(folder, 'metrics.txt'), `${lines.join('\n')}\n# EOF\n`);
  const data = join(folder, 'data');
  await run('promtool', ['tsdb', 'create-blocks-from', 'openmetrics', join(folder, 'metrics.txt'), data], {
    timeoutMilliseconds: PROMTOOL_MILLISECONDS,
  });
  await writeFile(join(folder, 'prometheus.yaml'), 'global: {}\n');
  const record = await startProcess(cluster.directory, {
    name: `prometheus-${namespace}`,
    file: 'prometheus',
    arguments: [
      `--config.file=${join(folder, 'prometheus.yaml')}`,
      `--storage.tsdb.path=${data}`,
      `--web.listen-address=${address}`,
    ],
  });
  await waitFor('Prometheus to be ready', async () => (await fetch(`http://${address}/-/ready`)).ok);
  return record;
}

/** Jobs of 4 s in the default namespace, and as many of another cluster. */
function samples(name: string, { begin, end }: { begin: number; end: number }): string[] {
  const lines: string[] = [];
  for (const [cluster, seconds] of [
    ['here', 4],
    ['elsewhere', 4_000],
  ] as const) {
    const labels = `cluster="${cluster}",vm_namespace="${DEFAULT}"`;
    for (const [suffix, le, weight] of [
      ['bucket', '5', seconds <= 5 ? 1 : 0],
      ['bucket', '+Inf', 1],
      ['sum', undefined, seconds],
      ['count', undefined, 1],
    ] as const) {
      const all = le === undefined ? labels : `${labels},le="${le}"`;
      for (let time = begin; time <= end; time += SCRAPE) {
        const since = time < begin + 60 * MINUTE ? begin : begin + 60 * MINUTE;
        lines.push(`${name}_${suffix}{${all}} ${Math.floor((time - since) / BETWEEN) * weight} ${time}`);
      }
    }
  }
  return lines;
}

async function read(path: string, token: string): Promise<TimesAnswer> {
  const { status, body } = await api.call(path, { token });
  expect(status).toBe(200);
  return body;
}

it('shows the jobs of this cluster that Prometheus knows, over a restart of the operator', async () => {
  const { prometheus: times, documents, refusal } = await read('/console/times', lead);
  expect([documents, refusal]).toEqual([undefined, undefined]);
  // Prometheus estimates between scrapes.
  for (const measure of ['waited', 'ran'] as const) {
    const { count = 0, sum = 0, highest = 0 } = times?.day[measure] ?? {};
    expect(Math.abs(count / JOBS - 1)).toBeLessThan(SLACK);
    expect([sum / count, highest]).toEqual([expect.closeTo(4, 1), expect.closeTo(4.75, 1)]);
  }
  expect(times?.hour.waited.count).toBeLessThan((JOBS / 2) * (1 + SLACK));
  expect(times?.entries.length).toBeGreaterThan(20);
});

it('asks for the rights as without Prometheus, and never for a query of the caller', async () => {
  for (const path of ['/console/times', `/console/times/namespaces/${DEFAULT}`]) {
    expect((await api.call(path, { token: member })).status).toBe(403);
  }
  const own = `/console/times/namespaces/${namespace}`;
  expect((await api.call(own)).status).toBe(401);
  const query = `?query=${encodeURIComponent('{__name__=~".+"}')}`;
  // The namespace is younger than five minutes, so what has its name in Prometheus can be of an earlier one.
  expect((await api.call(own + query, { token: member })).status).toBe(422);
  expect((await read(own, member)).prometheus?.entries).toEqual([]);
});

it('falls back to what the operator keeps, and says so, when Prometheus does not answer', async () => {
  const config = { prometheus: { address: `http://127.0.0.1:${await freePort()}` } };
  const lonely = await cluster.startServer({ name: `lonely-${namespace}`, config });
  try {
    const { body } = await new HTTPClient(lonely).call('/console/times', { token: lead });
    expect(body).toMatchObject({
      documents: expect.any(Array),
      refusal:
        'The HTTP API gets no answer from Prometheus. An administrator finds the cause in the log of the HTTP API',
    });
    expect(body['prometheus']).toBeUndefined();
  } finally {
    await lonely.process.stop();
  }
});
