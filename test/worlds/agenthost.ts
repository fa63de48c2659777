/**
 * Hosts for tests of the agent against a real control plane. The agents run in this process, with stand-ins for the parts that
 * run machines.
 */
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { stringify } from 'yaml';
import { messageOf } from '../../base/errors.ts';
import { runAgent } from '../../agent/agent.ts';
import { Publisher } from '../../agent/images/publisher.ts';
import { Registries } from '../../agent/images/oci/repository.ts';
import { loadConfig } from '../../agent/config.ts';
import { RecordStore } from '../../agent/pods/records.ts';
import type { Desired, Machine } from '../../api/v1alpha1/machine.ts';
import {
  DESIRED_ANNOTATION,
  HOST_KEY,
  MACHINE_ANNOTATION,
  MACHINE_CONTAINER,
  SLOT_RESOURCE,
} from '../../api/v1alpha1/names.ts';
import { KubeClient } from '../../kube/client.ts';
import { CERTIFICATE_SIGNING_REQUESTS, NODES, type Pod, PODS } from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { createMetrics } from '../../kube/metrics.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { Transport } from '../../kube/transport.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { machineDocument } from '../fixtures/machines.ts';
import { OPERATORS_OWN } from '../support/admission.ts';
import { StandInDriver, StandInImages, StandInNetwork } from './standin.ts';
import { StandInEmulators } from './standinemulators.ts';
import { waitFor } from '../../hack/wait.ts';

/** Memory of a VM in tests, in bytes. It is small, so that several VMs fit on any host. */
const MEMORY_BYTES = 64 * 1024 * 1024;

export class TestHost {
  readonly name: string;
  readonly driver = new StandInDriver();
  readonly emulators = new StandInEmulators();
  /** Image store of the next agent. */
  images = new StandInImages();
  /** Publisher of the next agent. By default it has no registries and no folder. */
  publisher = noPublisher();
  /** Metrics of the last agent. */
  metrics = createMetrics();
  readonly network: StandInNetwork;
  readonly #cluster: Cluster;
  readonly #directory: string;
  readonly #settings: Record<string, unknown>;
  #stop: AbortController | undefined;
  #ended: Promise<void> = Promise.resolve();

  private constructor(cluster: Cluster, directory: string, settings: TestHostSettings) {
    const { name, network = 'user', ...rest } = settings;
    this.#cluster = cluster;
    this.#directory = directory;
    this.name = name;
    this.network = new StandInNetwork(network);
    this.#settings = {
      nodeName: name,
      dataDirectory: 'data',
      address: '127.0.0.1',
      network: { driver: network, checkIntervalSeconds: 0.1 },
      // Each machine has one processor. With the overcommit, a host of any size fits as many machines as it has slots.
      cpuOvercommit: 8,
      logLevel: 'warn',
      ...rest,
    };
  }

  static async make(cluster: Cluster, settings: TestHostSettings): Promise<TestHost> {
    const directory = await mkdtemp(join(tmpdir(), 'berth-agent-'));
    return new TestHost(cluster, directory, settings);
  }

  get dataDirectory(): string {
    return join(this.#directory, 'data');
  }

  /** Starts an agent, waits until its Node exists, and gives the Node four slots. */
  async start(): Promise<void> {
    await this.launch();
    await waitFor(
      `node ${this.name}`,
      async () => await this.#cluster.client().get(NODES, { name: this.name }),
    );
    await this.setSlots(4);
  }

  /** Starts an agent. If `approve` is true, its certificate requests are approved, as the operator would do. */
  async launch({ approve = true } = {}): Promise<void> {
    const file = join(this.#directory, 'agent.yaml');
    const joining =
      this.#settings['kubeconfig'] === undefined
        ? { bootstrapKubeconfig: (await this.#cluster.createAgentBootstrap(this.name)).kubeconfig }
        : {};
    await writeFile(file, stringify({ ...this.#settings, ...joining }));
    const config = loadConfig(file);
    await mkdir(config.dataDirectory, { recursive: true });
    const stop = new AbortController();
    this.#stop = stop;
    this.metrics = createMetrics();
    const { driver, emulators, images, network, publisher, metrics } = this;
    const records = new RecordStore(join(config.dataDirectory, 'pods'));
    const parts = { drivers: [driver], emulators, images, network, publisher, records, metrics };
    const logger = pino({ level: config.logLevel });
    this.#ended = runAgent(config, parts, logger, stop.signal).catch((error: unknown) => {
      if (!stop.signal.aborted) {
        throw error;
      }
    });
    // A test can ask for the end later than the agent ends.
    this.#ended.catch(() => undefined);
    if (approve) {
      void approveRequests(this.#cluster, this.name, stop.signal);
    }
  }

  /** Resolves when the agent has ended. @throws Error when the agent failed. */
  async ended(): Promise<void> {
    return await this.#ended;
  }

  async stop(): Promise<void> {
    this.#stop?.abort(new Error('stopped by the test'));
    await this.#ended;
  }

  async setSlots(count: number): Promise<void> {
    const slots = { [SLOT_RESOURCE]: String(count) };
    await this.#cluster
      .client()
      .mergePatch(
        NODES,
        { name: this.name },
        { status: { capacity: slots, allocatable: slots } },
        { subresource: 'status' },
      );
  }

  /** Stops the agent and deletes its folder. @throws Error when the agent failed. */
  async remove(): Promise<void> {
    try {
      await this.stop();
    } finally {
      await rm(this.#directory, { recursive: true, force: true });
    }
  }
}

export interface TestHostSettings {
  name: string;
  network?: 'user' | 'nat';
  [setting: string]: unknown;
}

/** Approves the certificate requests of a host until the signal aborts, as the operator would do. */
export async function approveRequests(cluster: Cluster, node: string, signal: AbortSignal): Promise<void> {
  const client = cluster.client();
  while (!signal.aborted) {
    try {
      const { items } = await client.list(CERTIFICATE_SIGNING_REQUESTS, { signal });
      for (const request of items) {
        const ours =
          request.metadata.name.startsWith(`berth-`) && request.metadata.name.includes(`-${node}-`);
        if (ours && (request.status?.conditions ?? []).length === 0) {
          await cluster.kubectl(['certificate', 'approve', request.metadata.name]);
        }
      }
    } catch (error) {
      // The test may make the API server fail, so the request is repeated.
      if (!signal.aborted) {
        process.stderr.write(`approving certificates: ${messageOf(error)}\n`);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Returns a client with the operator's credentials, because no other user may write Pods for a host. */
export async function operatorClient(cluster: Cluster): Promise<KubeClient> {
  const connection = await loadConnection({ kubeconfigPath: cluster.operatorKubeconfig });
  return new KubeClient(new Transport(connection, { metrics: createMetrics() }));
}

export const DESIRED: Desired = {
  powerState: 'Running',
  restartPolicy: 'Never',
  cpu: 1,
  memoryBytes: MEMORY_BYTES,
};

export function machineFor(namespace: string, name: string, change: Partial<Machine> = {}): Machine {
  const image = { type: 'sharedFile', path: 'disk.qcow2' } as const;
  return machineDocument({ namespace, name, uid: `uid-of-${name}` }, { image, ...change });
}

/** Returns a VM's Pod as the operator writes it, already bound to the host. */
export function podFor(
  host: { name: string },
  machine: Machine,
  desired: Desired = DESIRED,
  spec: Partial<Pod['spec']> = {},
): Unsaved<Pod> {
  const { namespace, name } = machine.vm;
  return {
    metadata: {
      name,
      namespace,
      labels: OPERATORS_OWN.labels,
      annotations: {
        [MACHINE_ANNOTATION]: JSON.stringify(machine),
        [DESIRED_ANNOTATION]: JSON.stringify(desired),
      },
    },
    spec: {
      nodeName: host.name,
      restartPolicy: 'Never',
      enableServiceLinks: false,
      terminationGracePeriodSeconds: 30,
      ...OPERATORS_OWN.spec,
      tolerations: [{ key: HOST_KEY, operator: 'Exists' }],
      containers: [
        {
          name: MACHINE_CONTAINER,
          image: 'stand-in',
          resources: {
            requests: { cpu: '1', memory: '192Mi', [SLOT_RESOURCE]: '1' },
            limits: { [SLOT_RESOURCE]: '1' },
          },
          ports: machine.ports.map(({ hostPort, protocol }) => ({
            containerPort: hostPort,
            hostPort,
            protocol,
          })),
        },
      ],
      ...spec,
    },
  };
}

export async function setDesired(client: KubeClient, pod: Pod, desired: Desired): Promise<void> {
  const { namespace, name } = pod.metadata;
  const annotations = { [DESIRED_ANNOTATION]: JSON.stringify(desired) };
  await client.mergePatch(
    PODS,
    { ...(namespace === undefined ? {} : { namespace }), name },
    { metadata: { annotations } },
  );
}

/** Returns a publisher without registries. Most tests publish nothing, and others only to the folder. */
export function noPublisher(storageFolder?: string): Publisher {
  const registries = new Registries({ registries: [], allowLoopbackHttp: false });
  return new Publisher({ registries, storageFolder });
}
