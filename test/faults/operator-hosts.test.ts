import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { GIVEN_UP_ANNOTATION, HOST_RECORDS, NAT_TAINT, POD_FINALIZER } from '../../api/v1alpha1/names.ts';
import { readData } from '../../kube/configmapdata.ts';
import { NODES, type Node, type Taint } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { allowMetrics, faultsIn, readMetrics } from '../support/operatorlog.ts';
import { PodHistory } from '../support/podhistory.ts';
import { conditionOf, VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';

/** Seconds until the controller-manager sets a silent host to Unknown: three heartbeats on a busy machine. */
const GRACE_SECONDS = 4;
/** Time until a silent host counts as lost, in seconds. */
const LOST_SECONDS = 3;
/** Limit of the API server for all annotations of an object, keys and values together. */
const ANNOTATIONS_LIMIT_BYTES = 256 * 1024;
const OUT_OF_SERVICE = {
  key: 'node.kubernetes.io/out-of-service',
  value: 'nodeshutdown',
  effect: 'NoExecute',
} satisfies Taint;

let cluster: Cluster;
let operator: OperatorProcess;
let history: PodHistory;
let vms: VMs;
const hosts: ActingHost[] = [];
/** Names of VMs whose host was unreachable. A VM has this reason only until its host counts as lost. */
const unreachable = new Set<string>();
/** Names of VMs that were Failed at some time. */
const failed = new Set<string>();
const watching = new AbortController();

beforeAll(async () => {
  cluster = await startCluster({
    name: `operator-hosts-${process.pid}`,
    nodeMonitorGracePeriodSeconds: GRACE_SECONDS,
  });
  await allowMetrics(cluster);
  history = await PodHistory.start(cluster.client());
  operator = await cluster.startOperator({ config: { hostLostTimeoutSeconds: LOST_SECONDS } });
  vms = new VMs(cluster);
  await watch();
});

/** Removes the hosts of a failed test, so that the VMs of the next test cannot use them. */
afterEach(async () => {
  await Promise.all(hosts.splice(0).map((host) => host.remove()));
});

afterAll(async () => {
  watching.abort(new Error('the tests are over'));
  history?.stop();
  await cluster?.stop();
});

async function watch(): Promise<void> {
  const informer = new Informer<VM>(cluster.client(), VMS, { logger: pino({ level: 'silent' }) });
  informer.cache.onChange(({ object }) => {
    const { status, reason } = conditionOf(object, 'Ready') ?? {};
    if (status === 'Unknown' && reason === 'HostUnreachable') {
      unreachable.add(object.metadata.name);
    }
    if (object.status?.phase === 'Failed') {
      failed.add(object.metadata.name);
    }
  });
  informer.start(watching.signal);
  await informer.synced;
}

async function waitUntilUnreachable(name: string): Promise<void> {
  await waitFor(`the host of VM ${name} to be unreachable`, () => unreachable.has(name));
}

async function join(name: string, taints: Taint[] = []): Promise<ActingHost> {
  const host = await ActingHost.join(cluster.client(), name, { taints, staysReady: true });
  hosts.push(host);
  return host;
}

function ref(name: string): { namespace: string; name: string } {
  return { namespace: vms.namespace, name };
}

function on(host: ActingHost): object {
  return { placement: { node: host.name } };
}

async function runOn(host: ActingHost, name: string): Promise<string> {
  await vms.create(name, on(host));
  await host.waitForPod(ref(name));
  await host.run(ref(name));
  const { status } = await vms.waitForPhase(name, 'Running');
  return status?.firstRunningTime ?? '';
}

async function taintsOf(host: ActingHost): Promise<string[]> {
  const { spec } = await cluster.client().get<Node>(NODES, { name: host.name });
  return (spec?.taints ?? []).map(({ key }) => key).filter((key) => !key.startsWith('node.kubernetes.io/'));
}

async function taint(host: ActingHost, added: Taint): Promise<void> {
  await cluster.kubectl(['taint', 'node', host.name, `${added.key}=${added.value}:${added.effect}`]);
}

/** Resolves with the time at which the cluster noticed the silent host, in milliseconds since the epoch. */
async function untilUnknown(host: ActingHost): Promise<number> {
  return await waitFor(`host ${host.name} to be Unknown`, async () => {
    const { status } = await cluster.client().get(NODES, { name: host.name });
    const ready = status?.conditions?.find(({ type }) => type === 'Ready');
    return ready?.status === 'Unknown' && Date.parse(ready.lastTransitionTime ?? '');
  });
}

/** Asks the operator with kubectl to give up a host. */
async function giveUp(name: string): Promise<void> {
  const patch = JSON.stringify({ data: { [`give-up_${name}`]: 'its power supply burnt' } });
  await cluster.kubectl([
    'patch',
    'configmap',
    '-n',
    'berth-system',
    HOST_RECORDS,
    '--type=merge',
    '-p',
    patch,
  ]);
}

async function hostRecords(): Promise<Readonly<Record<string, string>>> {
  return await readData(cluster.client(), { namespace: 'berth-system', name: HOST_RECORDS });
}

async function eventsOf(name: string): Promise<string> {
  const selector = `involvedObject.kind=VM,involvedObject.name=${name}`;
  return (await cluster.kubectl(['get', 'events', '-n', vms.namespace, '--field-selector', selector])).stdout;
}

describe('nat-or-nothing', () => {
  it('a VM whose NAT cannot be repaired before its first run: Failed, Event, metric, then deleted, nothing left', async () => {
    const host = await join('nat-broken');
    await vms.create('unhealed', on(host));
    await host.waitForPod(ref('unhealed'));
    await host.waiting(ref('unhealed'), 'Starting');
    await vms.waitForPhase('unhealed', 'Starting');
    await host.fail(ref('unhealed'), 'NATSelfHealFailed', 'the bridge cannot be set up');
    await vms.waitUntilGone('unhealed');
    await waitFor('the VM to have been shown as Failed', () => failed.has('unhealed'));
    await waitFor('the Event', async () => /Warning\s+NATSelfHealFailed/.test(await eventsOf('unhealed')));
    const counted = [
      'berth_vm_deployments_failed_total{vm_namespace="platform-default",reason="NATSelfHealFailed"} 1',
      'berth_pending_vms{vm_namespace="platform-default"} 0',
    ];
    await waitFor('the metrics to tell', async () => {
      const lines = (await readMetrics(cluster, operator)).split('\n');
      return counted.every((line) => lines.includes(line));
    });
    expect(await history.createdAs(vms.namespace, 'unhealed')).toBe(1);
  });

  it('a host with broken NAT is tainted until it recovers, and taints of administrators stay', async () => {
    const mine: Taint = { key: 'example.com/maintenance', value: 'soon', effect: 'PreferNoSchedule' };
    const host = await join('nat-tainted', [mine]);
    const broken = { type: 'berth.dev/NATReady', reason: 'BridgeDown', message: 'the bridge is down' };
    await host.setCondition({ ...broken, status: 'False' });
    await waitFor('the taint', async () => (await taintsOf(host)).includes(NAT_TAINT));
    expect(await taintsOf(host)).toEqual(expect.arrayContaining([mine.key, 'berth.dev/host']));
    await vms.create('elsewhere', on(host));
    const { message } = await vms.waitForCondition('elsewhere', 'Scheduled', {
      status: 'False',
      reason: 'Unschedulable',
    });
    expect(message).toContain('1 with broken NAT');

    await host.setCondition({ ...broken, status: 'True', reason: 'Healed', message: '' });
    await host.waitForPod(ref('elsewhere'));
    expect((await taintsOf(host)).toSorted((a, b) => a.localeCompare(b))).toEqual([
      'berth.dev/host',
      mine.key,
    ]);
    await vms.delete('elsewhere');
    await host.end(ref('elsewhere'));
    await vms.waitUntilGone('elsewhere');
  });

  it('a VM that has run is never deleted for it', async () => {
    const host = await join('nat-later');
    const startedAt = await runOn(host, 'ran');
    await host.setPodCondition(ref('ran'), {
      type: 'berth.dev/Network',
      status: 'False',
      reason: 'BridgeDown',
    });
    await vms.waitForCondition('ran', 'NetworkReady', { status: 'False', reason: 'BridgeDown' });
    await host.fail(ref('ran'), 'NATSelfHealFailed', 'an agent that should not say so', startedAt);
    await vms.waitForPhase('ran', 'Failed', 'NATSelfHealFailed');
    await waitFor('the Event', async () => /Warning\s+NATSelfHealFailed/.test(await eventsOf('ran')));
    expect((await vms.get('ran')).metadata.deletionTimestamp).toBeUndefined();
    await vms.delete('ran');
    await vms.waitUntilGone('ran');
  });
});

describe('a host that refuses a machine before it ran', () => {
  it('PortTaken: the VM goes to another host, three times at most', async () => {
    const tried: string[] = [];
    const some = await Promise.all(['taken-0', 'taken-1', 'taken-2', 'taken-3'].map((name) => join(name)));
    await vms.create('moves', { ports: ['8822:22'] });
    for (let attempt = 1; attempt <= 4; attempt += 1) {
      const host = await waitFor(`attempt ${attempt} to be bound`, async () => {
        const { spec, status, metadata } = await vms.pod('moves');
        const isNew = metadata.deletionTimestamp === undefined && status?.phase === 'Pending';
        return isNew && some.find(({ name }) => name === spec.nodeName);
      });
      tried.push(host.name);
      await host.fail(ref('moves'), 'PortTaken', '8822/TCP is in use on this host');
    }
    const vm = await vms.waitForPhase('moves', 'Failed', 'PortTaken');
    expect(new Set(tried).size, 'never the same host twice').toBe(4);
    expect(vm.status?.attempt).toBe(4);
    await vms.delete('moves');
    await vms.waitUntilGone('moves');
  });

  it('PortTaken on the only host: a VM that names the host fails, another VM waits, and its message names the host', async () => {
    const host = await join('only');
    await vms.create('pinned', on(host));
    await vms.create('free');
    for (const name of ['pinned', 'free']) {
      await host.waitForPod(ref(name));
      await host.fail(ref(name), 'PortTaken', '8822/TCP is in use on this host');
    }
    const { status } = await vms.waitForPhase('pinned', 'Failed', 'PortTaken');
    expect(status).toMatchObject({ attempt: 1, failure: { message: '8822/TCP is in use on this host' } });
    await vms.waitForVM('free', 'its message to name the host', (vm) => {
      const { message = '' } = conditionOf(vm, 'Scheduled') ?? {};
      return message.startsWith('All hosts that match the VM have refused it: only.');
    });
    for (const name of ['pinned', 'free']) {
      await vms.delete(name);
      await vms.waitUntilGone(name);
    }
  });
});

describe('a host that is lost', () => {
  it('HostUnreachable, then Failed with HostLost; when the host returns with its machine, the VM is Running again', async () => {
    const host = await join('returns');
    const startedAt = await runOn(host, 'comes-back');
    const { uid } = (await vms.pod('comes-back')).metadata;
    await vms.patch('comes-back', { ttlSecondsAfterFinished: 0 });
    await host.silence();
    await waitUntilUnreachable('comes-back');
    const lost = await vms.waitForPhase('comes-back', 'Failed');
    expect(conditionOf(lost, 'Ready')).toMatchObject({ status: 'False', reason: 'HostLost' });
    expect(conditionOf(lost, 'Stalled')).toBeUndefined();
    expect(lost.status?.failure).toBeUndefined();
    await waitFor('the Event', async () => /Warning\s+HostLost/.test(await eventsOf('comes-back')));
    expect((await vms.pod('comes-back')).metadata).toMatchObject({ uid });
    expect((await vms.pod('comes-back')).metadata.deletionTimestamp).toBeUndefined();

    await host.comeBack();
    const back = await vms.waitForPhase('comes-back', 'Running');
    expect(conditionOf(back, 'Ready')).toMatchObject({ status: 'True' });
    expect(back.status).toMatchObject({ attempt: 1, firstRunningTime: startedAt });
    expect((await vms.pod('comes-back')).metadata.uid).toBe(uid);
    await vms.delete('comes-back');
    await host.end(ref('comes-back'), startedAt);
    await vms.waitUntilGone('comes-back');
  });

  it('one-machine: deleting the VM gives its machine up, but not before hostLostTimeout', async () => {
    const host = await join('deleted-from');
    await runOn(host, 'given-up');
    await host.silence();
    await waitUntilUnreachable('given-up');
    const silentSince = await untilUnknown(host);
    await vms.delete('given-up');
    await vms.waitUntilGone('given-up');
    expect(Date.now() - silentSince).toBeGreaterThanOrEqual(LOST_SECONDS * 1000);
    const givenUp = async (): Promise<unknown> =>
      (await cluster.client().get(NODES, { name: host.name })).metadata.annotations?.[GIVEN_UP_ANNOTATION];
    expect(await givenUp()).toMatch(/^\["02(:[0-9a-f]{2}){5}"\]$/);
    await vms.create('given-up', { placement: { node: 'nowhere' } });
    await waitFor('the Event', async () =>
      /Warning\s+IdentityMayBeDoubled.*host that does not report: deleted-from/.test(
        await eventsOf('given-up'),
      ),
    );
    await host.comeBack();
    await waitFor('the host to be trusted again', async () => (await givenUp()) === undefined);
    await vms.delete('given-up');
    await vms.waitUntilGone('given-up');
  });

  it('full annotations of a host do not keep a VM from being given up', async () => {
    const host = await join('full-of-words');
    await runOn(host, 'wordy');
    const node = await cluster.client().get(NODES, { name: host.name });
    const taken = Object.entries(node.metadata.annotations ?? {})
      .flat()
      .join('').length;
    const filler = 'x'.repeat(ANNOTATIONS_LIMIT_BYTES - taken - 'filler'.length);
    await cluster.client().mergePatch(NODES, { name: host.name }, { metadata: { annotations: { filler } } });
    await host.silence();
    await untilUnknown(host);
    await vms.delete('wordy');
    await vms.waitUntilGone('wordy');
    expect((await cluster.client().get(NODES, { name: host.name })).metadata.annotations).toEqual({
      ...node.metadata.annotations,
      filler,
    });
  });

  it('the taint out-of-service gives up the machines of the host', async () => {
    const host = await join('fenced');
    await runOn(host, 'fenced-off');
    await host.silence();
    await waitUntilUnreachable('fenced-off');
    await taint(host, OUT_OF_SERVICE);
    const vm = await vms.waitForPhase('fenced-off', 'Failed', 'HostLost');
    expect(vm.status?.failure?.message).toContain('out-of-service');
    await vms.waitUntilPodGone('fenced-off');
    expect(await history.createdAs(vms.namespace, 'fenced-off')).toBe(1);
  });

  it('an administrator gives up a host without a Node, and never a host that reports', async () => {
    const host = await join('removed');
    await runOn(host, 'homeless');
    await giveUp(host.name);
    await waitFor('the Event of the refusal', async () => {
      const { stdout } = await cluster.kubectl([
        'get',
        'events',
        '-A',
        '--field-selector',
        'reason=GiveUpRefused',
      ]);
      return stdout.includes('Host removed reports, so it is not given up');
    });
    await host.remove();
    await waitUntilUnreachable('homeless');
    expect((await vms.get('homeless')).status?.failure).toBeUndefined();
    await giveUp(host.name);
    const vm = await vms.waitForPhase('homeless', 'Failed', 'HostLost');
    expect(vm.status?.failure?.message).toContain('gave host removed up');
    await vms.waitUntilPodGone('homeless');
    expect(await history.createdAs(vms.namespace, 'homeless')).toBe(1);
    await waitFor('the record to be gone', async () => (await hostRecords())[host.name] === undefined);
  });

  it('one-machine: a VM that never ran is placed again, but only after hostLostTimeout', async () => {
    const first = await join('lost-early');
    await vms.create('early');
    await first.waitForPod(ref('early'));
    await first.waiting(ref('early'), 'Cloning');
    await first.silence();
    const second = await join('second');
    const silentSince = await untilUnknown(first);
    const placed = await second.waitForPod(ref('early'));
    const created = Date.parse(placed.metadata.creationTimestamp ?? '');
    expect(created - silentSince).toBeGreaterThanOrEqual(LOST_SECONDS * 1000);
    await second.run(ref('early'));
    const { status } = await vms.waitForPhase('early', 'Running');
    expect(status).toMatchObject({ attempt: 2, nodeName: 'second' });
    expect(await history.createdAs(vms.namespace, 'early')).toBe(2);
  });
});

describe('no-orphan: a Pod whose VM was removed by force', () => {
  /** Deletes the VM and removes its finalizers. Its Pod remains, and nobody ends its machine. */
  async function removeByForce(name: string): Promise<void> {
    await vms.delete(name);
    await cluster.client().mergePatch(VMS, ref(name), { metadata: { finalizers: null } });
    expect((await vms.pod(name)).metadata.finalizers).toContain(POD_FINALIZER);
  }

  it('is released when its host has the taint out-of-service', async () => {
    const host = await join('orphan-fenced');
    await runOn(host, 'fenced-orphan');
    await removeByForce('fenced-orphan');
    await waitFor('the operator to wait for the end of the machine', async () => {
      return (await vms.pod('fenced-orphan')).metadata.deletionTimestamp !== undefined;
    });
    // The host goes on reporting. Otherwise its silence would release the Pod too.
    expect((await vms.pod('fenced-orphan')).metadata.finalizers).toContain(POD_FINALIZER);
    await taint(host, OUT_OF_SERVICE);
    await vms.waitUntilPodGone('fenced-orphan');
  });

  it('is released when its host is silent, but not before hostLostTimeout', async () => {
    const host = await join('orphan-lost');
    await runOn(host, 'lost-orphan');
    await removeByForce('lost-orphan');
    await host.silence();
    const silentSince = await untilUnknown(host);
    await vms.waitUntilPodGone('lost-orphan');
    expect(Date.now() - silentSince).toBeGreaterThanOrEqual(LOST_SECONDS * 1000);
  });
});

describe('the operator', () => {
  it('has all rights that it needs, and none of its writes was refused as invalid', () => {
    expect(faultsIn(operator.logFile)).toEqual([]);
  });
});
