/** A Prometheus on a node, configured as docs/metrics.md says, with the token of a ServiceAccount. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parse, stringify } from 'yaml';
import { HOST_KEY, HOST_VALUE } from '../../../api/v1alpha1/names.ts';
import { NODES } from '../../../kube/core.ts';
import { startProcess } from '../../cluster/processes.ts';
import { waitFor } from '../../support/wait.ts';
import type { Installed } from './world.ts';

const DOCUMENT = join(import.meta.dirname, '..', '..', '..', 'docs', 'metrics.md');
/** Where a Pod has its token; this Prometheus is none. */
const IN_POD = '/var/run/secrets/kubernetes.io/serviceaccount';
const SERVICE_NAME = 'berth-operator.berth-system.svc';
const LISTEN = '127.0.0.1:9090';

interface Sample {
  metric: Record<string, string>;
  value: [number, string];
}

interface Scrape {
  job_name: string;
  [field: string]: unknown;
}

export class Prometheus {
  readonly #berth: Installed;

  private constructor(berth: Installed) {
    this.#berth = berth;
  }

  /** Ends with the cluster. `account` is NAMESPACE/NAME; it may read what docs/metrics.md says a reader needs. */
  static async start(berth: Installed, account: { namespace: string; name: string }): Promise<Prometheus> {
    const folder = berth.cluster.directory;
    const { stdout } = await berth.cluster.kubectl([
      'create',
      'token',
      account.name,
      '--namespace',
      account.namespace,
    ]);
    await writeFile(join(folder, 'token'), stdout.trim(), { mode: 0o600 });
    const config = {
      global: { scrape_interval: '1s', scrape_timeout: '1s' },
      scrape_configs: await scrapes(berth),
    };
    await writeFile(join(folder, 'prometheus.yaml'), stringify(config));
    const [node] = berth.nodes;
    const inside = [`--net=/run/netns/${node?.namespace}`, 'prometheus'];
    await startProcess(folder, {
      name: 'prometheus',
      file: 'nsenter',
      arguments: [
        ...inside,
        `--config.file=${join(folder, 'prometheus.yaml')}`,
        `--storage.tsdb.path=${join(folder, 'prometheus')}`,
        `--web.listen-address=${LISTEN}`,
      ],
    });
    return new Prometheus(berth);
  }

  /** True once a query by one label has this answer, by the label's values; scrapes come every second. Rejects when it never has. */
  async untilSays(query: string, wanted: Record<string, number>): Promise<boolean> {
    return await waitFor(`${query} to be ${JSON.stringify(wanted)}`, async () => {
      const found = await this.#query(query);
      if (JSON.stringify(found) === JSON.stringify(wanted)) return true;
      throw new Error(`it is ${JSON.stringify(found)}`);
    });
  }

  async #query(query: string): Promise<Record<string, number>> {
    const [node] = this.#berth.nodes;
    const ask = ['--silent', '--fail', '--get', '--data-urlencode', `query=${query}`];
    const text = await node?.run('curl', ...ask, `http://${LISTEN}/api/v1/query`);
    const { data } = JSON.parse(text ?? '') as { data: { result: Sample[] } };
    const answers = data.result.map(
      ({ metric, value }) => [Object.values(metric).join(), Number(value[1])] as const,
    );
    return Object.fromEntries(answers.toSorted(([one], [other]) => one.localeCompare(other)));
  }
}

/** What the documentation tells people to write. Nothing looks up names here, and Debian's build finds no targets by itself. */
async function scrapes(berth: Installed): Promise<Scrape[]> {
  const folder = berth.cluster.directory;
  const block = /```yaml\n(scrape_configs:[\s\S]*?)```/.exec(await readFile(DOCUMENT, 'utf8'))?.[1] ?? '';
  const text = block
    .replaceAll(`${IN_POD}/token`, join(folder, 'token'))
    .replaceAll(`${IN_POD}/ca.crt`, join(folder, 'pki', 'ca.crt'))
    .replaceAll(SERVICE_NAME, await berth.serviceAddress());
  const { scrape_configs: jobs } = parse(text) as { scrape_configs: Scrape[] };
  const hosts = await hostTargets(berth);
  return jobs.map((job) => {
    const { kubernetes_sd_configs: discovery, relabel_configs: _, ...rest } = job;
    return discovery === undefined ? job : { ...rest, static_configs: hosts };
  });
}

/** As Prometheus would find them. */
async function hostTargets(berth: Installed): Promise<object[]> {
  const { items } = await berth.cluster.client().list(NODES, { labelSelector: `${HOST_KEY}=${HOST_VALUE}` });
  return items.map(({ metadata, status }) => {
    const { address } = status?.addresses?.find(({ type }) => type === 'InternalIP') ?? {};
    const port = status?.daemonEndpoints?.kubeletEndpoint?.Port;
    return { targets: [`${address}:${port}`], labels: { node: metadata.name } };
  });
}
