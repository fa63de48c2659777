/** Emulators in the agent, against a real API server. VMs and emulators are stand-ins; the ADB of the emulators is scripted. */
import { randomBytes } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { askBooted } from '../../agent/drivers/emulator/adb.ts';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import { EMULATORS_CONDITION, MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { EVENTS, NODES, type Pod, PODS } from '../../kube/core.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { emulatorDocument, emulatorPodFor } from '../fixtures/emulators.ts';
import { isGone } from '../fixtures/objects.ts';
import { sharedCluster } from '../support/cluster.ts';
import { StartedProgram } from '../wires/startedprogram.ts';
import { DESIRED, machineFor, operatorClient, podFor, setDesired, TestHost } from '../worlds/agenthost.ts';

const suffix = randomBytes(4).toString('hex');
const NAMESPACE = `platform-emulators-${suffix}`;
const VM = machineFor(NAMESPACE, 'desk');
const LABEL = 'emulator.berth.dev/android-36.google_apis';

let cluster: Cluster;
let host: TestHost;
let operator: KubeClient;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(NAMESPACE);
  operator = await operatorClient(cluster);
  host = await TestHost.make(cluster, {
    name: `emulators-${suffix}`,
    network: 'nat',
    kubelet: { port: 0, clientCAFile: join(cluster.directory, 'pki', 'ca.crt') },
    emulator: { sdk: '/opt/android-sdk' },
  });
  await host.start();
  await operator.create(PODS, podFor(host, VM));
  await waitForPod('desk', 'Running', (pod) => pod.status?.phase === 'Running');
});

afterAll(async () => {
  await host.remove();
  await cluster.client().delete(NODES, { name: host.name });
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

const waiting = (pod: Pod) => pod.status?.containerStatuses?.[0]?.state?.waiting;
const condition = (pod: Pod, type: string) => pod.status?.conditions?.find((one) => one.type === type);
const reportOf = (pod: Pod): unknown => JSON.parse(condition(pod, MACHINE_CONDITION)?.message ?? '{}');

/** Creates an emulator and returns its Pod when Android boots. */
async function boot(name: string, change: Partial<EmulatorMachine> = {}): Promise<Pod> {
  await operator.create(PODS, emulatorPodFor(host, emulatorDocument(VM.vm, name, change)));
  return await waitForPod(`${name}.emulator`, 'boots', (pod) =>
    /ADB answers/.test(waiting(pod)?.message ?? ''),
  );
}

/** Creates an emulator whose Android has booted before the first question, and returns its Pod when it is Ready. */
async function run(name: string, change: Partial<EmulatorMachine> = {}): Promise<Pod> {
  host.emulators.bootsAtOnce = true;
  try {
    await operator.create(PODS, emulatorPodFor(host, emulatorDocument(VM.vm, name, change)));
    return await waitForPod(`${name}.emulator`, 'Ready', (pod) => condition(pod, 'Ready')?.status === 'True');
  } finally {
    host.emulators.bootsAtOnce = false;
  }
}

async function destroy({ metadata: { name } }: Pod): Promise<void> {
  await operator.delete(PODS, { namespace: NAMESPACE, name });
  await waitFor(`${name} to be gone`, () => isGone(() => read(name)));
}

function kubectl(...args: string[]): StartedProgram {
  return new StartedProgram(cluster.kubectlPath, [
    '--kubeconfig',
    cluster.kubeconfig,
    '-n',
    NAMESPACE,
    ...args,
  ]);
}

describe('the Node', () => {
  const node = async () => await operator.get(NODES, { name: host.name });
  const offered = async () => {
    const { metadata, status } = await node();
    const said = status?.conditions?.find(({ type }) => type === EMULATORS_CONDITION);
    return {
      label: metadata.labels?.[LABEL],
      status: said?.status,
      reason: said?.reason,
      message: said?.message,
    };
  };

  it('lists the system images of the SDK, and drops one that went away while no agent ran', async () => {
    expect(await offered()).toEqual({
      label: '',
      status: 'True',
      reason: 'EmulatorsOffered',
      message: 'The host has 1 system image for emulators',
    });
    const before = host.emulators.offered;
    host.emulators.offered = { kind: 'none', message: 'The SDK is gone' };
    await host.stop();
    await host.launch();
    await waitFor('the Node to offer none', async () => (await offered()).status === 'False');
    const gone = {
      label: undefined,
      status: 'False',
      reason: 'EmulatorsUnavailable',
      message: 'The SDK is gone',
    };
    expect(await offered()).toEqual(gone);
    host.emulators.offered = before;
    await host.stop();
    await host.launch();
    await waitFor('the Node to offer emulators', async () => (await offered()).label === '');
  });
});

describe('an emulator', () => {
  it('is Pending until Android has booted, then Running, and stays so when its agent restarts', async () => {
    const booting = await boot('phone');
    const { uid = '' } = booting.metadata;
    expect(booting.status?.phase).toBe('Pending');
    expect(waiting(booting)).toEqual({
      reason: 'Starting',
      message: 'Android is booting; ADB answers, and the boot is not complete yet',
    });
    const vm = await read('desk');
    const namespace = host.network.namespaces.get(uid);
    expect(namespace).toMatchObject({ exposedPort: 5555, peer: vm.metadata.uid, ports: [] });
    host.emulators.device(uid).booted = true;
    const running = await waitForPod('phone.emulator', 'Running', (pod) => pod.status?.phase === 'Running');
    expect(condition(running, 'Ready')).toMatchObject({ status: 'True' });
    const { address = '' } = namespace ?? {};
    expect(running.status?.podIP).toBe(address);
    expect(reportOf(running)).toMatchObject({ adb: { address, port: 5555 } });
    // An agent that asked first would show the Pod as Starting.
    await host.stop();
    const device = host.emulators.device(uid);
    const asked = device.asked.length;
    device.booted = false;
    await host.launch();
    await waitFor('the new agent to ask', () => device.asked.length > asked);
    const found = await read('phone.emulator');
    expect(found.status).toMatchObject({ phase: 'Running', containerStatuses: [{ state: { running: {} } }] });
    expect(host.network.namespaces.get(uid)).toMatchObject({ running: true, peer: vm.metadata.uid, address });
    expect(host.emulators.calls.filter((call) => call === `start ${uid}`)).toHaveLength(1);
    await destroy(found);
    expect([host.network.namespaces.has(uid), host.emulators.machines.has(uid)]).toEqual([false, false]);
  });

  it('with exposure Host has a port of the host', async () => {
    const running = await run('open', { exposure: 'Host' });
    expect(reportOf(running)).toMatchObject({ adb: { address: '127.0.0.1', port: 5754 }, endpoints: [5754] });
    expect(host.network.namespaces.get(running.metadata.uid ?? '')?.ports).toMatchObject([
      { hostPort: 5754, guestPort: 5555 },
    ]);
    await destroy(running);
  });

  it('waits for its VM, and starts when the VM runs', async () => {
    const vm = await read('desk');
    await setDesired(operator, vm, { ...DESIRED, powerState: 'Stopped' });
    await waitForPod('desk', 'Stopped', (pod) => waiting(pod)?.reason === 'Stopped');
    await operator.create(PODS, emulatorPodFor(host, emulatorDocument(VM.vm, 'early')));
    const awaiting = await waitForPod(
      'early.emulator',
      'waits',
      (pod) => waiting(pod)?.message !== undefined,
    );
    expect(waiting(awaiting)).toEqual({
      reason: 'VMNotRunning',
      message: 'The emulator is waiting for VM desk, which is not running on this host',
    });
    await setDesired(operator, vm, DESIRED);
    const booting = await waitForPod('early.emulator', 'boots', (pod) =>
      /Android/.test(waiting(pod)?.message ?? ''),
    );
    const reported = await waitFor('the Event of the Emulator', async () => {
      const { items } = await cluster.client().list(EVENTS, { namespace: NAMESPACE });
      return items.find(({ regarding }) => regarding?.kind === 'Emulator' && regarding.name === 'early');
    });
    const note = 'The process of the emulator is running, and Android is still booting';
    expect(reported).toMatchObject({ reason: 'Started', note, regarding: { uid: 'uid-of-emulator-early' } });
    await destroy(booting);
  });

  it('that ended with its host starts again after its VM, and is not Ready before it has booted once more', async () => {
    const { metadata } = await run('again');
    const { uid = '', name } = metadata;
    const vm = await read('desk');
    await host.stop();
    host.driver.end(vm.metadata.uid ?? '', 'Crashed', 'the host lost its power');
    host.emulators.end(uid, 'Crashed', 'the host lost its power');
    const { length } = host.emulators.calls;
    const stateOfVM: (string | undefined)[] = [];
    const start = host.emulators.start.bind(host.emulators);
    host.emulators.start = async (...call) => {
      stateOfVM.push(host.driver.machines.get(vm.metadata.uid ?? '')?.kind);
      await start(...call);
    };
    await host.launch();
    const booting = await waitForPod(
      name,
      'boots',
      (pod) => waiting(pod)?.message?.startsWith('Android is booting; ADB answers') === true,
    );
    expect(booting.status?.phase, 'a Pod never leaves its phase').toBe('Running');
    expect(condition(booting, 'Ready')).toMatchObject({ status: 'False', reason: 'Starting' });
    host.emulators.device(uid).booted = true;
    const running = await waitForPod(name, 'Ready', (pod) => condition(pod, 'Ready')?.status === 'True');
    host.emulators.start = start;
    expect(host.emulators.calls.slice(length).filter((call) => call === `start ${uid}`)).toHaveLength(1);
    expect(new Set(stateOfVM), 'the VM when the emulator starts').toEqual(new Set(['running']));
    await destroy(running);
  });

  it('whose Pod is deleted by force leaves nothing', async () => {
    const { metadata } = await boot('forced');
    const { uid = '', name } = metadata;
    await operator.delete(PODS, { namespace: NAMESPACE, name }, { gracePeriodSeconds: 0 });
    const folder = join(host.dataDirectory, 'pods');
    await waitFor('its record to be removed', async () => !(await readdir(folder)).includes(`${uid}.json`));
    expect([host.emulators.machines.has(uid), host.network.namespaces.has(uid)]).toEqual([false, false]);
  });

  it.each(['GuestShutdown', 'Crashed'] as const)('that ends by itself (%s) has failed', async (how) => {
    const { metadata } = await boot(`ends-${how.toLowerCase()}`);
    host.emulators.end(metadata.uid ?? '', how, 'FATAL: the last words');
    const failed = await waitForPod(metadata.name, 'Failed', (pod) => pod.status?.phase === 'Failed');
    const state = failed.status?.containerStatuses?.[0]?.state;
    expect(state?.terminated).toMatchObject({ reason: 'Crashed', message: 'FATAL: the last words' });
    expect(host.emulators.calls).toContain(`discard ${metadata.uid}`);
    await destroy(failed);
  });
});

describe('kubectl', () => {
  it('reads the log of an emulator, forwards only ADB, and refuses attach and exec', async () => {
    const { metadata } = await run('tool');
    const pod = metadata.name;
    expect(await kubectl('logs', pod).result()).toMatchObject({ stdout: 'a line of the console\n' });
    for (const args of [
      ['attach', pod],
      ['exec', pod, '--', 'ls'],
      ['exec', '-t', pod, '--', 'ls'],
    ]) {
      const { stderr, code } = await kubectl(...args).result();
      expect([code, stderr]).toEqual([
        1,
        expect.stringMatching(/An emulator has no (console to attach to|guest agent that runs commands)\./),
      ]);
    }
    const forward = kubectl('port-forward', `pod/${pod}`, ':5555', ':5554');
    try {
      const [, adb] = await forward.prints(/127\.0\.0\.1:(\d+) -> 5555/);
      const [, other] = await forward.prints(/127\.0\.0\.1:(\d+) -> 5554/);
      const { signal } = new AbortController();
      await waitFor('ADB to answer through the forward', async () => {
        const answer = await askBooted({ host: '127.0.0.1', port: Number(adb) }, signal);
        return answer.kind === 'booted';
      });
      connect(Number(other), '127.0.0.1').on('error', () => undefined);
      await forward.prints(
        /Port 5554 of the emulator cannot be reached. Only port 5555, for ADB, can be reached/,
      );
    } finally {
      forward.kill();
    }
    await destroy(await read(pod));
  });
});
