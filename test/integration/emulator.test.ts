/** Emulators beside VMs on a real API server. KWOK simulates most hosts. The test plays the agents of the others. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { EMULATORS_CONDITION, MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import { pino } from 'pino';
import { NODES, PODS, SECRETS } from '../../kube/core.ts';
import { uninstall } from '../../operator/uninstall.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { Emulators } from '../fixtures/emulatorobjects.ts';
import { CacheEntries, rowOf } from '../fixtures/cacheentries.ts';
import { isGone } from '../fixtures/objects.ts';
import { numbered, VMs } from '../fixtures/vms.ts';
import { allowMetrics, faultsIn, readMetrics } from '../support/operatorlog.ts';
import { PodHistory } from '../support/podhistory.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { CacheSimulator } from '../worlds/cachesimulator.ts';
import { createQuota } from '../support/quota.ts';

const SYSTEM_IMAGE = 'emulator.berth.dev/android-36.google_apis';
/** Sizes with which many machines fit on one host. */
const SMALL = { cpu: 1, memory: '2560Mi' };
/** The garbage collector learns about new kinds each 30 s. */
const COLLECTED = { deadlineMilliseconds: 60_000 };
const ADB = { address: '10.0.0.17', port: 5555 };

let cluster: Cluster;
let operator: OperatorProcess;
let vms: VMs;
let emulators: Emulators;
let history: PodHistory;
let simulator: CacheSimulator;
let entries: CacheEntries;
/** Host whose agent is the test. */
let bare: ActingHost;

beforeAll(async () => {
  cluster = await startCluster({ name: `emulator-${process.pid}`, hosts: 2 });
  history = await PodHistory.start(cluster.client());
  simulator = await CacheSimulator.start(cluster.client());
  entries = new CacheEntries(cluster);
  bare = await ActingHost.join(cluster.client(), 'bare', { architecture: 'arm64' });
  operator = await cluster.startOperator({
    config: { defaults: { architecture: 'arm64' }, hostLostTimeoutSeconds: 2 },
  });
  await allowMetrics(cluster);
  vms = new VMs(cluster);
  emulators = new Emulators(cluster);
});

afterAll(async () => {
  history?.stop();
  simulator?.stop();
  await bare?.silence();
  await cluster?.stop();
});

function manifest(name: string, host: string): string {
  return `
apiVersion: berth.dev/v1alpha1
kind: Emulator
metadata: {name: ${name}, namespace: ${emulators.namespace}}
spec: {vmName: ${name}}
---
apiVersion: berth.dev/v1alpha1
kind: VM
metadata: {name: ${name}, namespace: ${emulators.namespace}}
spec: {image: "registry.example/guest:1", memory: 512Mi, cpu: 1, placement: {node: ${host}}}
`;
}

/** Applies an Emulator and its VM in one file. */
async function apply(name: string, host: string): Promise<void> {
  await cluster.kubectl(['apply', '-f', '-'], { input: manifest(name, host) });
}

async function describeEmulator(name: string): Promise<string> {
  return (await cluster.kubectl(['describe', 'emulator', name, '-n', emulators.namespace])).stdout;
}

/** Creates a VM on the bare host and lets it run. */
async function runVM(name: string): Promise<void> {
  await vms.create(name, { placement: { node: 'bare' }, cpu: 1, memory: '512Mi' });
  await bare.waitForPod(emulators.ref(name));
  await bare.run(emulators.ref(name));
  await vms.waitForPhase(name, 'Running');
}

/** Creates a VM and an Emulator of the same name on the bare host and lets both run. */
async function runBoth(name: string, spec: object = {}): Promise<void> {
  await emulators.create(name, { vmName: name, ...SMALL, ...spec });
  await runVM(name);
  await bare.waitForPod(emulators.podRef(name));
  await bare.run(emulators.podRef(name));
  await emulators.waitForPhase(name, 'Running');
}

async function remove(name: string): Promise<void> {
  await vms.delete(name);
  await bare.end(emulators.ref(name));
  await vms.waitUntilGone(name);
}

/** Deletes an Emulator on the bare host. It stays until its Pod is gone. */
async function removeEmulator(name: string): Promise<void> {
  await emulators.delete(name);
  await emulators.waitForPhase(name, 'Terminating');
  await bare.end(emulators.podRef(name));
  await emulators.waitUntilGone(name);
}

async function uidOfPod(name: string): Promise<string | undefined> {
  return (await emulators.pod(name)).metadata.uid;
}

describe('an Emulator and its VM in one file', () => {
  it('run on one host after one kubectl apply, and tell their story', async () => {
    await apply('pixel', 'host-1');
    const { status, metadata } = await emulators.waitForPhase('pixel', 'Running');
    const vm = await vms.get('pixel');
    expect(status?.nodeName).toBe('host-1');
    expect((await emulators.pod('pixel')).spec.nodeName).toBe('host-1');
    expect(metadata.ownerReferences).toMatchObject([{ kind: 'VM', name: 'pixel', uid: vm.metadata.uid }]);
    const wait = [
      'wait',
      '--for=condition=Ready',
      'emulator/pixel',
      '-n',
      emulators.namespace,
      '--timeout=60s',
    ];
    await cluster.kubectl(wait);
    await waitFor('the Events to be shown', async () => {
      const text = await describeEmulator('pixel');
      return /Normal\s+Scheduled.*placed on host host-1/.test(text) && /Normal\s+Running/.test(text);
    });
    const { stdout } = await cluster.kubectl(['get', 'emu', 'pixel', '-n', emulators.namespace]);
    expect(stdout).toMatch(
      /^NAME\s+VM\s+PHASE\s+READY\s+NODE\s+AGE\s+pixel\s+pixel\s+Running\s+True\s+host-1/,
    );
    // The last test waits until the garbage collector has deleted the Emulator.
    await vms.delete('pixel');
    await vms.waitUntilGone('pixel');
    await emulators.waitUntilPodGone('pixel');
  });

  it('an Emulator waits for its VM to exist, and then to run', async () => {
    await emulators.create('early', { vmName: 'early' });
    const missing = await emulators.waitForReason('early', 'Scheduled', 'VMNotFound');
    expect(missing).toMatchObject({
      status: 'False',
      message: 'VM early was not found in namespace platform-default',
    });
    await vms.create('early', {
      powerState: 'Stopped',
      placement: { node: 'bare' },
      cpu: 1,
      memory: '512Mi',
    });
    await bare.waitForPod(emulators.ref('early'));
    await bare.stopped(emulators.ref('early'));
    await vms.waitForPhase('early', 'Stopped');
    await emulators.waitForReason('early', 'Scheduled', 'VMNotRunning');
    expect((await emulators.get('early')).status?.phase).toBe('Pending');
    await expect(emulators.pod('early')).rejects.toMatchObject({ status: 404 });
    await emulators.delete('early');
    await emulators.waitUntilGone('early');
    await remove('early');
  });
});

describe('when the VM stops', () => {
  it('Stop: the Pod goes and its slot with it, and is made again when the VM runs again', async () => {
    await runBoth('stops');
    const first = await uidOfPod('stops');
    const message = JSON.stringify({ adb: ADB });
    await bare.setPodCondition(emulators.podRef('stops'), {
      type: MACHINE_CONDITION,
      status: 'True',
      reason: 'Running',
      message,
    });
    await waitFor('the address of ADB', async () => (await emulators.get('stops')).status?.adb !== undefined);
    expect((await emulators.get('stops')).status?.adb).toEqual(ADB);
    await bare.stopped(emulators.ref('stops'));
    await emulators.waitForPhase('stops', 'Stopped');
    await bare.end(emulators.podRef('stops'));
    await emulators.waitUntilPodGone('stops');
    await waitFor('the status to be settled', async () => {
      const { status } = await emulators.get('stops');
      const types = status?.conditions?.map(({ type }) => type).toSorted();
      return (
        types?.join() === 'Ready,Scheduled' && status?.adb === undefined && status?.nodeName === undefined
      );
    });
    await bare.run(emulators.ref('stops'));
    await bare.waitForPod(emulators.podRef('stops'));
    expect(await uidOfPod('stops')).not.toBe(first);
    await bare.run(emulators.podRef('stops'));
    await emulators.waitForPhase('stops', 'Running');
    await removeEmulator('stops');
    await remove('stops');
  });

  it('Delete: the Emulator goes too, but it waits for the first run of its VM', async () => {
    await runBoth('leaves', { whenVMStops: 'Delete' });
    await bare.stopped(emulators.ref('leaves'));
    await bare.end(emulators.podRef('leaves'));
    await emulators.waitUntilGone('leaves');
    expect((await vms.get('leaves')).status?.phase).toBe('Stopped');
    await remove('leaves');
  });
});

describe('the host of the VM', () => {
  it('decides: without emulators, without the system image, and with both', async () => {
    const offer = async (status: 'True' | 'False', reason: string, message: string) =>
      await bare.setCondition({ type: EMULATORS_CONDITION, status, reason, message });
    await offer('False', 'EmulatorsUnavailable', 'emulator.sdk is not set');
    await runVM('picky');
    await emulators.create('picky', { vmName: 'picky', ...SMALL });
    const none = await emulators.waitForReason('picky', 'Scheduled', 'HostWithoutEmulators');
    expect(none.message).toBe('Host bare runs no emulators: emulator.sdk is not set');
    await offer('True', 'EmulatorsOffered', '');
    const without = await emulators.waitForReason('picky', 'Scheduled', 'SystemImageMissing');
    expect(without.message).toBe('Host bare has no system image android-36.google_apis; it has none');
    await expect(emulators.pod('picky')).rejects.toMatchObject({ status: 404 });
    await cluster.kubectl(['label', 'node', 'bare', `${SYSTEM_IMAGE}=`]);
    await bare.waitForPod(emulators.podRef('picky'));
    await removeEmulator('picky');
    await remove('picky');
  });

  it('is an ARM host, unless the configuration allows others', async () => {
    await cluster.addHosts(1, { prefix: 'intel', architecture: 'amd64' });
    await vms.create('x86', { architecture: 'amd64', placement: { node: 'intel-0' }, memory: '512Mi' });
    await emulators.create('x86', { vmName: 'x86' });
    const { message } = await emulators.waitForReason('x86', 'Scheduled', 'ArchitectureNotAllowed');
    expect(message).toBe(
      'Host intel-0 has the architecture amd64. The operator allows emulators only on arm64 hosts',
    );
    await emulators.delete('x86');
    await emulators.waitUntilGone('x86');
    await vms.delete('x86');
  });

  it('is lost: the Emulator follows its VM, nothing is made twice, and both are back with the host', async () => {
    await runBoth('lost');
    const pod = await uidOfPod('lost');
    await bare.setCondition({ type: 'Ready', status: 'Unknown', reason: 'NodeStatusUnknown' });
    await emulators.waitForReason('lost', 'Ready', 'HostLost');
    expect((await emulators.get('lost')).status).toMatchObject({ phase: 'Failed', nodeName: 'bare' });
    await bare.setCondition({ type: 'Ready', status: 'True', reason: 'AgentReady' });
    await emulators.waitForPhase('lost', 'Running');
    expect(await uidOfPod('lost')).toBe(pod);
    await removeEmulator('lost');
    await remove('lost');
  });
});

describe('an emulator that fails', () => {
  it('has its last words and stays Failed until its Pod is deleted', async () => {
    await runBoth('dies');
    await bare.fail(emulators.podRef('dies'), 'Crashed', 'FATAL   | no memory left');
    const { status } = await emulators.waitForPhase('dies', 'Failed');
    expect(status?.failure).toMatchObject({ reason: 'Crashed', message: 'FATAL   | no memory left' });
    expect(status?.conditions).toContainEqual(
      expect.objectContaining({ type: 'Stalled', reason: 'Crashed' }),
    );
    await waitFor('the Event', async () => /Warning\s+Crashed/.test(await describeEmulator('dies')));
    await cluster.client().delete(PODS, emulators.podRef('dies'), { gracePeriodSeconds: 0 });
    await bare.waitForPod(emulators.podRef('dies'));
    await waitFor(
      'the failure to be forgotten',
      async () => (await emulators.get('dies')).status?.failure === undefined,
    );
  });

  it('is ended when it does not run in time, and the failure names its step', async () => {
    await emulators.create('slow', { vmName: 'dies', ...SMALL, deployTimeoutSeconds: 6 });
    await bare.waitForPod(emulators.podRef('slow'));
    await bare.waiting(emulators.podRef('slow'), 'Starting', 'Android is booting');
    await emulators.waitForPhase('slow', 'Starting');
    const { status } = await emulators.waitForPhase('slow', 'Failed');
    expect(status?.failure).toMatchObject({
      reason: 'DeployTimeout',
      message:
        'The emulator was not Running 6 s after it was bound to host bare; the host last reported Starting: Android is booting',
    });
    await bare.end(emulators.podRef('slow'));
    await emulators.waitUntilPodGone('slow');
    expect((await emulators.get('slow')).status?.phase).toBe('Failed');
    await bare.stopped(emulators.ref('dies'));
    await waitFor('a new start', async () => (await emulators.get('slow')).status?.phase === 'Pending');
    await bare.run(emulators.ref('dies'));
    await bare.waitForPod(emulators.podRef('slow'));
    await Promise.all(['slow', 'dies'].map(removeEmulator));
    await remove('dies');
  });
});

describe('a host with four slots', () => {
  it('names the host and its slots to an Emulator that waits, which runs when a slot is free', async () => {
    const names = ['a', 'b', 'c', 'd'];
    await vms.createMany(names, { placement: { node: 'host-0' }, cpu: 1, memory: '512Mi' });
    await Promise.all(names.map((name) => vms.waitForPhase(name, 'Running')));
    await emulators.create('fifth', { vmName: 'a', ...SMALL });
    const full = await emulators.waitForReason('fifth', 'Scheduled', 'NoFreeSlot');
    expect(full).toMatchObject({ status: 'False', message: 'All 4 slots of host host-0 are in use' });
    await vms.delete('d');
    await emulators.waitForPhase('fifth', 'Running');
    const { status } = await cluster.client().get(NODES, { name: 'host-0' });
    expect(status?.allocatable?.['berth.dev/slot']).toBe('4');
  });

  it('is full for the image cache too if an emulator has the last slot', async () => {
    const entry = { reference: 'registry.example/full:1', targets: { nodes: ['host-0'] } };
    await entries.create('full', entry);
    await entries.waitFor('full', 'the host to be known as full', (candidate) => {
      return rowOf(candidate, 'host-0')?.message === 'HostFull: the host has no free slot';
    });
    await vms.delete('c');
    expect((await entries.waitUntilCached('full', 1)).status?.cached).toBe(1);
  });
});

describe('the spec of an Emulator', () => {
  async function patch(spec: object): Promise<{ code: number; stderr: string }> {
    const args = [
      'patch',
      'emulator',
      'fifth',
      '-n',
      emulators.namespace,
      '--type=merge',
      '-p',
      JSON.stringify({ spec }),
    ];
    return await cluster.kubectl(args, { allowFailure: true });
  }

  it.for<[string, unknown]>([
    ['vmName', 'b'],
    ['platform', 'android-35'],
    ['device', 'pixel_8'],
    ['imageType', 'default'],
    ['cpu', 4],
    ['memory', '5Gi'],
    ['exposure', 'Host'],
    ['deployTimeoutSeconds', 60],
  ])('keeps its %s', async ([field, value]) => {
    const { code, stderr } = await patch({ [field]: value });
    expect(code).not.toBe(0);
    expect(stderr).toContain(`spec.${field}`);
    expect(stderr).toContain('immutable');
  });

  it('may get another whenVMStops', async () => {
    expect(await patch({ whenVMStops: 'Delete' })).toMatchObject({ code: 0 });
    expect(await patch({ whenVMStops: null })).toMatchObject({ code: 0 });
  });
});

describe('a Pod that cannot be made', () => {
  it('because another Pod has its name: the message names that Pod', async () => {
    const { namespace } = emulators;
    await cluster.kubectl(['label', 'namespace', namespace, 'berth.dev/custom-pods=true']);
    const name = emulators.podRef('taken');
    const containers = [{ name: 'none', image: 'registry.example/none' }];
    await waitFor('the label to be known', async () => {
      await cluster.client().create(PODS, { metadata: name, spec: { schedulerName: 'nobody', containers } });
      return true;
    });
    await emulators.create('taken', { vmName: 'b', ...SMALL });
    const { message } = await emulators.waitForReason('taken', 'Scheduled', 'PodNameTaken');
    expect(message).toBe('Another Pod has the name taken.emulator, which the Pod of the Emulator must have');
    await emulators.delete('taken');
    await waitFor('the Emulator to be gone', () => isGone(() => emulators.get('taken')));
    await cluster.client().delete(PODS, name, { gracePeriodSeconds: 0 });
  });

  it('because of a quota: the message has the answer of the API server', async () => {
    const team = 'platform-team';
    await cluster.createNamespace(team);
    await createQuota(cluster, { namespace: team, name: 'small' }, 'requests.memory=3Gi');
    const [own, ownVms] = [new Emulators(cluster, team), new VMs(cluster, team)];
    await ownVms.create('desk', { placement: { node: 'host-1' }, cpu: 1, memory: '512Mi' });
    await own.create('desk', { vmName: 'desk', ...SMALL });
    const { message } = await own.waitForReason('desk', 'Scheduled', 'PodRefused');
    expect(message).toContain('exceeded quota: small');
    await own.delete('desk');
    await ownVms.delete('desk');
  });
});

describe('a deleted VM', () => {
  it('takes its Emulators with it', { timeout: 90_000 }, async () => {
    await emulators.waitUntilGone('pixel', COLLECTED);
    await expect(emulators.pod('pixel')).rejects.toMatchObject({ status: 404 });
  });

  it('a VM of the same name that is made again is another VM', async () => {
    await runBoth('again');
    const first = (await emulators.get('again')).metadata.uid;
    await vms.delete('again');
    await bare.end(emulators.podRef('again'));
    await bare.end(emulators.ref('again'));
    await vms.waitUntilGone('again');
    await runVM('again');
    await emulators.waitUntilGone('again', COLLECTED);
    await emulators.create('again', { vmName: 'again', ...SMALL });
    await bare.waitForPod(emulators.podRef('again'));
    expect((await emulators.get('again')).metadata.uid).not.toBe(first);
    await removeEmulator('again');
    await remove('again');
  });
});

describe('VMs, emulators and cache Jobs', () => {
  it('never take more than the four slots of a host together', { timeout: 150_000 }, async () => {
    await cluster.addHosts(1, { prefix: 'busy' });
    const targets = { nodes: ['busy-0'] };
    await vms.create('home', { placement: { node: 'busy-0' }, cpu: 1, memory: '512Mi' });
    await vms.waitForPhase('home', 'Running');
    const names = numbered('busy', 6);
    await Promise.all(
      names.map(async (name) => {
        await emulators.create(name, { vmName: 'home', ...SMALL });
        await vms.create(name, { placement: { node: 'busy-0' }, cpu: 1, memory: '512Mi' });
        await entries.create(name, { reference: `registry.example/${name}:1`, targets });
      }),
    );
    // Each machine is deleted as soon as it runs, until every machine ran once.
    const left = new Set(names.flatMap((name) => [`vm ${name}`, `emulator ${name}`]));
    await waitFor(
      'all to run',
      async () => {
        for (const one of left) {
          const [kind, name = ''] = one.split(' ');
          const place = kind === 'vm' ? vms : emulators;
          if ((await place.get(name)).status?.phase === 'Running') {
            await place.delete(name);
            left.delete(one);
          }
        }
        return left.size === 0 && (await entries.list()).every(({ status }) => status?.cached === 1);
      },
      { deadlineMilliseconds: 120_000 },
    );
    expect(await history.mostOnOneHost()).toBe(4);
  });
});

describe('the operator', () => {
  it('counts Emulators by phase and namespace', async () => {
    await emulators.create('nobody', { vmName: 'nobody' });
    await emulators.waitForReason('nobody', 'Ready', 'VMNotFound');
    await waitFor('the metrics', async () => {
      const text = await readMetrics(cluster, operator);
      const count = (phase: string, namespace: string) =>
        new RegExp(`^berth_emulators\\{phase="${phase}",vm_namespace="${namespace}"\\} (\\d+)$`, 'm').exec(
          text,
        )?.[1];
      return count('Running', 'platform-default') === '1' && count('Pending', 'platform-default') === '1';
    });
    await emulators.delete('nobody');
    await emulators.waitUntilGone('nobody');
  });

  it('has all the rights it needs, and none of its writes was refused as invalid', () => {
    expect(faultsIn(operator.logFile)).toEqual([]);
  });
});

// The last test, because it removes the hosts.
it('an uninstallation that drains waits until emulators have ended', async () => {
  await runBoth('drained');
  // Helm stores such a record of the release before it creates the objects of the hook.
  const labels = { owner: 'helm', name: 'none', version: '1', status: 'uninstalling' };
  const record = { namespace: 'berth-system', name: 'sh.helm.release.v1.none.v1', labels };
  await cluster.client().create(SECRETS, { metadata: record });
  const options = { namespace: 'berth-system', instance: 'none', drain: true, allKinds: false };
  const removal = uninstall(
    cluster.client(),
    { ...options, timeoutMilliseconds: 100_000 },
    pino({ level: 'silent' }),
  );
  const done = removal.then(() => 'removed');
  await emulators.waitForPhase('drained', 'Terminating');
  await bare.end(emulators.ref('drained'));
  await vms.waitUntilGone('drained');
  expect((await emulators.get('drained')).status?.phase).toBe('Terminating');
  await bare.end(emulators.podRef('drained'));
  expect(await done).toBe('removed');
  expect([await emulators.list(), await vms.list()]).toEqual([[], []]);
});
