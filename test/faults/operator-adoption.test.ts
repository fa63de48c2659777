/** Faults after which a machine has another Pod: its Node or its Pod is deleted while the machine runs. */
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { desiredSchema } from '../../api/v1alpha1/machine.ts';
import {
  ADOPTING_TAINT,
  ADOPTIONS,
  ADOPTS_ANNOTATION,
  AWAITED_ANNOTATION,
  DEDICATED_KEY,
  DESIRED_ANNOTATION,
  HOST_RECORDS,
} from '../../api/v1alpha1/names.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { readData } from '../../kube/configmapdata.ts';
import { NODES, type Node, type Taint } from '../../kube/core.ts';
import { conditionOf, VMs } from '../fixtures/vms.ts';
import { faultsIn } from '../support/operatorlog.ts';
import { ActingHost } from '../worlds/actinghost.ts';

/** Seconds until the controller-manager sets a silent host to Unknown: three heartbeats on a busy machine. */
const GRACE_SECONDS = 4;
/** Time until a silent host counts as lost, in seconds. */
const LOST_SECONDS = 3;
/** Time limit for the garbage collector of Kubernetes. It deletes the Pods of a missing Node after 40 s, and looks every 20 s. */
const COLLECTED = { deadlineMilliseconds: 100_000 };

let cluster: Cluster;
let operator: OperatorProcess;
let vms: VMs;
const hosts: ActingHost[] = [];
/** Reasons of a VM whose host does not report. */
const SILENT = new Set(['HostUnreachable', 'HostLost']);

beforeAll(async () => {
  cluster = await startCluster({
    name: `operator-adoption-${process.pid}`,
    nodeMonitorGracePeriodSeconds: GRACE_SECONDS,
  });
  operator = await cluster.startOperator({ config: { hostLostTimeoutSeconds: LOST_SECONDS } });
  vms = new VMs(cluster);
});

/** Removes the hosts of a failed test, so that the VMs of the next test cannot use them. */
afterEach(async () => {
  await Promise.all(hosts.splice(0).map((host) => host.remove()));
});

afterAll(async () => {
  await cluster?.stop();
});

async function join(name: string, taints: Taint[] = []): Promise<ActingHost> {
  const host = await ActingHost.join(cluster.client(), name, { taints, staysReady: true });
  hosts.push(host);
  return host;
}

function ref(name: string): { namespace: string; name: string } {
  return { namespace: vms.namespace, name };
}

async function runOn(host: ActingHost, name: string): Promise<string> {
  await vms.create(name, { placement: { node: host.name } });
  await host.waitForPod(ref(name));
  await host.run(ref(name));
  const { status } = await vms.waitForPhase(name, 'Running');
  return status?.firstRunningTime ?? '';
}

async function forcePod(name: string): Promise<void> {
  const force = ['--force', '--grace-period=0', '--wait=false'];
  await cluster.kubectl(['delete', 'pod', '-n', vms.namespace, name, ...force]);
}

async function recordOf(name: string): Promise<string | undefined> {
  return (await readData(cluster.client(), { namespace: 'berth-system', name: HOST_RECORDS }))[name];
}

/** Waits until no machine of the host waits for a Pod, and nothing is stored for such a Pod. */
async function waitUntilSettled(name: string): Promise<void> {
  await waitFor(`host ${name} to be settled`, async () => {
    const { metadata } = await cluster.client().get<Node>(NODES, { name });
    const stored = await readData(cluster.client(), { namespace: 'berth-system', name: ADOPTIONS });
    return metadata.annotations?.[AWAITED_ANNOTATION] === undefined && Object.keys(stored).length === 0;
  });
  await waitFor('the taint to be gone', async () => {
    const { spec } = await cluster.client().get<Node>(NODES, { name });
    return spec?.taints?.every(({ key }) => key !== ADOPTING_TAINT) ?? true;
  });
}

describe('no-lost-disk: a machine outlives its Pod', () => {
  it('its Node is deleted while its agent is away, and Kubernetes deletes the Pod: the VM continues, and the host is as before', async () => {
    const mine: Taint = { key: 'example.com/maintenance', value: 'soon', effect: 'PreferNoSchedule' };
    const host = await join('deleted', [mine]);
    const startedAt = await runOn(host, 'survivor');
    await cluster.kubectl([
      'label',
      'node',
      host.name,
      `${DEDICATED_KEY}=platform-default`,
      'tag.berth.dev/fast=',
    ]);
    await cluster.kubectl(['cordon', host.name]);
    await waitFor('the record of the host', async () =>
      (await recordOf(host.name))?.includes('unschedulable'),
    );
    const { uid } = (await vms.pod('survivor')).metadata;
    await host.remove();
    await vms.waitForVM('survivor', 'its host to be silent', (vm) =>
      SILENT.has(conditionOf(vm, 'Ready')?.reason ?? ''),
    );
    await waitFor(
      'the garbage collector to delete the Pod',
      async () => {
        return (await vms.pod('survivor')).metadata.deletionTimestamp !== undefined;
      },
      COLLECTED,
    );
    const lost = await vms.waitForPhase('survivor', 'Failed');
    expect(conditionOf(lost, 'Ready')).toMatchObject({ reason: 'HostLost' });
    expect(lost.status?.failure).toBeUndefined();
    expect((await vms.pod('survivor')).metadata.uid).toBe(uid);

    const again = await join(host.name);
    await waitFor('the next Pod', async () => (await vms.pod('survivor')).metadata.uid !== uid);
    const { metadata, spec } = await vms.pod('survivor');
    expect([spec.nodeName, metadata.annotations?.[ADOPTS_ANNOTATION]]).toEqual([host.name, uid]);
    await again.run(ref('survivor'));
    const back = await vms.waitForPhase('survivor', 'Running');
    expect(back.status).toMatchObject({ attempt: 1, firstRunningTime: startedAt });
    await waitUntilSettled(host.name);
    const node = await cluster.client().get<Node>(NODES, { name: host.name });
    expect(node.metadata.labels).toMatchObject({
      [DEDICATED_KEY]: 'platform-default',
      'tag.berth.dev/fast': '',
    });
    expect(node.spec).toMatchObject({ unschedulable: true, taints: expect.arrayContaining([mine]) });
    await vms.delete('survivor');
    await again.end(ref('survivor'), startedAt);
    await vms.waitUntilGone('survivor');
  }, 180_000);

  it('its Pod is deleted by force: the next Pod is on the same host, and the VM never leaves Running', async () => {
    const host = await join('forced');
    const startedAt = await runOn(host, 'kept');
    const { uid } = (await vms.pod('kept')).metadata;
    await forcePod('kept');
    await waitFor('the next Pod', async () => (await vms.pod('kept')).metadata.uid !== uid);
    expect((await vms.pod('kept')).spec.nodeName).toBe(host.name);
    expect((await vms.get('kept')).status?.phase).toBe('Running');
    await host.run(ref('kept'));
    await waitUntilSettled(host.name);
    expect((await vms.get('kept')).status).toMatchObject({
      phase: 'Running',
      attempt: 1,
      firstRunningTime: startedAt,
    });
    await vms.delete('kept');
    await host.end(ref('kept'), startedAt);
    await vms.waitUntilGone('kept');
  });

  it('its Pod is deleted by force, and its VM meanwhile: the host is told to end the machine', async () => {
    const host = await join('told');
    const startedAt = await runOn(host, 'ends');
    await host.silence();
    await vms.waitForVM('ends', 'its host to be silent', (vm) =>
      SILENT.has(conditionOf(vm, 'Ready')?.reason ?? ''),
    );
    await forcePod('ends');
    await vms.delete('ends');
    await waitFor('the order', async () => {
      const text = (await vms.pod('ends')).metadata.annotations?.[DESIRED_ANNOTATION];
      return desiredSchema.parse(JSON.parse(text ?? '')).deletion?.graceSeconds === 0;
    });
    await host.comeBack();
    await host.end(ref('ends'), startedAt);
    await vms.waitUntilGone('ends');
  });
});

describe('the operator', () => {
  it('has all rights that it needs, and none of its writes was refused as invalid', () => {
    expect(faultsIn(operator.logFile)).toEqual([]);
  });
});
