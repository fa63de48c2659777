/** Reports of the agent about Pods, against a real API server. The machines are stand-ins. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { hashDesired } from '../../../agent/pods/pod.ts';
import { DESIRED_ANNOTATION, MACHINE_CONDITION, NETWORK_CONDITION } from '../../../api/v1alpha1/names.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { KubeClient } from '../../../kube/client.ts';
import { type Lease, LEASES, NODES, type Pod, PODS } from '../../../kube/core.ts';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import { isGone } from '../../fixtures/objects.ts';
import { waitFor } from '../../../hack/wait.ts';
import { DESIRED, machineFor, operatorClient, podFor, setDesired, TestHost } from '../../worlds/agenthost.ts';

const NAMESPACE = 'platform-agent';
/** Number of the agent's network checks for 2 s. Within this time, all periodic writes of the agent have happened. */
const QUIET_CHECKS = 20;
/** Grace period that no test waits for. */
const LONG_GRACE_SECONDS = 600;

let cluster: Cluster;
let host: TestHost;
let operator: KubeClient;

beforeAll(async () => {
  cluster = await startCluster({ name: `agent-${process.pid}` });
  await cluster.createNamespace(NAMESPACE);
  operator = await operatorClient(cluster);
  host = await TestHost.make(cluster, { name: 'mac1', tags: ['fast'] });
  await host.start();
});

afterAll(async () => {
  await host.remove();
  await cluster.stop();
});

async function read(name: string): Promise<Pod> {
  return await operator.get(PODS, { namespace: NAMESPACE, name });
}

async function waitForPod(name: string, what: string, test: (pod: Pod) => boolean): Promise<Pod> {
  return await waitFor(`${name} ${what}`, async () => {
    const pod = await read(name);
    if (!test(pod)) {
      throw new Error(JSON.stringify(pod.status));
    }
    return pod;
  });
}

async function gone(name: string): Promise<void> {
  await waitFor(`${name} to be gone`, () => isGone(() => read(name)));
}

function waiting(pod: Pod): string | undefined {
  return pod.status?.containerStatuses?.[0]?.state?.waiting?.reason;
}

function condition(pod: Pod, type: string) {
  return pod.status?.conditions?.find((one) => one.type === type);
}

function isReady(pod: Pod): boolean {
  return condition(pod, 'Ready')?.status === 'True';
}

/** Resolves with the Pod when its status is complete. The condition of the network may follow that of the machine. */
async function run(name: string, desired = DESIRED): Promise<Pod> {
  await operator.create(PODS, podFor(host, machineFor(NAMESPACE, name), desired));
  return await waitForPod(
    name,
    'Ready, and its network looked at',
    (pod) => isReady(pod) && condition(pod, NETWORK_CONDITION)?.status === 'True',
  );
}

async function readLease(): Promise<Lease> {
  return await cluster.client().get(LEASES, { namespace: 'kube-node-lease', name: 'mac1' });
}

/** Returns what the agent has done with a machine so far, in its order. */
function callsOf(uid: string): string[] {
  return host.driver.calls
    .filter((call) => call.endsWith(` ${uid}`))
    .map((call) => call.slice(0, -uid.length - 1));
}

/** Waits until all periodic writes of the running agent have happened. */
async function quietTime(): Promise<void> {
  const enough = host.network.checks + QUIET_CHECKS;
  await waitFor(`${QUIET_CHECKS} network checks`, () => host.network.checks >= enough);
}

async function destroy(name: string): Promise<void> {
  await operator.delete(PODS, { namespace: NAMESPACE, name });
  await gone(name);
}

describe('the host', () => {
  test('is a Node with label, tag, taint, address and a Lease of its own', async () => {
    const node = await cluster.client().get(NODES, { name: 'mac1' });
    expect(node.metadata.labels).toMatchObject({ 'berth.dev/host': 'true', 'tag.berth.dev/fast': '' });
    // With this label, each DaemonSet for Linux nodes of the cluster would place a Pod here.
    expect(node.metadata.labels).not.toHaveProperty('kubernetes.io/os');
    expect(node.spec?.taints).toContainEqual({ key: 'berth.dev/host', value: 'true', effect: 'NoSchedule' });
    expect(node.status?.addresses).toEqual([{ type: 'InternalIP', address: '127.0.0.1' }]);
    expect(node.status?.allocatable).toMatchObject({ 'berth.dev/slot': '4' });
    await waitFor('the Lease to belong to the Node', async () => {
      const { metadata } = await readLease();
      return metadata.ownerReferences?.[0]?.uid === node.metadata.uid;
    });
    expect((await readLease()).spec?.holderIdentity).toBe('mac1');
  });

  test('restores its Ready condition after the control plane wrote Unknown', async () => {
    const unknown = { type: 'Ready', status: 'Unknown', reason: 'NodeStatusUnknown' };
    await cluster
      .client()
      .mergePatch(NODES, { name: 'mac1' }, { status: { conditions: [unknown] } }, { subresource: 'status' });
    await waitFor('Ready', async () => {
      const node = await cluster.client().get(NODES, { name: 'mac1' });
      const ready = node.status?.conditions?.find(({ type }) => type === 'Ready');
      return ready?.status === 'True' && node.status?.allocatable?.['berth.dev/slot'] === '4';
    });
  });
});

describe('a machine', () => {
  test('goes from Pulling to Running, and its Pod is Ready', async () => {
    let open: () => void = () => undefined;
    host.images.gate = new Promise((resolve) => {
      open = resolve;
    });
    await operator.create(PODS, podFor(host, machineFor(NAMESPACE, 'first')));
    const pulling = await waitForPod('first', 'Pulling', (pod) => waiting(pod) === 'Pulling');
    expect(pulling.status?.phase).toBe('Pending');
    expect(condition(pulling, MACHINE_CONDITION)).toMatchObject({ status: 'False', reason: 'Pulling' });
    open();
    const running = await waitForPod('first', 'Ready', isReady);
    expect(running.status).toMatchObject({ phase: 'Running', hostIP: '127.0.0.1', podIP: '127.0.0.1' });
    const report: unknown = JSON.parse(condition(running, MACHINE_CONDITION)?.message ?? '');
    expect(report).toMatchObject({
      desiredHash: hashDesired(running.metadata.annotations?.[DESIRED_ANNOTATION] ?? ''),
      cpu: 1,
      imageDigest: 'sha256:0',
      accelerator: 'standin',
    });
    await destroy('first');
    expect(host.driver.machines.size).toBe(0);
    expect(host.network.attachments.size).toBe(0);
  });

  test('is stopped, suspended and resumed as desired, in the same Pod', async () => {
    const pod = await run('power');
    const { uid = '' } = pod.metadata;
    await setDesired(operator, pod, { ...DESIRED, powerState: 'Stopped' });
    const stopped = await waitForPod('power', 'Stopped', (one) => waiting(one) === 'Stopped');
    expect(stopped.status?.phase).toBe('Running');
    expect(condition(stopped, 'Ready')).toMatchObject({ status: 'False', reason: 'Stopped' });
    await setDesired(operator, pod, DESIRED);
    await waitForPod('power', 'Ready', isReady);
    await setDesired(operator, pod, { ...DESIRED, powerState: 'Suspended' });
    await waitForPod('power', 'Suspended', (one) => waiting(one) === 'Suspended');
    await setDesired(operator, pod, DESIRED);
    const resumed = await waitForPod('power', 'Ready', isReady);
    expect(resumed.metadata.uid).toBe(uid);
    expect(callsOf(uid)).toEqual(['create', 'start', 'power', 'stop', 'start', 'suspend', 'resume']);
    await destroy('power');
  });

  test('that its guest shut down is Stopped with reason GuestShutdown, and starts when a restart is requested', async () => {
    const pod = await run('shutdown');
    host.driver.end(pod.metadata.uid ?? '', 'GuestShutdown', '');
    const stopped = await waitForPod('shutdown', 'Stopped', (one) => waiting(one) === 'Stopped');
    expect(condition(stopped, MACHINE_CONDITION)?.reason).toBe('GuestShutdown');
    await setDesired(operator, pod, { ...DESIRED, restartRequestedAt: '2026-01-01T00:00:00Z' });
    const again = await waitForPod('shutdown', 'Ready', isReady);
    expect(JSON.parse(condition(again, MACHINE_CONDITION)?.message ?? '')).toMatchObject({
      restartedAt: '2026-01-01T00:00:00Z',
    });
    expect(again.status?.containerStatuses?.[0]?.restartCount).toBe(1);
    await destroy('shutdown');
  });

  test('that crashes under Never is Failed with its last words, once its network is removed', async () => {
    const pod = await run('crash');
    host.driver.end(pod.metadata.uid ?? '', 'Crashed', 'qemu: out of luck');
    const failed = await waitForPod('crash', 'Failed', (one) => one.status?.phase === 'Failed');
    expect(failed.status?.containerStatuses?.[0]?.state?.terminated).toMatchObject({
      exitCode: 1,
      reason: 'Crashed',
      message: 'qemu: out of luck',
    });
    expect(host.network.attachments.size).toBe(0);
    await destroy('crash');
    // The API server removes an ended Pod at once. The agent removes the disk when it learns of that.
    await waitFor('the disk to be gone', () => host.driver.machines.size === 0);
  });

  test('that crashes is started again under OnFailure', async () => {
    const pod = await run('again', { ...DESIRED, restartPolicy: 'OnFailure' });
    host.driver.end(pod.metadata.uid ?? '', 'Crashed', 'qemu: out of luck');
    await waitForPod(
      'again',
      'restarted',
      (one) => one.status?.containerStatuses?.[0]?.restartCount === 1 && isReady(one),
    );
    expect(host.driver.calls.filter((call) => call === `start ${pod.metadata.uid}`)).toHaveLength(2);
    await destroy('again');
  });

  test('that cannot start is Failed with the message of the hypervisor', async () => {
    host.driver.startError = new ReasonedError('DiskInvalid', 'qemu: bad disk');
    await operator.create(PODS, podFor(host, machineFor(NAMESPACE, 'baddisk')));
    const failed = await waitForPod('baddisk', 'Failed', (one) => one.status?.phase === 'Failed');
    expect(failed.status).toMatchObject({ reason: 'DiskInvalid', message: 'qemu: bad disk' });
    await destroy('baddisk');
  });

  test('past its active deadline is Failed with DeadlineExceeded', async () => {
    await operator.create(
      PODS,
      podFor(host, machineFor(NAMESPACE, 'deadline'), DESIRED, { activeDeadlineSeconds: 2 }),
    );
    const failed = await waitForPod('deadline', 'Failed', (one) => one.status?.phase === 'Failed');
    expect(failed.status?.reason).toBe('DeadlineExceeded');
    await destroy('deadline');
  });
});

describe('admission', () => {
  test('refuses a fifth machine that was bound without the scheduler', async () => {
    const names = ['slot-1', 'slot-2', 'slot-3', 'slot-4'];
    await Promise.all(names.map((name) => run(name)));
    await operator.create(PODS, podFor(host, machineFor(NAMESPACE, 'slot-5')));
    const refused = await waitForPod('slot-5', 'Failed', (one) => one.status?.phase === 'Failed');
    expect(refused.status?.reason).toBe('OutOfSlot');
    await Promise.all([...names, 'slot-5'].map(destroy));
  });

  test('keeps a Pod that is not Berth’s waiting, and releases it', async () => {
    const pod = podFor(host, machineFor(NAMESPACE, 'foreign'));
    pod.metadata.annotations = {};
    await operator.create(PODS, pod);
    const parked = await waitForPod('foreign', 'parked', (one) => waiting(one) === 'HostRunsOnlyMachines');
    expect(parked.status?.phase).toBe('Pending');
    await destroy('foreign');
  });

  test('refuses a Pod of a newer operator that it does not understand', async () => {
    const machine = { ...machineFor(NAMESPACE, 'newer'), apiVersion: 'machine.berth.dev/v2' };
    await operator.create(PODS, podFor(host, machine as ReturnType<typeof machineFor>));
    const failed = await waitForPod('newer', 'Failed', (one) => one.status?.phase === 'Failed');
    expect(failed.status?.reason).toBe('AgentTooOld');
    await destroy('newer');
  });
});

describe('a port that the host chose', () => {
  test('is kept by the next agent; a Pod that reserves it waits, and the message names its VM', async () => {
    const automaticPorts = [{ purpose: 'ssh', protocol: 'TCP', guestPort: 22 }] as const;
    const chooses = machineFor(NAMESPACE, 'chooses', { automaticPorts: [...automaticPorts] });
    const { metadata } = await operator.create(PODS, podFor(host, chooses));
    const running = await waitForPod('chooses', 'Ready', isReady);
    const report: unknown = JSON.parse(condition(running, MACHINE_CONDITION)?.message ?? '');
    expect(report).toMatchObject({ endpoints: [9122] });
    await host.stop();
    await host.launch();
    const port = { protocol: 'TCP', hostPort: 9122, guestPort: 22 } as const;
    await operator.create(PODS, podFor(host, machineFor(NAMESPACE, 'reserves', { ports: [port] })));
    const waits = await waitForPod('reserves', 'PortTaken', (pod) => waiting(pod) === 'PortTaken');
    expect(waits.status?.containerStatuses?.[0]?.state?.waiting?.message).toBe(
      'Port 9122/TCP is held by VM chooses, for which this host chose the port',
    );
    const attached = host.network.attachments.get(metadata.uid ?? '');
    expect(attached?.ports).toEqual([{ ...port, automatic: true }]);
    await destroy('chooses');
    await waitForPod('reserves', 'Ready', isReady);
    await destroy('reserves');
  });
});

describe('deletion', () => {
  test('presses the power button, and takes the power away when the grace period was shortened', async () => {
    const { uid = '' } = (await run('deaf')).metadata;
    host.driver.deaf = true;
    const gracePeriodSeconds = LONG_GRACE_SECONDS;
    await operator.delete(PODS, { namespace: NAMESPACE, name: 'deaf' }, { gracePeriodSeconds });
    await waitForPod(
      'deaf',
      'Terminating',
      (one) => condition(one, MACHINE_CONDITION)?.reason === 'Terminating',
    );
    await waitFor('the power button', () => callsOf(uid).includes('power'));
    expect(callsOf(uid)).not.toContain('stop');
    await operator.delete(PODS, { namespace: NAMESPACE, name: 'deaf' }, { gracePeriodSeconds: 1 });
    // The wait for this is far shorter than the first grace period.
    await gone('deaf');
    host.driver.deaf = false;
    expect(host.driver.machines.size).toBe(0);
  });

  test('by force destroys the machine of a Pod that no longer exists', async () => {
    await run('forced');
    await operator.delete(PODS, { namespace: NAMESPACE, name: 'forced' }, { gracePeriodSeconds: 0 });
    await waitFor('the machine to be gone', () => host.driver.machines.size === 0);
  });

  test('of a Pod with finalizers of others reports the end and waits', async () => {
    const held = podFor(host, machineFor(NAMESPACE, 'held'));
    held.metadata.finalizers = ['example.com/hold'];
    await operator.create(PODS, held);
    await waitForPod('held', 'Ready', isReady);
    await operator.delete(PODS, { namespace: NAMESPACE, name: 'held' });
    const ended = await waitForPod('held', 'ended', (one) => one.status?.phase === 'Failed');
    expect(ended.status?.containerStatuses?.[0]?.state?.terminated?.exitCode).toBe(143);
    await operator.mergePatch(
      PODS,
      { namespace: NAMESPACE, name: 'held' },
      { metadata: { finalizers: null } },
    );
    await gone('held');
  });
});

describe('an agent that returns', () => {
  test('continues with its machines, and writes nothing about them', async () => {
    await run('kept');
    await quietTime();
    const before = await read('kept');
    await host.stop();
    const { spec: last } = await readLease();
    await host.launch();
    await waitFor('the next agent', async () => (await readLease()).spec?.renewTime !== last?.renewTime);
    await quietTime();
    expect((await read('kept')).metadata.resourceVersion).toBe(before.metadata.resourceVersion);
    await destroy('kept');
  });

  test('destroys machines whose Pods vanished meanwhile, and restarts machines that ended with the host', async () => {
    const lost = await run('vanished');
    const rebooted = await run('rebooted');
    await host.stop();
    await operator.delete(PODS, { namespace: NAMESPACE, name: 'vanished' }, { gracePeriodSeconds: 0 });
    host.driver.end(rebooted.metadata.uid ?? '', 'Crashed', 'no process');
    await host.launch();
    await waitFor('the stray to be gone', () => !host.driver.machines.has(lost.metadata.uid ?? ''));
    await waitForPod(
      'rebooted',
      'restarted',
      (one) => one.status?.containerStatuses?.[0]?.restartCount === 1 && isReady(one),
    );
    await destroy('rebooted');
  });

  test('creates its Node again after a deletion, and keeps its machines', async () => {
    const { uid = '' } = (await run('survivor')).metadata;
    await cluster.client().delete(NODES, { name: 'mac1' });
    await waitFor('the Node', async () => await cluster.client().get(NODES, { name: 'mac1' }));
    await host.setSlots(4);
    await quietTime();
    expect(isReady(await read('survivor'))).toBe(true);
    expect(callsOf(uid)).toEqual(['create', 'start']);
    await destroy('survivor');
  });
});
