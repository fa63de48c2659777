import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { type Machine, machineSchema } from '../../api/v1alpha1/machine.ts';
import { MACHINE_ANNOTATION, POD_FINALIZER, VM_FINALIZER, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import { KubeClient } from '../../kube/client.ts';
import { LEASES, type Pod, PODS } from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { Transport } from '../../kube/transport.ts';
import { IMAGES, VM_CONFIGS, VMS } from '../../api/v1alpha1/resources.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { startOperator } from '../../hack/cluster/program.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { ApiProxy, type Write } from '../wires/apiproxy.ts';
import { faultsIn } from '../support/operatorlog.ts';
import { PodHistory } from '../support/podhistory.ts';
import { IMAGE, numbered, VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';
import { KeptOperator } from '../worlds/keptoperator.ts';

const FLEET = { deadlineMilliseconds: 90_000 };
const LEASE = { namespace: 'berth-system', name: 'berth-operator' };

let cluster: Cluster;
let proxy: ApiProxy;
let operator: OperatorProcess | undefined;
let history: PodHistory;
let vms: VMs;
let host: ActingHost;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-crash-${process.pid}` });
  history = await PodHistory.start(cluster.client());
  host = await ActingHost.join(cluster.client(), 'bare', { slots: 64 });
  proxy = await ApiProxy.start(cluster, 'proxied');
  vms = new VMs(cluster);
});

afterAll(async () => {
  history?.stop();
  await host?.silence();
  await operator?.stop();
  await proxy?.close();
  await cluster?.stop();
});

async function start(): Promise<void> {
  const config = { osx_node_platform_quota_pod: 64 };
  operator = await startOperator(cluster.directory, proxy.kubeconfig, { config });
}

function ref(name: string): { namespace: string; name: string } {
  return { namespace: vms.namespace, name };
}

async function machineOf(name: string): Promise<Machine> {
  const { annotations } = (await vms.pod(name)).metadata;
  return machineSchema.parse(JSON.parse(annotations?.[MACHINE_ANNOTATION] ?? ''));
}

/**
 * Kills the operator with SIGKILL at this write. The Lease is deleted, because the test is about the next operator and not about the Lease.
 */
async function killAtStop(): Promise<void> {
  await proxy.untilStopped();
  await operator?.kill('SIGKILL');
  await operator?.stopped;
  operator = undefined;
  proxy.goOn('lost');
  await cluster.client().delete(LEASES, LEASE);
}

function isVM(write: Write, name: string, subresource = ''): boolean {
  return write.path.endsWith(`/vms/${name}${subresource}`);
}

function isPod(write: Write, name: string): boolean {
  return write.path.endsWith(`/pods/${name}`);
}

async function bindAndRun(name: string): Promise<string> {
  await host.waitForPod(ref(name));
  await host.run(ref(name));
  const { status } = await vms.waitForPhase(name, 'Running');
  return status?.firstRunningTime ?? '';
}

/** Starts the next operator, which must bring the VM to Running with the only Pod that was ever created for it. */
async function goOnOnce(name: string): Promise<string> {
  await start();
  const startedAt = await bindAndRun(name);
  expect(await history.createdAs(vms.namespace, name)).toBe(1);
  return startedAt;
}

async function deleteAndEnd(name: string, startedAt: string): Promise<void> {
  await vms.delete(name);
  await host.end(ref(name), startedAt);
  await vms.waitUntilGone(name);
}

describe('kill -9 of the operator', () => {
  /** Each test kills the operator of the previous test. After a failed test there may be none. */
  beforeEach(async () => {
    if (operator === undefined) {
      await start();
    }
  });

  it('after the finalizer was written: one Pod is created, and the VM runs', async () => {
    proxy.stopAt('after', (write) => isVM(write, 'a') && write.body.includes(VM_FINALIZER));
    await vms.create('a');
    await killAtStop();
    expect((await vms.get('a')).metadata.finalizers).toContain(VM_FINALIZER);
    await expect(vms.pod('a')).rejects.toMatchObject({ status: 404 });
    await deleteAndEnd('a', await goOnOnce('a'));
  });

  it('after the Pod was created: this Pod runs', async () => {
    proxy.stopAt('after', (write) => write.method === 'POST' && write.path.endsWith('/pods'));
    await vms.create('b');
    await killAtStop();
    const { uid } = (await vms.pod('b')).metadata;
    // The API server sets this default. No operator has seen the VM.
    expect((await vms.get('b')).status).toEqual({ observedGeneration: -1 });
    const startedAt = await goOnOnce('b');
    expect((await vms.pod('b')).metadata.uid).toBe(uid);
    await deleteAndEnd('b', startedAt);
  });

  it('after the Pod was bound, before the VM shows it: this Pod runs', async () => {
    proxy.stopAt('before', (write) => isVM(write, 'c', '/status') && write.body.includes('"nodeName"'));
    await vms.create('c');
    await killAtStop();
    expect((await vms.pod('c')).spec.nodeName).toBe(host.name);
    expect((await vms.get('c')).status?.nodeName).toBeUndefined();
    // The machine starts while no operator runs.
    await host.run(ref('c'));
    await deleteAndEnd('c', await goOnOnce('c'));
  });

  it('no-lost-disk: a VM that lost its Pod meanwhile is Failed with PodDeleted, and is not created again', async () => {
    proxy.stopAt('before', (write) => isVM(write, 'd', '/status') && write.body.includes('"nodeName"'));
    await vms.create('d');
    await killAtStop();
    await host.run(ref('d'));
    const startedAt = new Date().toISOString().replace(/\.\d{3}Z$/, 'Z');
    await vms.deletePod('d');
    await host.end(ref('d'), startedAt);
    expect((await vms.pod('d')).metadata.finalizers).toEqual([POD_FINALIZER]);
    await start();
    const vm = await vms.waitForPhase('d', 'Failed', 'PodDeleted');
    expect(vm.status?.firstRunningTime).toBeDefined();
    await vms.waitUntilPodGone('d');
    expect(await history.createdAs(vms.namespace, 'd')).toBe(1);
    await vms.delete('d');
    await vms.waitUntilGone('d');
  });

  it('after the NAT failure was recorded, before the VM was deleted: the VM is deleted, and nothing is left', async () => {
    const record = '"failure":{"reason":"NATSelfHealFailed"';
    proxy.stopAt('after', (write) => isVM(write, 'e', '/status') && write.body.includes(record));
    await vms.create('e');
    await host.waitForPod(ref('e'));
    await host.fail(ref('e'), 'NATSelfHealFailed', 'no bridge');
    await killAtStop();
    const { metadata, status } = await vms.get('e');
    expect(status?.failure).toMatchObject({ reason: 'NATSelfHealFailed' });
    expect(metadata.deletionTimestamp).toBeUndefined();
    await start();
    await vms.waitUntilGone('e');
    expect(await history.createdAs(vms.namespace, 'e')).toBe(1);
  });

  it('before it deleted the Pod of a deleted VM: VM and Pod are removed', async () => {
    await vms.create('f');
    const startedAt = await bindAndRun('f');
    proxy.stopAt('before', (write) => write.method === 'DELETE' && isPod(write, 'f'));
    await vms.delete('f');
    await killAtStop();
    expect((await vms.pod('f')).metadata.deletionTimestamp).toBeUndefined();
    await start();
    await host.end(ref('f'), startedAt);
    await vms.waitUntilGone('f');
  });

  it('after it deleted the Pod of a deleted VM: VM and Pod are removed', async () => {
    await vms.create('g');
    const startedAt = await bindAndRun('g');
    proxy.stopAt('after', (write) => write.method === 'DELETE' && isPod(write, 'g'));
    await vms.delete('g');
    await killAtStop();
    expect((await vms.get('g')).metadata.finalizers).toContain(VM_FINALIZER);
    await host.end(ref('g'), startedAt);
    await start();
    await vms.waitUntilGone('g');
  });

  it('after it removed the finalizer from the Pod of a deleted VM: the VM is removed', async () => {
    await vms.create('h');
    const startedAt = await bindAndRun('h');
    proxy.stopAt('after', (write) => write.method === 'PATCH' && isPod(write, 'h'));
    await vms.delete('h');
    await host.end(ref('h'), startedAt);
    await killAtStop();
    await vms.waitUntilPodGone('h');
    expect((await vms.get('h')).metadata.finalizers).toContain(VM_FINALIZER);
    await start();
    await vms.waitUntilGone('h');
    expect(await history.createdAs(vms.namespace, 'h')).toBe(1);
  });

  it('caused no write that was refused as forbidden or invalid', async () => {
    const { logFile } = operator ?? {};
    expect(faultsIn(logFile ?? '')).toEqual([]);
  });
});

describe('a watch of VMs that lags', () => {
  const VM_WATCH = '/apis/berth.dev/v1alpha1/vms';
  let transport: Transport;
  /** A client that acts as another operator. */
  let other: KubeClient;

  beforeAll(async () => {
    if (operator === undefined) {
      await start();
    }
    const connection = await loadConnection({ kubeconfigPath: cluster.operatorKubeconfig });
    transport = new Transport(connection, { metrics: createMetrics() });
    other = new KubeClient(transport);
  });

  afterEach(() => proxy.speak());

  afterAll(async () => await transport.close());

  /** Waits until the operator has received all changes of this VM, and then holds back all events about VMs. */
  async function lag(name: string): Promise<void> {
    const { resourceVersion } = (await vms.get(name)).metadata;
    await waitFor('the last change', () => proxy.hasPassedOn(`"resourceVersion":"${resourceVersion}"`));
    proxy.silence(VM_WATCH);
  }

  /** Creates a Pod like that of a VM with this uid. No scheduler places it. */
  async function createPod(name: string, like: Pod, vmUid: string | undefined): Promise<void> {
    const { labels, annotations = {} } = like.metadata;
    const { nodeName: _, ...spec } = like.spec;
    await other.create(PODS, {
      metadata: { ...ref(name), annotations, labels: { ...labels, [VM_UID_LABEL]: vmUid ?? '' } },
      spec: { ...spec, schedulerName: 'nobody' },
    });
  }

  it('no-lost-disk: a Pod with an unseen VM stays, and a Pod with a deleted VM is removed', async () => {
    await vms.create('seen');
    const startedAt = await bindAndRun('seen');
    const like = await vms.pod('seen');
    await lag('seen');
    const unseen = await vms.create('unseen');
    await createPod('unseen', like, unseen.metadata.uid);
    await createPod('orphan', like, like.metadata.uid);
    await vms.waitUntilPodGone('orphan');
    expect((await vms.pod('unseen')).metadata.deletionTimestamp).toBeUndefined();
    proxy.speak();
    await vms.delete('unseen');
    await vms.waitUntilGone('unseen');
    expect(await history.createdAs(vms.namespace, 'unseen')).toBe(1);
    await deleteAndEnd('seen', startedAt);
  });

  it('a status that another operator has written meanwhile is not overwritten', async () => {
    await vms.create('twice-led');
    const startedAt = await bindAndRun('twice-led');
    await lag('twice-led');
    const hostAddress = '192.0.2.7';
    await other.mergePatch(VMS, ref('twice-led'), { status: { hostAddress } }, { subresource: 'status' });
    const { length: sent } = proxy.writes;
    await host.stopped(ref('twice-led'));
    const answered = await waitFor('its write of the status to be answered', () =>
      proxy.writes
        .slice(sent)
        .find((write) => isVM(write, 'twice-led', '/status') && write.status !== undefined),
    );
    expect(answered.status).toBe(409);
    expect((await vms.get('twice-led')).status).toMatchObject({ hostAddress, phase: 'Running' });
    proxy.speak();
    await vms.waitForPhase('twice-led', 'Stopped');
    await deleteAndEnd('twice-led', startedAt);
  });
});

describe('the API server', () => {
  it('no-lost-disk: loses its answer about a new Pod, which runs meanwhile: this Pod is used', async () => {
    if (operator === undefined) {
      await start();
    }
    proxy.silence('/api/v1/pods');
    proxy.stopAt('after', (write) => write.method === 'POST' && write.path.endsWith('/pods'));
    await vms.create('i');
    await proxy.untilStopped();
    await host.waitForPod(ref('i'));
    await host.run(ref('i'));
    proxy.goOn('lost');
    const { status } = await vms.waitForPhase('i', 'Running');
    proxy.speak();
    expect(status).toMatchObject({ attempt: 1, nodeName: host.name });
    expect((await vms.pod('i')).metadata.deletionTimestamp).toBeUndefined();
    await deleteAndEnd('i', status?.firstRunningTime ?? '');
    expect(await history.createdAs(vms.namespace, 'i')).toBe(1);
  });

  it('reports an edit too late: a VM created after it has the edited VMConfig and the edited Image', async () => {
    if (operator === undefined) {
      await start();
    }
    const client = cluster.client();
    const place = { namespace: vms.namespace, name: 'edited' };
    // This source of the Image needs no Job.
    const source = { empty: { size: '1Gi' } };
    await client.create(VM_CONFIGS, { metadata: place, spec: { image: IMAGE, cpu: 1 } });
    await client.create(IMAGES, { metadata: place, spec: { source } });
    await vms.create('before', { configRef: { name: 'edited' } });
    await vms.create('before-too', { image: 'edited' });
    for (const name of ['before', 'before-too']) {
      await host.waitForPod(ref(name));
    }

    proxy.silence('/apis/berth.dev/v1alpha1/vmconfigs');
    await client.mergePatch(VM_CONFIGS, place, { spec: { cpu: 3 } });
    await vms.create('after', { configRef: { name: 'edited' } });
    await host.waitForPod(ref('after'));
    proxy.speak();
    proxy.silence('/apis/berth.dev/v1alpha1/images');
    await client.mergePatch(IMAGES, place, { spec: { os: 'Windows' } });
    await vms.create('after-too', { image: 'edited' });
    await host.waitForPod(ref('after-too'));
    proxy.speak();

    expect(await machineOf('after')).toMatchObject({ config: { name: 'edited', generation: 2 } });
    expect((await vms.pod('after')).spec.containers[0]?.resources?.requests).toMatchObject({ cpu: '3' });
    expect(await machineOf('after-too')).toMatchObject({ os: 'Windows' });
    for (const name of ['before', 'before-too', 'after', 'after-too']) {
      await vms.delete(name);
      await host.end(ref(name));
      await vms.waitUntilGone(name);
    }
  });

  /** The client tolerates lost connections, like any client: it waits and tries again. */
  async function createOnce(name: string): Promise<boolean> {
    const known = await vms.list();
    if (known.every(({ metadata }) => metadata.name !== name)) {
      await vms.create(name);
    }
    return true;
  }

  it('is killed and restarted while VMs are created: all run, none is lost, and none exists twice', async () => {
    await operator?.stop();
    await host.remove();
    await cluster.addHosts(10);
    const kept = await KeptOperator.start(cluster, { name: 'kept' });
    const names = numbered('many', 30);
    const requests = names.map((name) => waitFor(`VM ${name} to be made`, () => createOnce(name), FLEET));
    const made = Promise.all(requests);
    // If another step fails first, the test fails for that reason.
    made.catch(() => undefined);
    await waitFor('the first to run', async () => (await vms.names('Running')).length > 0, FLEET);
    await cluster.component('kube-apiserver').restart('SIGKILL');
    await made;
    for (const name of names) {
      await vms.waitForPhase(name, 'Running', undefined, FLEET);
    }
    await kept.stop();
    const { items } = await cluster.client().list(PODS, { namespace: vms.namespace });
    expect(items).toHaveLength(names.length);
    const created = await Promise.all(names.map((name) => history.createdAs(vms.namespace, name)));
    expect(created).toEqual(names.map(() => 1));
    expect((await vms.list()).map(({ status }) => status?.attempt)).toEqual(names.map(() => 1));
  });
});
