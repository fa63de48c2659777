/**
 * A host whose agent is played by the test. The host is a bare Node that nothing simulates. The test decides whether Pods run,
 * fail or are ignored.
 */
import { MACHINE_CONTAINER, TASK_CONDITION, TASK_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { TaskReport } from '../../api/v1alpha1/task.ts';
import type { KubeClient } from '../../kube/client.ts';
import { isNotFound } from '../../kube/errors.ts';
import {
  type ContainerImage,
  type ContainerState,
  JOBS,
  LEASES,
  type Node,
  NODES,
  type Pod,
  type PodCondition,
  type PodPhase,
  PODS,
} from '../../kube/core.ts';
import { JOB_NAME_LABEL } from '../support/jobhistory.ts';
import type { Ref } from '../../kube/objects.ts';
import { waitFor } from '../../hack/wait.ts';

/** Time between heartbeats, in milliseconds. It is a fraction of the shortest grace period that a test sets for the controller-manager. */
const HEARTBEAT_MILLISECONDS = 1_000;
const LEASE_SECONDS = 40;
const LEASE_NAMESPACE = 'kube-node-lease';

export interface HostPlan {
  slots?: number;
  architecture?: 'arm64' | 'amd64';
  taints?: NonNullable<Node['spec']>['taints'];
  /** Version of the Node. */
  version?: string;
  /** Images that the Node lists as present on the host. */
  images?: ContainerImage[];
  /**
   * Whether a heartbeat also sets the Node to Ready again, as an agent does. On a busy machine, the controller-manager can set a Node to
   * Unknown between two heartbeats if its grace period is short.
   */
  staysReady?: boolean;
}

export class ActingHost {
  readonly name: string;
  readonly #client: KubeClient;
  readonly #staysReady: boolean;
  #heartbeat: NodeJS.Timeout | undefined;
  #beating: Promise<void> = Promise.resolve();

  private constructor(client: KubeClient, name: string, staysReady: boolean) {
    this.#client = client;
    this.name = name;
    this.#staysReady = staysReady;
  }

  /** Registers the host and sends heartbeats until `silence` or `remove`. */
  static async join(client: KubeClient, name: string, plan: HostPlan = {}): Promise<ActingHost> {
    const host = new ActingHost(client, name, plan.staysReady ?? false);
    await client.create(NODES, bareNode(name, plan));
    await client.create(LEASES, {
      metadata: { namespace: LEASE_NAMESPACE, name },
      spec: { holderIdentity: name, leaseDurationSeconds: LEASE_SECONDS, renewTime: microNow() },
    });
    host.beat();
    return host;
  }

  /** Resolves when the control plane has seen the new Node and allows Pods on it. */
  async placeable(): Promise<this> {
    await waitFor(`host ${this.name} to be placeable`, async () => {
      const { spec = {}, status = {} } = await this.#client.get(NODES, { name: this.name });
      const isNew = spec.taints?.some(({ key }) => key.startsWith('node.kubernetes.io/')) ?? false;
      return !isNew && status.allocatable?.['berth.dev/slot'] !== undefined;
    });
    return this;
  }

  /** Starts heartbeats, for example again after `silence`. */
  beat(): void {
    this.#heartbeat = setInterval(() => {
      this.#beating = this.#renew();
    }, HEARTBEAT_MILLISECONDS);
  }

  /** Stops heartbeats, as on a host without network or power. */
  async silence(): Promise<void> {
    clearInterval(this.#heartbeat);
    await this.#beating;
  }

  /** Reports again after a silence that the cluster has noticed. */
  async comeBack(): Promise<void> {
    await this.#renew();
    this.beat();
    await this.setCondition({ type: 'Ready', status: 'True', reason: 'AgentReady' });
  }

  /** Stops heartbeats and deletes the Node and its Lease. */
  async remove(): Promise<void> {
    await this.silence();
    await this.#client.delete(NODES, { name: this.name });
    await this.#client.delete(LEASES, { namespace: LEASE_NAMESPACE, name: this.name });
  }

  async setCondition(condition: Omit<PodCondition, 'lastTransitionTime'>): Promise<void> {
    await setNodeCondition(this.#client, this.name, condition);
  }

  /** Waits until the Pod is bound to this host. */
  waitForPod(ref: Ref): Promise<Pod> {
    return waitFor(`Pod ${ref.name} to be bound to ${this.name}`, async () => {
      const pod = await this.#client.get(PODS, ref);
      return pod.spec.nodeName === this.name && pod;
    });
  }

  async waiting(ref: Ref, reason: string, message = ''): Promise<void> {
    await this.#report(ref, 'Pending', { waiting: { reason, message } });
  }

  /** Reports a running machine. If `size` is false, the report has no cpu and memory. Some agents do not report these values. */
  async run(ref: Ref, { size = true } = {}): Promise<void> {
    await this.#report(ref, 'Running', { running: { startedAt: now() } }, MACHINE_CONTAINER, size);
  }

  /** Reports a machine that is off and keeps its slot. The container is not `terminated`, because a container cannot leave that state. */
  async stopped(ref: Ref, reason: 'Stopped' | 'Suspended' = 'Stopped'): Promise<void> {
    await this.#report(ref, 'Running', { waiting: { reason, message: '' } });
  }

  /** Reports that the machine has ended and was removed. `startedAt` is given if the machine had run. */
  async fail(ref: Ref, reason: string, message: string, startedAt?: string): Promise<void> {
    const terminated = { exitCode: 1, reason, message, finishedAt: now(), ...(startedAt && { startedAt }) };
    await this.#report(ref, 'Failed', { terminated });
  }

  /** Acts like an agent for a deleted Pod: ends the machine, reports the end, and deletes the Pod finally. */
  async end(ref: Ref, startedAt?: string): Promise<void> {
    await waitFor(`Pod ${ref.name} to be deleted`, async () => {
      const pod = await this.#client.get(PODS, ref);
      return pod.metadata.deletionTimestamp !== undefined;
    });
    await this.fail(ref, 'Deleted', 'stopped', startedAt);
    await this.#client.delete(PODS, ref, { gracePeriodSeconds: 0 });
  }

  /** Adds or replaces a condition of a Pod. */
  async setPodCondition(ref: Ref, condition: Omit<PodCondition, 'lastTransitionTime'>): Promise<void> {
    const pod = await this.#client.get(PODS, ref);
    const others = pod.status?.conditions?.filter(({ type }) => type !== condition.type) ?? [];
    const conditions = [...others, { ...condition, lastTransitionTime: now() }];
    await this.#client.mergePatch(PODS, ref, { status: { conditions } }, { subresource: 'status' });
  }

  /** Waits until the Pod of a Job is bound to this host, and reports that the task is under way. */
  async beginTask(job: Ref, report: TaskReport = {}): Promise<Ref> {
    const pod = await waitFor(`a Pod of Job ${job.name} on ${this.name}`, async () => {
      const { items } = await this.#client.list(PODS, {
        namespace: job.namespace ?? '',
        labelSelector: `${JOB_NAME_LABEL}=${job.name}`,
      });
      return items.find(({ spec }) => spec.nodeName === this.name);
    });
    const ref = { namespace: job.namespace ?? '', name: pod.metadata.name };
    await this.#report(ref, 'Running', { running: { startedAt: now() } }, TASK_CONTAINER);
    const message = JSON.stringify(report);
    await this.setPodCondition(ref, { type: TASK_CONDITION, status: 'True', reason: 'running', message });
    return ref;
  }

  async finishTask(ref: Ref, report: TaskReport): Promise<void> {
    const terminated = {
      exitCode: 0,
      reason: 'Completed',
      message: JSON.stringify(report),
      finishedAt: now(),
    };
    await this.#report(ref, 'Succeeded', { terminated }, TASK_CONTAINER);
  }

  async failTask(ref: Ref, reason: string, message: string): Promise<void> {
    const terminated = { exitCode: 1, reason, message, finishedAt: now() };
    await this.#report(ref, 'Failed', { terminated }, TASK_CONTAINER);
  }

  async #report(
    ref: Ref,
    phase: PodPhase,
    state: ContainerState,
    name = MACHINE_CONTAINER,
    size = true,
  ): Promise<void> {
    const { spec } = await this.#client.get(PODS, ref);
    const resources = spec.containers.find((container) => container.name === name)?.resources;
    const reported = size && resources !== undefined;
    const container = {
      name,
      image: 'guest',
      imageID: '',
      ready: state.running !== undefined,
      restartCount: 0,
      state,
      ...(reported && { resources, allocatedResources: resources.requests ?? {} }),
    };
    const status = { phase, startTime: now(), containerStatuses: [container] };
    await this.#client.mergePatch(PODS, ref, { status }, { subresource: 'status' });
  }

  async #renew(): Promise<void> {
    try {
      await this.#client.mergePatch(
        LEASES,
        { namespace: LEASE_NAMESPACE, name: this.name },
        { spec: { renewTime: microNow() } },
      );
      if (this.#staysReady) {
        await this.#becomeReady();
      }
    } catch (error) {
      // A missing object is not reported, because tests remove Nodes while heartbeats are sent. After every other fault, the cluster treats
      // the host as lost.
      if (!isNotFound(error)) {
        process.stderr.write(`heartbeat of ${this.name}: ${String(error)}\n`);
      }
    }
  }

  async #becomeReady(): Promise<void> {
    const { status } = await this.#client.get(NODES, { name: this.name });
    if (status?.conditions?.some((one) => one.type === 'Ready' && one.status === 'Unknown')) {
      await this.setCondition({ type: 'Ready', status: 'True', reason: 'AgentReady' });
    }
  }
}

/** Waits until the task of an Image or ISO has a Pod that is bound to a host. */
export function podOfTask(client: KubeClient, owner: Ref & { kind: string }): Promise<Pod> {
  const { kind, namespace = '', name } = owner;
  return waitFor(`a host for the task of ${kind} ${name}`, async () => {
    const { items: jobs } = await client.list(JOBS, { namespace });
    const job = jobs.find(({ metadata: { ownerReferences = [] } }) =>
      ownerReferences.some((one) => one.kind === kind && one.name === name),
    );
    const labelSelector = `${JOB_NAME_LABEL}=${job?.metadata.name}`;
    const { items: pods } = await client.list(PODS, { namespace, labelSelector });
    return pods.find(({ spec }) => spec.nodeName !== undefined);
  });
}

export async function setNodeCondition(
  client: KubeClient,
  name: string,
  condition: Omit<PodCondition, 'lastTransitionTime'>,
): Promise<void> {
  await waitFor(`condition ${condition.type} of host ${name} to be written`, async () => {
    const node = await client.get(NODES, { name });
    const others = node.status?.conditions?.filter(({ type }) => type !== condition.type) ?? [];
    const written = { ...condition, lastTransitionTime: now(), lastHeartbeatTime: now() };
    // The patch has a resourceVersion, because the controller-manager and the operator also write conditions and resources of the
    // Node.
    const metadata = { resourceVersion: node.metadata.resourceVersion };
    const status = { conditions: [...others, written] };
    await client.mergePatch(NODES, { name }, { metadata, status }, { subresource: 'status' });
    return true;
  });
}

function bareNode(
  name: string,
  { slots = 4, architecture = 'arm64', taints = [], images = [], version = '' }: HostPlan,
): Node {
  const resources = {
    cpu: '16',
    memory: '64Gi',
    'ephemeral-storage': '1Ti',
    pods: '110',
    'berth.dev/slot': String(slots),
  };
  const ready = { type: 'Ready', status: 'True' as const, reason: 'AgentReady' };
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name,
      labels: {
        'berth.dev/host': 'true',
        'berth.node-restriction.kubernetes.io/host': 'true',
        'kubernetes.io/arch': architecture,
        'kubernetes.io/os': 'linux',
        'kubernetes.io/hostname': name,
      },
    },
    spec: { taints: [{ key: 'berth.dev/host', value: 'true', effect: 'NoSchedule' }, ...taints] },
    status: {
      capacity: resources,
      allocatable: resources,
      conditions: [{ ...ready, lastHeartbeatTime: now(), lastTransitionTime: now() }],
      addresses: [{ type: 'InternalIP', address: '192.0.2.9' }],
      nodeInfo: { architecture, operatingSystem: 'linux', kubeletVersion: version },
      images,
    },
  };
}

/** Returns the time without fractions of a second, as `metav1.Time` requires. */
function now(): string {
  return new Date().toISOString().replace(/\.\d{3}Z$/, 'Z');
}

/** Returns the time with six fractional digits, as `metav1.MicroTime` requires. */
function microNow(): string {
  return new Date().toISOString().replace('Z', '000Z');
}
