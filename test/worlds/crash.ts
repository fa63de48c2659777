/** Two hosts with real guests, and Images whose download can be held back. One of the hosts can be cut off from the API server. */
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isMissing } from '../../base/errors.ts';
import type { MachineRecord } from '../../agent/pods/machine.ts';
import { AgentProcess, endMachines } from '../../hack/cluster/agent.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { Downloads } from '../wires/downloads.ts';
import { createImage, guestFile } from '../fixtures/images.ts';
import { Wire } from '../wires/tcp.ts';
import { PodHistory } from '../support/podhistory.ts';
import { VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';
import { KeptOperator } from './keptoperator.ts';

/**
 * Times of the design, shortened for tests. After FENCE_SECONDS, a host without a connection ends machines whose start the cluster has not
 * seen. This is well before the operator places their VMs again. The host's Lease is renewed four times in FENCE_SECONDS. On a busy machine,
 * a machine must start within this time, so that a test sees it before its end.
 */
const FENCE_SECONDS = 12;
const GRACE_SECONDS = 16;
const HOST_LOST_SECONDS = 5;
const AGENT_CONFIG = {
  architecture: 'amd64',
  cpuOvercommit: 8,
  images: { allowLoopbackHttp: true },
  fenceAfterSeconds: FENCE_SECONDS,
};
/** Time limit for the boot of an emulated guest on a busy machine. On an idle machine it takes 5 s. */
export const BOOT = { deadlineMilliseconds: 90_000, intervalMilliseconds: 100 };
/** Waiting options for a state that lasts less than a second. */
const CATCH = { deadlineMilliseconds: 60_000, intervalMilliseconds: 5 };

export class AgentWorld implements AsyncDisposable {
  readonly cluster: Cluster;
  readonly vms: VMs;
  readonly history: PodHistory;
  readonly downloads: Downloads;
  /** The connection of host `one` to the API server. */
  readonly wire: Wire;
  readonly one: AgentProcess;
  readonly two: AgentProcess;
  readonly #parts: AsyncDisposableStack;

  private constructor(
    world: Pick<AgentWorld, 'cluster' | 'history' | 'downloads' | 'wire' | 'one' | 'two'>,
    parts: AsyncDisposableStack,
  ) {
    this.cluster = world.cluster;
    this.vms = new VMs(world.cluster);
    this.history = world.history;
    this.downloads = world.downloads;
    this.wire = world.wire;
    this.one = world.one;
    this.two = world.two;
    this.#parts = parts;
  }

  static async start(): Promise<AgentWorld> {
    await using parts = new AsyncDisposableStack();
    const downloads = parts.use(await Downloads.serve(await guestFile('amd64')));
    const cluster = parts.adopt(
      await startCluster({
        name: `agent-crash-${process.pid}`,
        nodeMonitorGracePeriodSeconds: GRACE_SECONDS,
      }),
      (one) => one.stop(),
    );
    const history = parts.adopt(await PodHistory.start(cluster.client()), (one) => one.stop());
    const config = { hostLostTimeoutSeconds: HOST_LOST_SECONDS };
    parts.adopt(await KeptOperator.start(cluster, { config }), (one) => one.stop());
    const wire = parts.use(await Wire.open(Number(new URL(cluster.server).port)));
    parts.defer(() => endMachines(cluster.directory));
    const bootstrapKubeconfig = await bootstrapOver(wire, cluster);
    const hosts = await Promise.all([
      AgentProcess.start(cluster, { nodeName: 'one', config: { ...AGENT_CONFIG, bootstrapKubeconfig } }),
      AgentProcess.start(cluster, { nodeName: 'two', config: { ...AGENT_CONFIG, address: '127.0.0.2' } }),
    ]);
    parts.defer(async () => void (await Promise.all(hosts.map((host) => host.stop()))));
    const [one, two] = hosts;
    return new AgentWorld({ cluster, history, downloads, wire, one, two }, parts.move());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync();
  }

  /** Creates a VM with an Image of its own, so that no host has the image from an earlier test. */
  async makeVM(name: string, spec: { ports?: string[]; placement?: { node: string } } = {}): Promise<void> {
    await createImage(this.cluster, name, { http: this.downloads.next() });
    const port = spec.ports === undefined ? {} : { readiness: { type: 'Port' as const, port: 80 } };
    await this.vms.create(name, { image: name, cpu: 1, memory: '256Mi', ...port, ...spec });
  }

  async waitUntilReady(name: string): Promise<void> {
    await this.vms.waitForCondition(name, 'Ready', { status: 'True' }, BOOT);
  }

  async deleteVM(name: string): Promise<void> {
    await this.vms.delete(name);
    await this.vms.waitUntilGone(name, BOOT);
  }

  async deleteAll(): Promise<void> {
    for (const { metadata } of await this.vms.list()) {
      await this.vms.delete(metadata.name);
    }
    for (const { metadata } of await this.vms.list()) {
      await this.vms.waitUntilGone(metadata.name, BOOT);
    }
  }

  /** Resolves when the agent has recorded on its disk that it starts the machine. At that time the agent has not yet reported the start. */
  async waitForStart(name: string, agent: AgentProcess): Promise<void> {
    await waitFor(
      `the machine of VM ${name} to be started`,
      async () => {
        const record = (await recordsOf(agent)).find(({ key }) => key === `${this.vms.namespace}/${name}`);
        return record?.startedWith !== undefined;
      },
      CATCH,
    );
  }

  /**
   * Resolves when the cut-off host `one` has begun to start the machine of a new VM. The image reaches the host over another
   * connection. However late the test sees the start, the cluster does not know that the machine runs.
   */
  async startUnheard(name: string, spec: { placement?: { node: string } } = {}): Promise<void> {
    this.downloads.holdBack();
    await this.makeVM(name, spec);
    await this.waitForMachine(name, 'Pulling');
    this.wire.cut();
    this.downloads.release();
    await this.waitForStart(name, this.one);
  }

  /** Resolves when the Pod's condition has this reason. Before the machine runs, the reason of the waiting container is compared. */
  async waitForMachine(name: string, reason: string): Promise<void> {
    await waitFor(
      `the machine of VM ${name} to be ${reason}`,
      async () => {
        const { status } = await this.vms.pod(name);
        const said = status?.conditions?.find(({ type }) => type === 'berth.dev/Machine')?.reason;
        return [said, status?.containerStatuses?.[0]?.state?.waiting?.reason].includes(reason);
      },
      CATCH,
    );
  }
}

async function recordsOf({ dataDirectory }: AgentProcess): Promise<MachineRecord[]> {
  const folder = join(dataDirectory, 'pods');
  const names = (await readdir(folder)).filter((name) => name.endsWith('.json'));
  const texts = await Promise.all(names.map((name) => textOf(join(folder, name))));
  return texts.filter((text) => text !== undefined).map((text) => JSON.parse(text) as MachineRecord);
}

async function textOf(file: string): Promise<string | undefined> {
  try {
    return await readFile(file, 'utf8');
  } catch (error) {
    if (isMissing(error)) {
      return undefined;
    }
    throw error;
  }
}

/** Returns the records and folders of machines on a host. */
export async function tracesOn({ dataDirectory }: AgentProcess): Promise<string[]> {
  const folders = ['pods', 'machines'];
  const found = await Promise.all(
    folders.map(async (folder) =>
      (await readdir(join(dataDirectory, folder))).map((name) => `${folder}/${name}`),
    ),
  );
  return found.flat();
}

async function bootstrapOver(wire: Wire, cluster: Cluster): Promise<string> {
  const { kubeconfig } = await cluster.createAgentBootstrap('one');
  const text = await readFile(kubeconfig, 'utf8');
  const path = join(cluster.directory, 'bootstrap-over-wire.kubeconfig');
  await writeFile(path, text.replace(cluster.server, wire.addressOf(cluster.server)), { mode: 0o600 });
  return path;
}
