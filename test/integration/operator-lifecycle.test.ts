import { createHash } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { DESIRED_ANNOTATION, MACHINE_CONDITION, SCALE_SET_LABEL } from '../../api/v1alpha1/names.ts';
import { nodeVersion } from '../../api/v1alpha1/version.ts';
import { NODES, PODS } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { EMULATORS, VMS } from '../../api/v1alpha1/resources.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { allowMetrics, faultsIn, readMetrics } from '../support/operatorlog.ts';
import { PodHistory } from '../support/podhistory.ts';
import { Emulators } from '../fixtures/emulatorobjects.ts';
import { conditionOf, numbered, VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';

/** Life of VMs in milliseconds. It is long enough for a few requests to the API server, on a machine with other work. */
const LIFE_MILLISECONDS = 6_000;

let cluster: Cluster;
let operator: OperatorProcess;
let history: PodHistory;
let vms: VMs;
/** Name of a host whose agent is the test, so its machines do exactly as the test says. */
let bare: ActingHost;
const onBare = { placement: { node: 'bare' }, architecture: 'amd64' } as const;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-lifecycle-${process.pid}`, hosts: 3 });
  history = await PodHistory.start(cluster.client());
  bare = await ActingHost.join(cluster.client(), 'bare', { slots: 16, architecture: 'amd64' });
  const runnerMetrics = { enabled: true, intervalSeconds: 1 };
  operator = await cluster.startOperator({ config: { defaults: { architecture: 'arm64' }, runnerMetrics } });
  await allowMetrics(cluster);
  vms = new VMs(cluster);
});

afterAll(async () => {
  history?.stop();
  await bare?.silence();
  await cluster?.stop();
});

function ref(name: string): { namespace: string; name: string } {
  return { namespace: vms.namespace, name };
}

async function describeVM(name: string): Promise<string> {
  return (await cluster.kubectl(['describe', 'vm', name, '-n', vms.namespace])).stdout;
}

async function expectGone(name: string): Promise<void> {
  await vms.waitUntilGone(name);
}

async function runOnBare(name: string, spec: object = {}): Promise<void> {
  await vms.create(name, { ...onBare, ...spec });
  await bare.waitForPod(ref(name));
  await bare.run(ref(name));
  await vms.waitForPhase(name, 'Running');
}

describe('a VM with kubectl', () => {
  it('wait --for=condition=Ready, describe tells the story by Events, delete leaves nothing', async () => {
    await vms.create('story');
    await cluster.kubectl([
      'wait',
      '--for=condition=Ready',
      'vm/story',
      '-n',
      vms.namespace,
      '--timeout=60s',
    ]);
    await waitFor('the Events to be shown', async () => {
      const text = await describeVM('story');
      return /Normal\s+Scheduled.*placed on host host-\d/.test(text) && /Normal\s+Running/.test(text);
    });
    const { stdout } = await cluster.kubectl(['get', 'vm', 'story', '-n', vms.namespace, '-o', 'wide']);
    expect(stdout).toMatch(/^NAME\s+PHASE\s+PROGRESS\s.*\sIMAGE\s+ACCELERATOR\s/);
    expect(stdout).toMatch(/story\s+Running.*\sguest:1\s/);
    const selected = async (field: string) =>
      (await cluster.kubectl(['get', 'vms', '-n', vms.namespace, '--field-selector', field, '-o', 'name']))
        .stdout;
    const { status } = await vms.get('story');
    expect(await selected(`status.phase=Running,status.nodeName=${status?.nodeName}`)).toContain('/story\n');
    expect(await selected('status.phase!=Running')).not.toContain('/story');
    await cluster.kubectl(['delete', 'vm', 'story', '-n', vms.namespace, '--timeout=60s']);
    await vms.waitUntilGone('story');
  });

  it('the same name created again at once is another VM with a Pod of its own', async () => {
    await vms.create('again');
    await vms.waitForPhase('again', 'Running');
    await vms.delete('again');
    const { metadata } = await waitFor('the name to be free', () => vms.create('again'));
    const second = await vms.waitForPhase('again', 'Running');
    expect(second.metadata.uid).toBe(metadata.uid);
    expect(await history.createdAs(vms.namespace, 'again')).toBe(2);
  });

  it('deletion of its whole namespace leaves nothing', async () => {
    const doomed = new VMs(cluster, 'platform-doomed');
    await cluster.createNamespace(doomed.namespace);
    await doomed.createMany(numbered('vm', 3));
    await doomed.waitForPhase('vm-2', 'Running');
    await cluster.kubectl(['delete', 'namespace', doomed.namespace, '--timeout=100s']);
    expect(await doomed.list()).toEqual([]);
  });
});

describe('no-lost-disk: a VM that has run', () => {
  it('is Failed with PodDeleted when its Pod is deleted, and is never created again', async () => {
    await vms.create('robbed');
    const { status } = await vms.waitForPhase('robbed', 'Running');
    await cluster.kubectl(['delete', 'pod', 'robbed', '-n', vms.namespace, '--timeout=60s']);
    const vm = await vms.waitForPhase('robbed', 'Failed', 'PodDeleted');
    expect(vm.status?.firstRunningTime).toBe(status?.firstRunningTime);
    expect(conditionOf(vm, 'Stalled')).toMatchObject({ status: 'True', reason: 'PodDeleted' });
    await waitFor('the Event to be shown', async () =>
      /Warning\s+PodDeleted/.test(await describeVM('robbed')),
    );
  });

  it('is Failed with Evicted when its host is drained; the drain asks before it destroys a disk', async () => {
    await vms.create('drained', { placement: { node: 'host-1' } });
    await vms.waitForPhase('drained', 'Running');
    const drain = ['drain', 'host-1', '--ignore-daemonsets', '--timeout=60s'];
    const asked = await cluster.kubectl(drain, { allowFailure: true });
    expect(asked.stderr).toContain('--delete-emptydir-data');
    expect((await vms.get('drained')).status?.phase).toBe('Running');
    await cluster.kubectl([...drain, '--delete-emptydir-data']);
    const vm = await vms.waitForPhase('drained', 'Failed', 'Evicted');
    expect(vm.status?.failure?.message).toContain('EvictionByEvictionAPI');
    await cluster.kubectl(['uncordon', 'host-1']);
  });

  it('has the last words of its machine when the machine dies, and its Pod stays for its log', async () => {
    await runOnBare('dies');
    const startedAt = (await vms.get('dies')).status?.firstRunningTime;
    await bare.fail(ref('dies'), 'Crashed', 'qemu: fatal: no memory left', startedAt);
    const vm = await vms.waitForPhase('dies', 'Failed', 'Crashed');
    expect(vm.status?.failure?.message).toBe('qemu: fatal: no memory left');
    expect(await describeVM('dies')).toContain('qemu: fatal: no memory left');
    expect((await vms.pod('dies')).status?.phase).toBe('Failed');
    await vms.delete('dies');
    await vms.waitUntilGone('dies');
  });

  it('was placed exactly once, in spite of later requests', async () => {
    for (const name of ['robbed', 'drained']) {
      for (const powerState of ['Stopped', 'Running']) {
        const { generation } = (await vms.patch(name, { powerState })).metadata;
        await vms.waitForVM(
          name,
          `${powerState} to be seen`,
          ({ status }) => status?.observedGeneration === generation,
        );
      }
    }
    const names = ['robbed', 'drained', 'dies'];
    const created = await Promise.all(names.map((name) => history.createdAs(vms.namespace, name)));
    expect(created).toEqual([1, 1, 1]);
  });
});

describe('a VM that has not run yet', () => {
  it('is placed again when its Pod is deleted', async () => {
    await vms.create('twice', onBare);
    await bare.waitForPod(ref('twice'));
    await bare.waiting(ref('twice'), 'Pulling', '42%');
    const message = JSON.stringify({ progressPercent: 42, accelerator: 'kvm' });
    const report = { type: MACHINE_CONDITION, status: 'False', reason: 'Pulling', message } as const;
    await bare.setPodCondition(ref('twice'), report);
    await vms.waitForVM('twice', 'progress', ({ status }) => status?.progress === 'Pulling 42 %');
    expect((await vms.get('twice')).status).toMatchObject({ phase: 'Pulling', accelerator: 'KVM' });
    await vms.deletePod('twice');
    await bare.end(ref('twice'));
    await waitFor('the second Pod', async () => {
      const pod = await bare.waitForPod(ref('twice'));
      return pod.metadata.deletionTimestamp === undefined;
    });
    await bare.run(ref('twice'));
    const { status } = await vms.waitForPhase('twice', 'Running');
    expect(status?.attempt).toBe(2);
    expect(status?.firstRunningTime).toBeDefined();
    expect(await history.createdAs(vms.namespace, 'twice')).toBe(2);
  });

  it('is placed again when its Pod is deleted before it has a host', async () => {
    await vms.create('unbound', { placement: { node: 'nowhere' } });
    await vms.waitForCondition('unbound', 'Scheduled', { status: 'False', reason: 'Unschedulable' });
    const first = (await vms.pod('unbound')).metadata.uid;
    await vms.deletePod('unbound');
    await waitFor('the second Pod', async () => (await vms.pod('unbound')).metadata.uid !== first);
    await vms.waitForVM('unbound', 'attempt 2', ({ status }) => status?.attempt === 2);
    await vms.delete('unbound');
    await vms.waitUntilGone('unbound');
  });

  it('is Failed with DeployTimeout when its host does not start it in time', async () => {
    // The host must report within this time, so that the failure has its report.
    await vms.create('slow', { ...onBare, deployTimeoutSeconds: 5 });
    await bare.waitForPod(ref('slow'));
    await bare.waiting(ref('slow'), 'Pulling', '42%');
    await bare.end(ref('slow'));
    const vm = await vms.waitForPhase('slow', 'Failed', 'DeployTimeout');
    expect(vm.status?.failure?.message).toMatch(/to host bare; the host last reported Pulling: 42%$/);
    await vms.waitUntilPodGone('slow');
    expect(await history.createdAs(vms.namespace, 'slow')).toBe(1);
  });

  it('waits for a host without limit: deployTimeoutSeconds counts from binding', async () => {
    await vms.create('patient', { placement: { node: 'nowhere' }, deployTimeoutSeconds: 1 });
    await vms.waitForCondition('patient', 'Scheduled', { status: 'False' });
    const created = Date.parse((await vms.get('patient')).metadata.creationTimestamp ?? '');
    await waitFor('three times the time-out to pass', () => Date.now() > created + 3_000);
    expect((await vms.get('patient')).status).toMatchObject({ phase: 'Pending' });
    expect((await vms.get('patient')).status?.failure).toBeUndefined();
    await vms.delete('patient');
  });
});

describe('a VM that is created Stopped', () => {
  it('is placed and prepared, shows Stopped, and first runs when asked to', async () => {
    await vms.create('prepared', { ...onBare, powerState: 'Stopped', deployTimeoutSeconds: 4 });
    const { metadata } = await bare.waitForPod(ref('prepared'));
    await bare.stopped(ref('prepared'));
    const off = await vms.waitForPhase('prepared', 'Stopped');
    expect(conditionOf(off, 'Ready')).toMatchObject({ status: 'True', reason: 'Stopped' });
    const created = Date.parse(metadata.creationTimestamp ?? '');
    await waitFor('the time-out to pass', () => Date.now() > created + 6_000);
    expect((await vms.get('prepared')).status).toMatchObject({ phase: 'Stopped' });
    expect((await vms.get('prepared')).status?.firstRunningTime).toBeUndefined();
    await vms.patch('prepared', { powerState: 'Running' });
    await bare.run(ref('prepared'));
    const { status } = await vms.waitForPhase('prepared', 'Running');
    expect(status).toMatchObject({ attempt: 1, firstRunningTime: status?.startTime });
    await vms.delete('prepared');
    await bare.end(ref('prepared'));
    await vms.waitUntilGone('prepared');
  });
});

describe('a VM during its life', () => {
  it('a change of powerState reaches the host, and Stopped is shown with its reason', async () => {
    await runOnBare('power');
    await vms.patch('power', { powerState: 'Stopped' });
    const text = await waitFor('the Pod to say so', async () => {
      const { [DESIRED_ANNOTATION]: desired = '{}' } = (await vms.pod('power')).metadata.annotations ?? {};
      return desired.includes('"powerState":"Stopped"') && desired;
    });
    await bare.setPodCondition(ref('power'), { type: MACHINE_CONDITION, status: 'True', reason: 'Stopping' });
    await vms.waitForPhase('power', 'Stopping');
    const desiredHash = createHash('sha256').update(text).digest('hex').slice(0, 16);
    const message = JSON.stringify({ desiredHash });
    await bare.setPodCondition(ref('power'), {
      type: MACHINE_CONDITION,
      status: 'True',
      reason: 'Stopped',
      message,
    });
    await bare.stopped(ref('power'));
    const vm = await vms.waitForPhase('power', 'Stopped');
    expect(conditionOf(vm, 'Ready')).toMatchObject({ status: 'True', reason: 'Stopped' });
    expect(vm.status?.failure).toBeUndefined();
    await vms.patch('power', { powerState: 'Running' });
    await waitFor('the Pod to say so', async () =>
      (await vms.pod('power')).metadata.annotations?.[DESIRED_ANNOTATION]?.includes('"powerState":"Running"'),
    );
    await bare.run(ref('power'));
    await vms.waitForPhase('power', 'Running');
  });

  it('activeDeadlineSeconds ends it, and ttlSecondsAfterFinished deletes it', async () => {
    await vms.create('short', { activeDeadlineSeconds: 2 });
    await vms.waitForPhase('short', 'Failed', 'DeadlineExceeded');
    await vms.waitUntilPodGone('short');
    await vms.patch('short', { ttlSecondsAfterFinished: 1 });
    await vms.waitUntilGone('short');
    expect(await history.createdAs(vms.namespace, 'short')).toBe(1);
  });

  it('a silent or a broken network does not change Ready, and NetworkReady tells of it', async () => {
    await runOnBare('net');
    const silent = await vms.get('net');
    expect(conditionOf(silent, 'NetworkReady')).toBeUndefined();
    expect(conditionOf(silent, 'Ready')).toMatchObject({ status: 'True' });
    await bare.setPodCondition(ref('net'), {
      type: 'berth.dev/Network',
      status: 'False',
      reason: 'ForwardingOff',
      message: 'forwarding is switched off',
    });
    await vms.waitForCondition('net', 'NetworkReady', { status: 'False', reason: 'ForwardingOff' });
    const broken = await vms.get('net');
    expect(broken.status?.phase).toBe('Running');
    expect(conditionOf(broken, 'Ready')).toMatchObject({ status: 'True' });
  });
});

describe('a VM with aliveUntil', () => {
  it('is deleted at that time in every phase, unless somebody moves the time later or removes it', async () => {
    const aliveUntil = new Date(Date.now() + LIFE_MILLISECONDS).toISOString();
    const ended = ['left', 'left-pending', 'left-stopped'];
    await vms.createMany(['answered', 'prolonged', 'left'], { aliveUntil });
    await vms.create('left-pending', { aliveUntil, placement: { node: 'nowhere' } });
    await vms.create('left-stopped', { aliveUntil, powerState: 'Stopped' });
    await vms.patch('answered', { aliveUntil: null });
    await vms.patch('prolonged', { aliveUntil: new Date(Date.now() + 3_600_000).toISOString() });
    await Promise.all(ended.map(async (name) => await vms.waitUntilGone(name)));
    expect(Date.now()).toBeGreaterThanOrEqual(Date.parse(aliveUntil));
    await waitFor('the Event to be shown', async () => {
      const { stdout } = await cluster.kubectl(['get', 'events', '-n', vms.namespace]);
      return /Warning\s+NotRenewed\s+vm\/left\s/.test(stdout);
    });
    for (const name of ['answered', 'prolonged']) {
      expect((await vms.waitForPhase(name, 'Running')).metadata.deletionTimestamp).toBeUndefined();
    }
    const line = `berth_vms_not_renewed_total{vm_namespace="${vms.namespace}"} ${ended.length}`;
    expect((await readMetrics(cluster, operator)).split('\n')).toContain(line);
  });

  it('is counted in its scale set of runners', async () => {
    const labels = { [SCALE_SET_LABEL]: 'runners' };
    await cluster.client().mergePatch(VMS, ref('answered'), { metadata: { labels } });
    const line = `berth_runner_scale_set_vms{scale_set="runners",vm_namespace="${vms.namespace}",phase="Running"} 1`;
    await waitFor('the metrics', async () =>
      (await readMetrics(cluster, operator)).split('\n').includes(line),
    );
  });
});

describe('no-orphan: a VM deleted in other ways', () => {
  // This test is late in the file. The garbage collector learns of new kinds every 30 s, and until then it delays an orphaning deletion.
  it('--cascade=orphan leaves nothing', async () => {
    await vms.create('orphan');
    await vms.waitForPhase('orphan', 'Running');
    await cluster.kubectl([
      'delete',
      'vm',
      'orphan',
      '-n',
      vms.namespace,
      '--cascade=orphan',
      '--timeout=90s',
    ]);
    await expectGone('orphan');
  });

  it('a forced removal of its finalizer leaves nothing either', async () => {
    await vms.create('forced');
    await vms.waitForPhase('forced', 'Running');
    await cluster.kubectl([
      'delete',
      'vm',
      'forced',
      '-n',
      vms.namespace,
      '--wait=false',
      '--cascade=orphan',
    ]);
    await cluster.kubectl(
      [
        'patch',
        'vm',
        'forced',
        '-n',
        vms.namespace,
        '--type=merge',
        '-p',
        '{"metadata":{"finalizers":null}}',
      ],
      { allowFailure: true },
    );
    await expectGone('forced');
  });
});

describe('hosts', () => {
  it('get slots in capacity and allocatable, also a host that joins later', async () => {
    const [late = ''] = await cluster.addHosts(1, { prefix: 'late', slots: undefined });
    await waitFor('the slots of the new host', async () => {
      const { status } = await cluster.client().get(NODES, { name: late });
      return status?.capacity?.['berth.dev/slot'] === '4' && status.allocatable?.['berth.dev/slot'] === '4';
    });
    await vms.create('on-late', { placement: { node: late } });
    await vms.waitForPhase('on-late', 'Running');
  });

  it('show an agent that is too new for the operator, until it is not', async () => {
    const client = cluster.client();
    const host = await ActingHost.join(client, 'too-new', { version: 'v1.40.0-berth.9.0.0' });
    const skew = async () => {
      const { status } = await client.get(NODES, { name: host.name });
      return status?.conditions?.find(({ type }) => type === 'berth.dev/VersionSkew');
    };
    const reported = await waitFor('the condition', skew);
    expect(reported).toMatchObject({ status: 'True', reason: 'AgentVersionUnsupported' });
    const status = { nodeInfo: { kubeletVersion: nodeVersion() } };
    await client.mergePatch(NODES, { name: host.name }, { status }, { subresource: 'status' });
    await waitFor('the condition to be gone', async () => (await skew()) === undefined);
    await host.remove();
  });

  it('x86 hosts have a quota of their own', async () => {
    const [name = ''] = await cluster.addHosts(1, { prefix: 'x86', slots: undefined, architecture: 'amd64' });
    await vms.create('on-x86', { architecture: 'amd64', placement: { node: name } });
    await vms.waitForPhase('on-x86', 'Running');
    const { status } = await cluster.client().get(NODES, { name });
    expect(status?.allocatable).toMatchObject({ 'berth.dev/slot': '16' });
  });
});

it('deletes the Pod of an Emulator whose finalizer somebody removed by force', async () => {
  const emulators = new Emulators(cluster);
  await vms.create('paired');
  await vms.waitForPhase('paired', 'Running');
  await emulators.create('forced', { vmName: 'paired' });
  await emulators.waitForPhase('forced', 'Running');
  // The garbage collector would delete the Pod too, and the operator would set the finalizer again.
  const collector = cluster.component('kube-controller-manager');
  await collector.signal('SIGSTOP');
  try {
    await operator.kill('SIGSTOP');
    await cluster.client().mergePatch(EMULATORS, emulators.ref('forced'), { metadata: { finalizers: null } });
    await emulators.delete('forced');
    await operator.kill('SIGCONT');
    await waitFor('the Pod to be deleted', async () => {
      const pod = await unlessMissing(cluster.client().get(PODS, emulators.podRef('forced')));
      return pod === undefined || pod.metadata.deletionTimestamp !== undefined;
    });
  } finally {
    await operator.kill('SIGCONT');
    await collector.signal('SIGCONT');
  }
});

describe('the operator', () => {
  it('has all rights that it needs, and none of its writes was refused as invalid', () => {
    expect(faultsIn(operator.logFile)).toEqual([]);
  });
});
