/**
 * Simulated hosts with power. Each host has a Server whose controller is a web server in this process. A host without power does not
 * report, and a host that gets power reports after its boot time, with another boot ID.
 */
import { once } from 'node:events';
import { createServer, type Server as WebServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { CORDONED_FOR_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import { timestamp } from '../../base/time.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { NODES } from '../../kube/core.ts';

/** Annotation of the Nodes that KWOK keeps alive. */
const SIMULATED = 'kwok.x-k8s.io/node';

export interface PoweredHostsOptions {
  readonly count: number;
  readonly bootMilliseconds: number;
  readonly architecture?: 'amd64' | 'arm64';
  /** Number of hosts that are on at first. By default all are on. */
  readonly on?: number;
  /** Returns the addresses of the Server with this number. No two Servers of a cluster may have the same. */
  readonly addressOf?: (index: number) => string;
}

export class PoweredHosts implements AsyncDisposable {
  readonly names: readonly string[];
  /** Hosts that do not report after they got power. */
  readonly broken = new Set<string>();
  /** Errors of the simulation itself. */
  readonly errors: unknown[] = [];
  readonly #cluster: Cluster;
  readonly #bootMilliseconds: number;
  readonly #powered: Set<string>;
  readonly #web: WebServer;
  readonly #boots = new Set<NodeJS.Timeout>();
  #count = 0;

  private constructor(cluster: Cluster, names: readonly string[], bootMilliseconds: number) {
    this.#cluster = cluster;
    this.names = names;
    this.#bootMilliseconds = bootMilliseconds;
    this.#powered = new Set(names);
    this.#web = createServer((request, response) => {
      const [, name = '', command = 'status'] = (request.url ?? '').split('/');
      if (request.method === 'POST') {
        this.#obey(name, command === 'on');
      }
      response.end(this.isOn(name) ? 'on' : 'off');
    });
  }

  /** Creates hosts that are on, and their Servers. */
  static async create(cluster: Cluster, options: PoweredHostsOptions): Promise<PoweredHosts> {
    const { count, bootMilliseconds, architecture = 'arm64', on = count } = options;
    const { addressOf = (index) => `10.1.${Math.floor(index / 250)}.${(index % 250) + 1}` } = options;
    const names = await cluster.addHosts(count, { prefix: 'powered', architecture });
    const hosts = new PoweredHosts(cluster, names, bootMilliseconds);
    hosts.#web.listen(0, '127.0.0.1');
    await once(hosts.#web, 'listening');
    const { port } = hosts.#web.address() as AddressInfo;
    for (const name of names.slice(on)) {
      hosts.#powered.delete(name);
      await hosts.#report(name, false);
    }
    // A host that is off at first was switched off by Berth, which cordons it and remembers its boot.
    const client = cluster.client();
    await Promise.all(
      names.map(async (name, index) => {
        const url = `http://127.0.0.1:${port}/${name}`;
        const webhook = { onURL: `${url}/on`, offURL: `${url}/off`, statusURL: url, pattern: '^(on|off)$' };
        const spec = { addresses: [addressOf(index)], nodeName: name, controller: { webhook } };
        await client.create(SERVERS, { metadata: { name }, spec });
        if (!hosts.isOn(name)) {
          const annotations = { [CORDONED_FOR_ANNOTATION]: name };
          const node = { metadata: { annotations }, spec: { unschedulable: true } };
          const { status } = await client.mergePatch(NODES, { name }, node);
          const at = timestamp(Date.now());
          const host = { cordonedAt: at, offAt: at, bootID: status?.nodeInfo?.bootID };
          await client.mergePatch(SERVERS, { name }, { status: { host } }, { subresource: 'status' });
        }
      }),
    );
    return hosts;
  }

  isOn(name: string): boolean {
    return this.#powered.has(name);
  }

  get on(): string[] {
    return this.names.filter((name) => this.isOn(name));
  }

  async server(name: string): Promise<Server> {
    return await this.#cluster.client().get(SERVERS, { name });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#boots.forEach((timer) => clearTimeout(timer));
    this.#web.close();
    this.#web.closeAllConnections();
    await Promise.all(this.names.map((name) => this.#cluster.client().delete(SERVERS, { name })));
  }

  #obey(name: string, isOn: boolean): void {
    if (!isOn) {
      this.#powered.delete(name);
      this.#do(this.#report(name, false));
    } else if (!this.isOn(name)) {
      this.#powered.add(name);
      const timer = setTimeout(() => {
        this.#boots.delete(timer);
        if (this.isOn(name) && !this.broken.has(name)) {
          this.#do(this.#report(name, true));
        }
      }, this.#bootMilliseconds);
      this.#boots.add(timer);
    }
  }

  #do(work: Promise<void>): void {
    work.catch((error: unknown) => this.errors.push(error));
  }

  /** Lets KWOK keep the Node alive, or lets the Node become silent, as the cluster would notice it later. */
  async #report(name: string, isAlive: boolean): Promise<void> {
    const client = this.#cluster.client();
    const now = timestamp(Date.now());
    const condition = {
      type: 'Ready',
      status: isAlive ? 'True' : 'Unknown',
      reason: isAlive ? 'KubeletReady' : 'NodeStatusUnknown',
      message: 'simulated',
      lastHeartbeatTime: now,
      lastTransitionTime: now,
    };
    this.#count += 1;
    const nodeInfo = isAlive ? { nodeInfo: { bootID: `boot-${this.#count}` } } : {};
    const annotations = { [SIMULATED]: isAlive ? 'fake' : null };
    // KWOK must not see a silent Node, since it would make the Node Ready at once.
    await client.mergePatch(NODES, { name }, { metadata: { annotations } });
    const node = await client.get(NODES, { name });
    const others = node.status?.conditions?.filter(({ type }) => type !== 'Ready') ?? [];
    const status = { ...nodeInfo, conditions: [...others, condition] };
    await client.mergePatch(NODES, { name }, { status }, { subresource: 'status' });
  }
}
