/** Simulated hosts: KWOK, the Nodes that it keeps alive, and the wait until it manages them. */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import PQueue from 'p-queue';
import { MACOS_DRIVER } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Lease, LEASES, type Node, NODES, PODS } from '../../kube/core.ts';
import { SERVICE_ACCOUNTS } from './tokens.ts';
import { waitFor } from '../wait.ts';
import { isMissing } from '../../base/errors.ts';
import { isAlive, readRecord, startProcess } from './processes.ts';
import { resolveSimulationTools } from './toolchain/toolchain.ts';

export interface HostOptions {
  prefix?: string;
  /** Number for `berth.dev/slot` in capacity and allocatable. If it is undefined, the operator sets the number. */
  slots?: number | undefined;
  architecture?: 'arm64' | 'amd64';
}

/** Largest number of requests at the same time. On loopback, more requests are not faster. */
const IN_FLIGHT = 32;
const DEFAULT_SLOTS = 4;

/** Creates `count` hosts, numbered from `first`; resolves with their names. */
export async function createHosts(
  client: KubeClient,
  range: { first: number; count: number },
  options: HostOptions = {},
): Promise<string[]> {
  const prefix = options.prefix ?? 'host';
  const names = Array.from({ length: range.count }, (_, index) => `${prefix}-${range.first + index}`);
  const creations = names.map((name) => async () => await client.create(NODES, hostNode(name, options)));
  await new PQueue({ concurrency: IN_FLIGHT }).addAll(creations);
  return names;
}

function hostNode(name: string, options: HostOptions): Node {
  const slots = 'slots' in options ? options.slots : DEFAULT_SLOTS;
  const architecture = options.architecture ?? 'arm64';
  const operatingSystem = architecture === 'arm64' ? 'darwin' : 'linux';
  const resources = {
    cpu: '16',
    memory: '64Gi',
    'ephemeral-storage': '1Ti',
    pods: '110',
    ...(slots === undefined ? {} : { 'berth.dev/slot': String(slots) }),
  };
  const now = new Date().toISOString();
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name,
      annotations: { 'kwok.x-k8s.io/node': 'fake' },
      labels: {
        'berth.dev/host': 'true',
        'berth.node-restriction.kubernetes.io/host': 'true',
        'berth.dev/simulated': 'true',
        'kubernetes.io/arch': architecture,
        'kubernetes.io/hostname': name,
      },
    },
    spec: { taints: [{ key: 'berth.dev/host', value: 'true', effect: 'NoSchedule' }] },
    status: {
      capacity: resources,
      allocatable: resources,
      // Without a condition Ready, the node would get a taint, and Pods would wait until KWOK has seen the node.
      conditions: [
        {
          type: 'Ready',
          status: 'True',
          reason: 'KubeletReady',
          message: 'kubelet is posting ready status',
          lastHeartbeatTime: now,
          lastTransitionTime: now,
        },
      ],
      addresses: [{ type: 'InternalIP', address: '192.0.2.1' }],
      nodeInfo: nodeInfo(architecture, operatingSystem),
    },
  };
}

function nodeInfo(architecture: string, operatingSystem: string): Record<string, string> {
  const version = 'kwok';
  return {
    architecture,
    operatingSystem,
    bootID: '',
    // The simulated Macs run macOS, with the driver that does so on real ones.
    containerRuntimeVersion: operatingSystem === 'darwin' ? `${MACOS_DRIVER}://vz` : version,
    kernelVersion: version,
    kubeProxyVersion: version,
    kubeletVersion: version,
    machineID: '',
    osImage: '',
    systemUUID: '',
  };
}

/** Starts KWOK for this cluster if it does not run yet. KWOK manages only nodes with its annotation. */
export async function ensureKwok(directory: string): Promise<void> {
  if (await runs(directory)) {
    return;
  }
  const { kwok } = await resolveSimulationTools();
  await startProcess(directory, {
    name: 'kwok',
    file: kwok,
    arguments: [
      `--kubeconfig=${join(directory, 'kwok.kubeconfig')}`,
      `--config=${join(import.meta.dirname, 'kwok-stages.yaml')}`,
    ],
  });
}

async function runs(directory: string): Promise<boolean> {
  try {
    return await isAlive(readRecord(directory, 'kwok'));
  } catch (error) {
    if (isMissing(error)) {
      return false;
    }
    throw error;
  }
}

/** Time limit until KWOK has created the Leases. It creates a few hundred a second, and far fewer on a busy machine. */
const TAKEN_MILLISECONDS = 120_000;
/** Time limit until a Pod runs. KWOK needs 50 ms once it has seen the Lease. A Pod that KWOK skipped is never checked again. */
const PROBE_MILLISECONDS = 2_000;
/** Limit of attempts to find a Pod that runs. The time in which KWOK skips a Pod lasts only milliseconds. */
const PROBES = 20;

/**
 * Resolves when a Pod that is bound to any of these hosts will run. KWOK skips a Pod forever if the Pod was created after KWOK created the
 * host's Lease, but before KWOK's watch showed this Lease. The watch is in order: if a Pod runs on the host with the last Lease, KWOK has
 * seen all Leases.
 */
export async function untilSimulated(client: KubeClient, names: readonly string[]): Promise<void> {
  const wanted = new Set(names);
  const leases = await waitFor(
    `KWOK to take ${names.length} hosts`,
    async () => {
      const { items } = await client.list(LEASES, { namespace: 'kube-node-lease' });
      const found = items.filter(({ metadata }) => wanted.has(metadata.name));
      return found.length === names.length && found;
    },
    { deadlineMilliseconds: TAKEN_MILLISECONDS },
  );
  await untilPodsAllowed(client, 'default');
  const last = leases.reduce((latest, lease) => (version(lease) > version(latest) ? lease : latest));
  for (let probe = 0; probe < PROBES; probe += 1) {
    if (await podRuns(client, last.metadata.name)) {
      return;
    }
  }
  throw new Error(`KWOK runs no Pod on ${last.metadata.name}`);
}

/** Resolves when a new namespace accepts Pods. The controller-manager must create its ServiceAccount first. */
export async function untilPodsAllowed(client: KubeClient, namespace: string): Promise<void> {
  await waitFor(`the ServiceAccount of ${namespace}`, () =>
    client.get(SERVICE_ACCOUNTS, { namespace, name: 'default' }),
  );
}

/**
 * Returns the version of a Lease. Versions have the order of the API server's writes. Since Kubernetes 1.35 clients may compare versions.
 */
function version(lease: Lease): bigint {
  return BigInt(lease.metadata.resourceVersion ?? '0');
}

async function podRuns(client: KubeClient, nodeName: string): Promise<boolean> {
  const ref = { namespace: 'default', name: `simulated-${randomBytes(4).toString('hex')}` };
  await client.create(PODS, {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: ref,
    spec: {
      nodeName,
      automountServiceAccountToken: false,
      containers: [{ name: 'probe', image: 'probe' }],
    },
  });
  const runs = await waitFor(
    'a Pod to run',
    async () => (await client.get(PODS, ref)).status?.phase === 'Running',
    { deadlineMilliseconds: PROBE_MILLISECONDS },
  ).catch(() => false);
  await client.delete(PODS, ref, { gracePeriodSeconds: 0 });
  return runs;
}
