/** A host with the `nat` network in a network namespace, and the control plane outside of it, for tests of the whole chain. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { copyFile, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import { join } from 'node:path';
import { parse, stringify } from 'yaml';
import { guestImage } from '../../hack/guest-image.ts';
import { AgentProcess, endMachines } from '../cluster/agent.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../cluster/index.ts';
import { freePorts } from '../cluster/ports.ts';
import { allowAgentMetrics, allowMetrics, readMetrics } from '../support/operatorlog.ts';
import { Relay } from '../support/relay.ts';
import { waitFor } from '../support/wait.ts';
import { HOST_ADDRESS, NatWorld, WORLD_ADDRESS, type Worker } from './nat-world.ts';

export const NAMESPACE = 'platform-default';
export const NODE = 'nathost';
/** Less than a lost packet's second try; a guest that can be reached answers within it. */
const PAGE_MILLISECONDS = 900;

/** What the host's kernel and disk hold for machines. */
export interface Traces {
  ports: string[];
  rules: string;
  connections: string;
  processes: string;
  folders: string[];
  attachments: string;
}

interface Own {
  images: GatedImages;
  kubeletPort: number;
}

export class NatHost {
  readonly net: NatWorld;
  readonly cluster: Cluster;
  readonly operator: OperatorProcess;
  readonly agent: AgentProcess;
  readonly #world: Worker;
  readonly #images: GatedImages;
  readonly #kubeletPort: number;

  private constructor(parts: Pick<NatHost, 'net' | 'cluster' | 'operator' | 'agent'>, own: Own) {
    this.net = parts.net;
    this.cluster = parts.cluster;
    this.operator = parts.operator;
    this.agent = parts.agent;
    this.#images = own.images;
    this.#kubeletPort = own.kubeletPort;
    this.#world = parts.net.worker('world');
  }

  /** Every part that was started is in `ends` before the next one is: run from the last to the first, they leave nothing. */
  static async start(ends: (() => Promise<void>)[]): Promise<NatHost> {
    const image = await guestImage('amd64', (text) => process.stderr.write(`guest image: ${text}\n`));
    const net = new NatWorld('nata');
    ends.push(() => net.remove());
    const cluster = await startCluster({ name: `nat-${process.pid}` });
    ends.push(() => cluster.stop());
    const operator = await cluster.startOperator();
    await allowMetrics(cluster);
    await allowAgentMetrics(cluster);
    const images = await GatedImages.serve(image);
    ends.push(() => images.close());
    const [kubeletPort = 0] = await freePorts(1);
    const ways = [
      ['in', Number(new URL(cluster.server).port)],
      ['in', images.port],
      ['out', kubeletPort],
    ] as const;
    for (const [direction, port] of ways) {
      const relay = await Relay.open({ namespace: net.host, direction, port, directory: net.directory });
      ends.push(() => relay.close());
    }
    const shared = join(cluster.directory, 'images');
    await mkdir(shared);
    await copyFile(image, join(shared, 'guest.qcow2'));
    ends.push(() => endMachines(cluster.directory));
    const agent = await AgentProcess.start(cluster, {
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
    ends.push(() => agent.stop());
    return new NatHost({ net, cluster, operator, agent }, { images, kubeletPort });
  }

  async apply(kind: 'Image' | 'VM', name: string, spec: object): Promise<void> {
    const metadata = { name, namespace: NAMESPACE };
    const object = { apiVersion: 'berth.dev/v1alpha1', kind, metadata, spec };
    await this.cluster.kubectl(['apply', '-f', '-'], { input: JSON.stringify(object) });
  }

  async makeImages(): Promise<void> {
    await this.apply('Image', 'guest', { source: { sharedFile: { path: 'guest.qcow2' } } });
    const { port, sha256 } = this.#images;
    const http = { url: `http://127.0.0.1:${port}/guest.qcow2`, sha256 };
    await this.apply('Image', 'gated', { source: { http } });
  }

  /** The image `gated` can be fetched from now on. */
  openGate(): void {
    this.#images.open();
  }

  /** The guest's page, asked for from beyond the host. */
  page(port: number): Promise<string> {
    return this.#world.do('httpGet', `http://${HOST_ADDRESS}:${port}/`, PAGE_MILLISECONDS);
  }

  /** One line of the agent's metrics: its value. */
  async metric(line: string): Promise<number> {
    const text = await readMetrics(this.cluster, {
      metricsUrl: `https://127.0.0.1:${this.#kubeletPort}/metrics`,
    });
    const found = text.split('\n').find((one) => one.startsWith(`${line} `));
    if (found === undefined) throw new Error(`the agent has no metric ${line}`);
    return Number(found.slice(line.length + 1));
  }

  /** The running agent ends and another goes on, with this much between its checks. */
  async restartAgent(checkIntervalSeconds: number): Promise<void> {
    const config = parse(await readFile(this.agent.configFile, 'utf8')) as { network: object };
    const changed = { ...config, network: { ...config.network, checkIntervalSeconds } };
    await this.agent.stop();
    await writeFile(this.agent.configFile, stringify(changed));
    await this.agent.startAgain();
    await waitFor('the next agent to answer', () =>
      this.metric('berth_agent_network_repairs_total').then(() => true),
    );
  }

  /** Somebody else's table; `rule` stands in a chain that forwarded packets go through. */
  addForeignTable(rule: string): void {
    const chain = `chain theirs { type filter hook forward priority -10; ${rule}; }`;
    this.net.inHost('nft', `table inet other { ${chain}; }`);
  }

  removeForeignTable(): void {
    const there = this.net.inHost('nft', 'list', 'tables').includes('inet other');
    if (there) this.net.inHost('nft', 'delete', 'table', 'inet', 'other');
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

/** A web server of one image that holds it back until it is told to give it. */
class GatedImages {
  readonly port: number;
  readonly sha256: string;
  readonly #server: Server;
  readonly #gate: PromiseWithResolvers<void>;

  private constructor(
    server: Server,
    gate: PromiseWithResolvers<void>,
    facts: { port: number; sha256: string },
  ) {
    this.#server = server;
    this.#gate = gate;
    this.port = facts.port;
    this.sha256 = facts.sha256;
  }

  static async serve(file: string): Promise<GatedImages> {
    const content = await readFile(file);
    const sha256 = createHash('sha256').update(content).digest('hex');
    const gate = Promise.withResolvers<void>();
    const server = createServer((_, response) => {
      response.writeHead(200, { 'Content-Length': content.length });
      response.flushHeaders();
      void gate.promise.then(() => createReadStream(file).pipe(response));
    });
    const [port = 0] = await freePorts(1);
    await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
    return new GatedImages(server, gate, { port, sha256 });
  }

  open(): void {
    this.#gate.resolve();
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
