/**
 * A cluster of real nodes on which a test installs Berth as people do. The images are in containerd. Helm or kubectl installs the
 * manifests. Guests are reached at the nodes' addresses.
 */
import { execFile } from 'node:child_process';

import { promisify } from 'node:util';
import { inject } from 'vitest';
import type { Pod } from '../../kube/core.ts';
import { LEASES, NODES, PODS } from '../../kube/core.ts';
import {
  type Cluster,
  type ClusterNode,
  type NodeCluster,
  startNodeCluster,
} from '../../hack/cluster/index.ts';
import { CONTROL_ADDRESS } from '../../hack/cluster/nodes/network.ts';
import { helm } from '../support/chart.ts';
import { type LogLine, readLogLine } from '../support/loglines.ts';
import { Downloads } from '../wires/downloads.ts';
import { createImage, guestFile } from '../fixtures/images.ts';
import { Relay } from '../../hack/cluster/relay.ts';
import { VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';
import '../e2e/installed/setup.ts';

export const SYSTEM = 'berth-system';
/** Time limit for the boot of an emulated guest beside the whole cluster. On an idle machine it takes 5 s. */
export const BOOT = { deadlineMilliseconds: 180_000, intervalMilliseconds: 200 };
/** Time limit for the replacement of Pods on a busy machine. */
export const ROLLOUT = { deadlineMilliseconds: 120_000, intervalMilliseconds: 100 };
/**
 * Time limit of the set-up, in milliseconds. Two nodes start and import the images. The upgrade test first builds an earlier
 * agent and operator.
 */
export const SET_UP_MILLISECONDS = 600_000;
/** Time limit of `kubectl rollout status`, in seconds. The agents of the nodes are replaced one after the other. */
const ROLLOUT_SECONDS = 240;
/** Time limit for a page from the same machine, in seconds. The guest is emulated beside the whole cluster. A new agent starts later. */
const PAGE_SECONDS = '8';

/** Port from which hosts fetch the guest's image. Its address is within the cluster's networks. */
const IMAGE_PORT = 80;

/** Values for the images that were built on this machine, and for small nodes. */
export const VALUES = {
  operator: { image: { repository: 'localhost/berth-operator' } },
  agent: {
    enabled: true,
    image: { repository: 'localhost/berth-agent' },
    nodeSelector: { 'berth.node-restriction.kubernetes.io/machines': 'true' },
    share: { cpu: 1, memory: '2Gi' },
    clusterCIDRs: ['10.244.0.0/16', '10.96.0.0/16', '10.200.0.0/24'],
    config: {
      network: { driver: 'nat' },
      images: { registries: [{ host: CONTROL_ADDRESS }] },
      // Guests need little processor time, and the nodes have few processors.
      cpuOvercommit: 8,
    },
  },
};

interface Plan {
  nodes?: number;
  /** A provider on loopback, and the configuration with which the API server reaches it. */
  signIn?: { port: number; authentication: string };
}

interface Endpoint {
  addresses: string[];
  conditions: { ready: boolean };
  targetRef: { name: string };
}

interface EndpointSlice {
  endpoints: Endpoint[] | null;
}

export class Installed implements AsyncDisposable {
  readonly cluster: Cluster;
  readonly nodes: readonly ClusterNode[];
  readonly vms: VMs;
  readonly #namespace: string;
  readonly #downloads: Downloads;
  readonly #parts: AsyncDisposableStack;

  private constructor(
    { cluster, nodes, namespace }: NodeCluster,
    downloads: Downloads,
    parts: AsyncDisposableStack,
  ) {
    this.cluster = cluster;
    this.nodes = nodes;
    this.vms = new VMs(cluster);
    this.#namespace = namespace;
    this.#downloads = downloads;
    this.#parts = parts;
  }

  /** Starts nodes without any part of Berth. */
  static async start(name: string, { nodes = 2, signIn }: Plan = {}): Promise<Installed> {
    const guest = await guestFile('amd64');
    await using parts = new AsyncDisposableStack();
    const started = await startNodeCluster({
      name: `${name}-${process.pid}`,
      nodes,
      ...(signIn !== undefined && { authentication: signIn.authentication }),
    });
    parts.adopt(started.cluster, (one) => one.stop());
    if (signIn !== undefined) {
      const { namespace, cluster } = started;
      const { directory } = cluster;
      parts.use(await Relay.open({ namespace, direction: 'in', port: signIn.port, directory }));
    }
    const downloads = parts.use(await Downloads.serve(guest));
    parts.use(
      await Relay.open({
        namespace: started.namespace,
        direction: 'in',
        port: downloads.port,
        portThere: IMAGE_PORT,
        addressThere: CONTROL_ADDRESS,
        directory: started.cluster.directory,
      }),
    );
    return new Installed(started, downloads, parts.move());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync();
  }

  /** Imports Berth's images into each node and sets the label of hosts. */
  async prepareNodes(): Promise<void> {
    for (const archive of inject('archives')) {
      await this.importImages(archive);
    }
    const names = this.nodes.map(({ name }) => name);
    await this.cluster.kubectl([
      'label',
      'nodes',
      ...names,
      'berth.node-restriction.kubernetes.io/machines=true',
    ]);
  }

  async importImages(archive: string): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.importImages(archive)));
  }

  /** Runs helm with these values. Rejects with helm's output if helm fails. */
  async helm(args: readonly string[], values?: object): Promise<string> {
    const where = ['--namespace', SYSTEM, '--kubeconfig', this.cluster.kubeconfig];
    const given = values === undefined ? [] : ['--values', '-'];
    const { code, stdout, stderr } = await helm([...args, ...where, ...given], JSON.stringify(values));
    if (code !== 0) {
      throw new Error(`helm ${args[0]}: ${stderr}${stdout}`);
    }
    return stdout;
  }

  /** Resolves when the operator and agents run with their present configuration and every node is a host. */
  async rolledOut(): Promise<void> {
    await this.rollout('deployment/berth-operator');
    await this.rollout('daemonset/berth-agent');
    for (const { name } of this.nodes) {
      await this.hostIsReady(`${name}-berth`);
    }
  }

  /** Resolves when all Pods of a workload of the release run with its present configuration. */
  async rollout(workload: string): Promise<void> {
    const status = ['rollout', 'status', '--namespace', SYSTEM, `--timeout=${ROLLOUT_SECONDS}s`, workload];
    await this.cluster.kubectl(status, { timeoutMilliseconds: (ROLLOUT_SECONDS + 10) * 1000 });
  }

  async hostIsReady(name: string): Promise<void> {
    await waitFor(
      `host ${name} to be Ready`,
      async () => {
        const { status } = await this.cluster.client().get(NODES, { name });
        const ready = status?.conditions?.some((one) => one.type === 'Ready' && one.status === 'True');
        return ready && status?.allocatable?.['berth.dev/slot'] !== undefined;
      },
      ROLLOUT,
    );
  }

  /** Creates an Image that every host fetches over the network. */
  async createGuestImage(name: string): Promise<void> {
    const { url, sha256 } = this.#downloads.next();
    const there = new URL(url);
    there.hostname = CONTROL_ADDRESS;
    there.port = String(IMAGE_PORT);
    await createImage(this.cluster, name, { http: { url: there.href, sha256 } });
  }

  /** Creates a VM from an Image, with its page on a port of the host. */
  async createVM(name: string, image: string, port: number): Promise<void> {
    await this.vms.create(name, {
      image,
      cpu: 1,
      memory: '128Mi',
      ports: [`${port}:80`],
      readiness: { type: 'Port', port: 80 },
    });
  }

  /** Returns the report of a Ready VM's guest, requested from outside the nodes. */
  async page(name: string, port: number): Promise<Record<string, string>> {
    const { status } = await this.vms.get(name);
    const text = await this.fromOutside(
      'curl',
      '--silent',
      '--show-error',
      '--max-time',
      PAGE_SECONDS,
      `http://${status?.hostAddress}:${port}/`,
    );
    return Object.fromEntries(
      text.split('\n').flatMap((line) => {
        const at = line.indexOf('=');
        return at < 0 ? [] : [[line.slice(0, at), line.slice(at + 1)]];
      }),
    );
  }

  /** Returns the output of a program that runs outside the nodes. */
  async fromOutside(program: string, ...parameters: string[]): Promise<string> {
    const inside = [`--net=/run/netns/${this.#namespace}`, program, ...parameters];
    return (await promisify(execFile)('nsenter', inside)).stdout;
  }

  /** Returns the cluster IP of a Service of the release. */
  async serviceAddress(name = 'berth-operator'): Promise<string> {
    const get = ['get', 'service', '--namespace', SYSTEM, name, '-o', 'jsonpath={.spec.clusterIP}'];
    return (await this.cluster.kubectl(get)).stdout;
  }

  /** Returns the names of the Pods that the operator's Service selects. */
  async behindService(): Promise<string[]> {
    return (await this.#endpointsOf('berth-operator')).map(({ targetRef }) => targetRef.name);
  }

  /** Returns the addresses of the Pods that a Service selects. */
  async addressesBehind(service: string): Promise<string[]> {
    return (await this.#endpointsOf(service)).flatMap(({ addresses }) => addresses);
  }

  /** Returns the ready endpoints of a Service of the release. */
  async #endpointsOf(service: string): Promise<Endpoint[]> {
    const slices = [
      'get',
      'endpointslices',
      '--namespace',
      SYSTEM,
      '-l',
      `kubernetes.io/service-name=${service}`,
    ];
    const { stdout } = await this.cluster.kubectl([...slices, '-o', 'json']);
    const { items } = JSON.parse(stdout) as { items: EndpointSlice[] };
    return items.flatMap(({ endpoints }) => endpoints ?? []).filter(({ conditions }) => conditions.ready);
  }

  async pods(component: 'operator' | 'agent' | 'server'): Promise<Pod[]> {
    const { items } = await this.cluster.client().list(PODS, {
      namespace: SYSTEM,
      labelSelector: `app.kubernetes.io/component=${component}`,
    });
    return items;
  }

  /** Returns the log lines of the operator and of agents whose Pods are not being deleted. Every line is JSON. */
  async said(): Promise<LogLine[]> {
    const pods = [...(await this.pods('operator')), ...(await this.pods('agent'))];
    const logs = await Promise.all(
      pods
        .filter(({ metadata }) => metadata.deletionTimestamp === undefined)
        .map(({ metadata }) => this.cluster.kubectl(['logs', '--namespace', SYSTEM, metadata.name])),
    );
    const lines = logs.flatMap(({ stdout }) => stdout.split('\n')).filter((line) => line !== '');
    return lines.map(readLogLine);
  }

  /** Returns the name of the operator's Pod that is the leader. The result is undefined while no Pod is the leader. */
  async leader(): Promise<string | undefined> {
    const { spec } = await this.cluster.client().get(LEASES, { namespace: SYSTEM, name: 'berth-operator' });
    const pods = await this.pods('operator');
    return pods.find((pod) => spec?.holderIdentity?.startsWith(pod.metadata.name))?.metadata.name;
  }
}
