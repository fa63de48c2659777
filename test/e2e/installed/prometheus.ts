/**
 * A Prometheus on a node, configured as in docs/reference/metrics.md, with the token of a ServiceAccount and a stand-in for its discovery.
 */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parse, stringify } from 'yaml';
import { NODES } from '../../../kube/core.ts';
import { startProcess } from '../../../hack/cluster/processes.ts';
import { waitFor } from '../../../hack/wait.ts';
import { type Installed, ROLLOUT } from '../../worlds/installed.ts';

const DOCUMENT = join(import.meta.dirname, '..', '..', '..', 'docs', 'reference', 'metrics.md');
/** Folder of the token in a Pod. This Prometheus does not run in a Pod. */
const IN_POD = '/var/run/secrets/kubernetes.io/serviceaccount';
const SERVICE_NAME = 'berth-operator.berth-system.svc';
const LISTEN = '127.0.0.1:9090';

interface Sample {
  metric: Record<string, string>;
  value: [number, string];
}

interface Discovery {
  role: string;
  selectors: { role: string; label: string }[];
}

interface Lookup {
  names: string[];
  port: number;
}

interface Scrape {
  job_name: string;
  kubernetes_sd_configs?: Discovery[];
  dns_sd_configs?: Lookup[];
  [field: string]: unknown;
}

export class Prometheus {
  readonly #berth: Installed;

  private constructor(berth: Installed) {
    this.#berth = berth;
  }

  /** Starts Prometheus, which ends with the cluster. `account` is NAMESPACE/NAME with the rights that docs/reference/metrics.md names. */
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

  /**
   * Returns true once a query by one label has this answer. Scrapes come every second. @throws Error if the answer never comes.
   */
  async untilSays(query: string, wanted: Record<string, number>): Promise<boolean> {
    const says = async (): Promise<true> => {
      const found = await this.#query(query);
      if (JSON.stringify(found) === JSON.stringify(wanted)) {
        return true;
      }
      throw new Error(`it is ${JSON.stringify(found)}`);
    };
    return await waitFor(`${query} to be ${JSON.stringify(wanted)}`, says, ROLLOUT);
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

/**
 * Returns the scrape configurations of the documentation with their relabelling. Debian's Prometheus has no discovery of Kubernetes. So a
 * stand-in gives the targets and labels that discovery would find. Names are replaced by addresses, because nothing resolves them here.
 */
async function scrapes(berth: Installed): Promise<Scrape[]> {
  const folder = berth.cluster.directory;
  const block = /```yaml\n(scrape_configs:[\s\S]*?)```/.exec(await readFile(DOCUMENT, 'utf8'))?.[1] ?? '';
  const text = block
    .replaceAll(`${IN_POD}/token`, join(folder, 'token'))
    .replaceAll(`${IN_POD}/ca.crt`, join(folder, 'pki', 'ca.crt'))
    .replaceAll(SERVICE_NAME, await berth.serviceAddress());
  const { scrape_configs: jobs } = parse(text) as { scrape_configs: Scrape[] };
  return await Promise.all(
    jobs.map(async ({ kubernetes_sd_configs: discovery, dns_sd_configs: lookups, ...job }) => ({
      ...job,
      ...(discovery && { static_configs: await discovered(berth, discovery) }),
      ...(lookups && { static_configs: await resolved(berth, lookups) }),
    })),
  );
}

/** Returns the targets that Prometheus finds by DNS: the addresses of the Pods behind headless Services. */
async function resolved(berth: Installed, lookups: readonly Lookup[]): Promise<object[]> {
  return await Promise.all(
    lookups.map(async ({ names, port }) => {
      const found = await Promise.all(names.map((name) => berth.addressesBehind(name.split('.')[0] ?? '')));
      return { targets: found.flat().map((address) => `${address}:${port}`) };
    }),
  );
}

/** Returns the targets that Prometheus finds for Nodes: the kubelet's port at the internal address, with name and labels as meta labels. */
async function discovered(berth: Installed, discovery: readonly Discovery[]): Promise<object[]> {
  const [selector, ...more] = discovery.flatMap(({ selectors }) => selectors);
  if (selector?.role !== 'node' || more.length > 0) {
    throw new Error('the stand-in finds Nodes by one selector');
  }
  const { items } = await berth.cluster.client().list(NODES, { labelSelector: selector.label });
  return items.map(({ metadata, status }) => {
    const { address } = status?.addresses?.find(({ type }) => type === 'InternalIP') ?? {};
    const port = status?.daemonEndpoints?.kubeletEndpoint?.Port;
    const labels = Object.entries(metadata.labels ?? {}).map(([key, value]) => [
      `__meta_kubernetes_node_label_${key.replaceAll(/[^a-zA-Z0-9_]/g, '_')}`,
      value,
    ]);
    return {
      targets: [`${address}:${port}`],
      labels: { __meta_kubernetes_node_name: metadata.name, ...Object.fromEntries(labels) },
    };
  });
}
