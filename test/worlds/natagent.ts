/** A host with the `nat` network in a network namespace, for tests of the whole chain. The control plane is outside of the namespace. */
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parse, stringify } from 'yaml';
import { AgentProcess, endMachines } from '../../hack/cluster/agent.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { Downloads } from '../wires/downloads.ts';
import { createImage, guestFile, shareGuest } from '../fixtures/images.ts';
import { allowAgentMetrics, allowMetrics, readMetrics } from '../support/operatorlog.ts';
import { Relay } from '../../hack/cluster/relay.ts';
import { waitFor } from '../../hack/wait.ts';
import { HOST_ADDRESS, NatWorld, WORLD_ADDRESS, type Worker } from './nat.ts';

export const NAMESPACE = 'platform-default';
export const NODE = 'nathost';
/**
 * Time limit for the guest's page, in milliseconds. A reachable guest answers within this time. The limit is shorter than the
 * time after which TCP repeats a lost packet.
 */
const PAGE_MILLISECONDS = 900;
/** Time limit for the start of an agent beside a running guest. On a busy machine, 30 s were not enough. */
const RESTART = { deadlineMilliseconds: 90_000 };

/** Traces of machines in the host's kernel and on its disk. */
export interface Traces {
  ports: string[];
  rules: string;
  connections: string;
  processes: string;
  folders: string[];
  attachments: string;
}

export class NatHost implements AsyncDisposable {
  readonly net: NatWorld;
  readonly cluster: Cluster;
  readonly operator: OperatorProcess;
  readonly agent: AgentProcess;
  readonly downloads: Downloads;
  readonly #parts: AsyncDisposableStack;
  readonly #world: Worker;
  readonly #kubeletPort: number;

  private constructor(
    { net, ...rest }: Pick<NatHost, 'net' | 'cluster' | 'operator' | 'agent' | 'downloads'>,
    kubeletPort: number,
    parts: AsyncDisposableStack,
  ) {
    this.net = net;
    this.cluster = rest.cluster;
    this.operator = rest.operator;
    this.agent = rest.agent;
    this.downloads = rest.downloads;
    this.#kubeletPort = kubeletPort;
    this.#parts = parts;
    this.#world = net.worker('world');
  }

  static async start(): Promise<NatHost> {
    const image = await guestFile('amd64');
    await using parts = new AsyncDisposableStack();
    const net = parts.use(await NatWorld.make('nata'));
    const cluster = parts.adopt(await startCluster({ name: `nat-${process.pid}` }), (one) => one.stop());
    const operator = await cluster.startOperator();
    await allowMetrics(cluster);
    await allowAgentMetrics(cluster);
    const downloads = parts.use(await Downloads.serve(image));
    const kubeletPort = await freePort();
    const ways = [
      ['in', Number(new URL(cluster.server).port)],
      ['in', downloads.port],
      ['out', kubeletPort],
    ] as const;
    for (const [direction, port] of ways) {
      parts.use(await Relay.open({ namespace: net.host, direction, port, directory: net.directory }));
    }
    const shared = await shareGuest(cluster, image);
    parts.defer(() => endMachines(cluster.directory));
    const started = await AgentProcess.start(cluster, {
      nodeName: NODE,
      networkNamespace: net.host,
      config: {
        architecture: 'amd64',
        cpuOvercommit: 8,
        images: { sharedRoots: [shared], allowLoopbackHttp: true },
        network: { driver: 'nat', hostAddress: HOST_ADDRESS, dnsServers: [WORLD_ADDRESS] },
        kubelet: { port: kubeletPort, clientCAFile: join(cluster.directory, 'pki', 'ca.crt') },
      },
    });
    const agent = parts.adopt(started, (one) => one.stop());
    return new NatHost({ net, cluster, operator, agent, downloads }, kubeletPort, parts.move());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync();
  }

  async makeImage(): Promise<void> {
    await createImage(this.cluster, 'guest', { sharedFile: { path: 'guest.qcow2' } });
  }

  /** Returns a page of the guest, requested from outside the host. */
  page(port: number, path = '/', timeoutMilliseconds = PAGE_MILLISECONDS): Promise<string> {
    return this.#world.do('httpGet', `http://${HOST_ADDRESS}:${port}${path}`, timeoutMilliseconds);
  }

  /** Returns the value of one line of the agent's metrics. */
  async metric(line: string): Promise<number> {
    const text = await readMetrics(this.cluster, {
      metricsUrl: `https://127.0.0.1:${this.#kubeletPort}/metrics`,
    });
    const found = text.split('\n').find((one) => one.startsWith(`${line} `));
    if (found === undefined) {
      throw new Error(`the agent has no metric ${line}`);
    }
    return Number(found.slice(line.length + 1));
  }

  /** Stops the running agent and starts another with this time between its checks. */
  async restartAgent(checkIntervalSeconds: number): Promise<void> {
    const config = parse(await readFile(this.agent.configFile, 'utf8')) as { network: object };
    const changed = { ...config, network: { ...config.network, checkIntervalSeconds } };
    await this.agent.stop();
    await writeFile(this.agent.configFile, stringify(changed));
    await this.agent.startAgain();
    await waitFor(
      'the next agent to answer',
      () => this.metric('berth_agent_network_repairs_total').then(() => true),
      RESTART,
    );
  }

  /** Adds a table of another program. `rule` is in a chain that forwarded packets pass. */
  addForeignTable(rule: string): void {
    const chain = `chain theirs { type filter hook forward priority -10; ${rule}; }`;
    this.net.inHost('nft', `table inet other { ${chain}; }`);
  }

  removeForeignTable(): void {
    const there = this.net.inHost('nft', 'list', 'tables').includes('inet other');
    if (there) {
      this.net.inHost('nft', 'delete', 'table', 'inet', 'other');
    }
  }

  async traces(): Promise<Traces> {
    const links = JSON.parse(this.net.inHost('ip', '-json', 'link', 'show', 'master', 'berth0')) as {
      ifname: string;
    }[];
    const data = this.agent.dataDirectory;
    return {
      ports: links.map(({ ifname }) => ifname).toSorted(),
      rules: this.net.inHost('nft', 'list', 'ruleset'),
      connections: this.net.inHost('conntrack', '-L'),
      processes: this.net.inHost('ps', '-o', 'args=', '--pid', this.#pids()),
      folders: [...(await readdir(join(data, 'machines'))), ...(await readdir(join(data, 'pods')))],
      attachments: await readFile(join(data, 'network', 'attachments.json'), 'utf8'),
    };
  }

  #pids(): string {
    return this.net.inHost('ip', 'netns', 'pids', this.net.host).trim().split('\n').join(',');
  }
}
