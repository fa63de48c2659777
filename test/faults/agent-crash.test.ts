/**
 * Faults with QEMU and real guests: the agent is killed, the API server is killed, the host is cut off. test/e2e/vm/life.test.ts has the
 * agent killed while a machine runs, a power cut of the host, and the death of QEMU.
 */
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { LEASES } from '../../kube/core.ts';
import { page } from '../worlds/qemuguest.ts';
import { hypervisorsBelow } from '../worlds/vm.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { waitFor } from '../../hack/wait.ts';
import { AgentWorld, BOOT, tracesOn } from '../worlds/crash.ts';

/** Time limit. The guest image may have to be made first. */
const SET_UP_MILLISECONDS = 400_000;
const TEST_MILLISECONDS = 300_000;
/** Time limit for the garbage collector of Kubernetes. It deletes the Pods of a missing Node after 40 s, and looks every 20 s. */
const COLLECTED = { deadlineMilliseconds: 100_000 };

let world: AgentWorld;

beforeAll(async () => {
  world = await AgentWorld.start();
}, SET_UP_MILLISECONDS);

afterEach(async () => {
  world.wire.mend();
  world.wire.dropHung();
  world.downloads.release();
  await world.deleteAll();
  await waitFor('nothing to be left', async () => (await tracesOn(world.one)).length === 0, BOOT);
}, TEST_MILLISECONDS);

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
}, TEST_MILLISECONDS);

function hypervisors(agent = world.one): Promise<number[]> {
  return hypervisorsBelow(agent.dataDirectory);
}

/** Returns the sizes of all files of a folder. */
async function bytesBelow(folder: string): Promise<number> {
  const names = await readdir(folder, { recursive: true, withFileTypes: true });
  const files = names.filter((entry) => entry.isFile());
  const sizes = await Promise.all(
    files.map(async ({ parentPath, name }) => (await stat(join(parentPath, name))).size),
  );
  return sizes.reduce((sum, size) => sum + size, 0);
}

describe('kill -9 of the agent', { timeout: TEST_MILLISECONDS }, () => {
  const on = { placement: { node: 'one' } };

  test('in Pulling: the stored half of the image is used, and the machine runs', async () => {
    // A Job of the Image fetches it too. It shares the download if it is on the same host.
    await world.cluster.kubectl(['cordon', 'two']);
    const { length: before } = world.downloads.starts;
    world.downloads.holdBack();
    await world.makeVM('pulling', on);
    await world.downloads.waitForHeld();
    await world.waitForMachine('pulling', 'Pulling');
    const partial = join(world.one.dataDirectory, 'images', 'partial');
    const half = Math.floor(world.downloads.bytes / 2);
    await waitFor('half of the image on the host', async () => (await bytesBelow(partial)) >= half);
    await world.one.kill();
    world.downloads.release();
    await world.one.startAgain();
    await world.waitUntilReady('pulling');
    expect(await hypervisors()).toHaveLength(1);
    expect(await readdir(partial)).toEqual([]);
    expect(world.downloads.starts.slice(before), 'where it was begun, and gone on with').toEqual([0, half]);
    await world.cluster.kubectl(['uncordon', 'two']);
    expect((await world.vms.get('pulling')).status).toMatchObject({ attempt: 1 });
  });

  test('one-machine: in Starting: exactly one machine runs afterwards', async () => {
    await world.startUnheard('starting', on);
    await world.one.kill();
    world.wire.mend();
    world.wire.dropHung();
    expect((await world.vms.get('starting')).status?.firstRunningTime).toBeUndefined();
    await world.one.startAgain();
    await world.waitUntilReady('starting');
    expect(await hypervisors()).toHaveLength(1);
    expect((await world.vms.get('starting')).status).toMatchObject({ attempt: 1 });
  });

  test('no-orphan: in Terminating: the machine ends, and nothing of it remains', async () => {
    await world.makeVM('terminating', on);
    await world.waitUntilReady('terminating');
    await world.vms.delete('terminating');
    await world.waitForMachine('terminating', 'Terminating');
    await world.one.kill();
    await world.vms.waitForPhase('terminating', 'Terminating');
    await world.one.startAgain();
    await world.vms.waitUntilGone('terminating', BOOT);
    expect(await hypervisors()).toEqual([]);
    expect(await tracesOn(world.one)).toEqual([]);
  });
});

describe('a running guest', { timeout: TEST_MILLISECONDS }, () => {
  async function factsOf(name: string) {
    const [vm, pod] = await Promise.all([world.vms.get(name), world.vms.pod(name)]);
    const { attempt, firstRunningTime, nodeName } = vm.status ?? {};
    return { attempt, firstRunningTime, nodeName, pod: pod.metadata.uid };
  }

  async function makeServingVM(name: string, spec: object = {}): Promise<number> {
    const port = await freePort();
    await world.makeVM(name, { ports: [`${port}:80`], ...spec });
    await world.waitUntilReady(name);
    return port;
  }

  async function renewTimeOf(name: string): Promise<string | undefined> {
    const lease = await world.cluster.client().get(LEASES, { namespace: 'kube-node-lease', name });
    return lease.spec?.renewTime;
  }

  async function bootOf(port: number): Promise<string | undefined> {
    return (await page(port))['boot_id'];
  }

  async function consoleOf(name: string): Promise<string> {
    const { namespace } = world.vms;
    return (await world.cluster.kubectl(['logs', '-n', namespace, name, '--tail=60'])).stdout;
  }

  /** Asks the VM again and again. Each answer must come from the same boot of the guest. A failure has the end of the guest's console. */
  async function expectServingDuring(work: Promise<unknown>, name: string, port: number): Promise<void> {
    const boot = await bootOf(port);
    const over = new AbortController();
    const end = work.finally(() => over.abort());
    const answers: string[] = [];
    const ask = async (): Promise<boolean> => {
      const page = fetch(`http://127.0.0.1:${port}/`).then((response) => response.text());
      answers.push(await page.catch((error: Error) => `${error.message}: ${String(error.cause)}`));
      return over.signal.aborted;
    };
    await Promise.all([end, waitFor('the end of the work', ask, BOOT)]);
    const others = answers.filter((answer) => !answer.includes(`boot_id=${boot}`));
    const console = others.length === 0 ? '' : await consoleOf(name);
    expect({ others, console }).toEqual({ others: [], console: '' });
  }

  test('patient: with the API server killed, one machine runs on, and another that was starting runs too', async () => {
    const port = await makeServingVM('kept', { placement: { node: 'one' } });
    const [facts, [machine]] = [await factsOf('kept'), await hypervisors()];
    await world.makeVM('begun', { placement: { node: 'one' } });
    await world.waitForStart('begun', world.one);
    await expectServingDuring(world.cluster.component('kube-apiserver').restart('SIGKILL'), 'kept', port);
    await world.waitUntilReady('begun');
    await world.waitUntilReady('kept');
    expect(await factsOf('kept')).toEqual(facts);
    expect(await hypervisors()).toHaveLength(2);
    expect(await hypervisors()).toContain(machine);
    expect(await factsOf('begun')).toMatchObject({ attempt: 1 });
  });

  test('no-lost-disk: its agent is away, somebody deletes its Node, and Kubernetes deletes its Pod: the same boot goes on', async () => {
    const port = await makeServingVM('collected', { placement: { node: 'one' } });
    const [{ pod, ...facts }, machines, boot] = [
      await factsOf('collected'),
      await hypervisors(),
      await bootOf(port),
    ];
    await world.one.kill();
    await world.cluster.kubectl(['delete', 'node', 'one']);
    const isCollected = async () =>
      (await world.vms.pod('collected')).metadata.deletionTimestamp !== undefined;
    await waitFor('the garbage collector to delete the Pod', isCollected, COLLECTED);
    expect((await world.vms.get('collected')).status?.failure).toBeUndefined();
    await world.one.startAgain();
    await waitFor('the next Pod', async () => (await world.vms.pod('collected')).metadata.uid !== pod);
    await world.waitUntilReady('collected');
    expect(await factsOf('collected')).toMatchObject(facts);
    expect(await bootOf(port)).toBe(boot);
    expect(await hypervisors()).toEqual(machines);
  });

  test('no-lost-disk: its Node is deleted, and then its Pod by force, while its agent runs: the same boot goes on', async () => {
    const port = await makeServingVM('forced', { placement: { node: 'one' } });
    const [{ pod, ...facts }, machines] = [await factsOf('forced'), await hypervisors()];
    const forced = ['delete', 'pod', '-n', world.vms.namespace, 'forced', '--force', '--grace-period=0'];
    const harm = async (): Promise<void> => {
      await world.cluster.kubectl(['delete', 'node', 'one']);
      await world.cluster.kubectl([...forced, '--wait=false']);
      await waitFor('the next Pod', async () => (await world.vms.pod('forced')).metadata.uid !== pod);
      await world.waitUntilReady('forced');
    };
    await expectServingDuring(harm(), 'forced', port);
    expect(await factsOf('forced')).toMatchObject(facts);
    expect(await hypervisors()).toEqual(machines);
    const { stdout } = await world.cluster.kubectl(['logs', '-n', world.vms.namespace, 'forced', '--tail=1']);
    expect(stdout).not.toBe('');
  });

  test('one-machine, no-lost-disk: a host lost for longer than hostLostTimeout, which then returns', async () => {
    await world.cluster.kubectl(['cordon', 'two']);
    const port = await makeServingVM('ran');
    const [facts, [machine], boot] = [await factsOf('ran'), await hypervisors(), await bootOf(port)];
    await world.startUnheard('unseen');
    await world.cluster.kubectl(['uncordon', 'two']);

    // The host destroys a machine that was never reported as running, before another host gets its VM.
    await waitFor('the machine that nobody sees', async () => (await hypervisors()).length === 2);
    await waitFor('it to be destroyed', async () => (await hypervisors()).length === 1, BOOT);
    expect(await world.history.createdAs(world.vms.namespace, 'unseen')).toBe(1);
    await world.waitUntilReady('unseen');
    expect(await factsOf('unseen')).toMatchObject({ attempt: 2, nodeName: 'two' });
    expect(await hypervisors(world.two)).toHaveLength(1);

    // A machine that has run is lost to the cluster, and runs on.
    await world.vms.waitForPhase('ran', 'Failed');
    await world.vms.waitForCondition('ran', 'Ready', { status: 'False', reason: 'HostLost' });
    expect(await factsOf('ran')).toEqual(facts);
    expect((await world.vms.pod('ran')).metadata.deletionTimestamp).toBeUndefined();
    expect(await bootOf(port)).toBe(boot);

    // The host returns with a watch that hangs. Its unfinished work belongs to another host by now, and must not be started again.
    world.wire.mend();
    const renewed = new Set([await renewTimeOf('one')]);
    const times = async (): Promise<boolean> => renewed.add(await renewTimeOf('one')).size > 3;
    await waitFor('its Lease to be renewed three times', times, BOOT);
    expect(await hypervisors()).toEqual([machine]);
    world.wire.dropHung();
    await world.vms.waitForPhase('ran', 'Running', undefined, BOOT);
    await world.waitUntilReady('ran');
    expect(await factsOf('ran')).toEqual(facts);
    expect(await hypervisors()).toEqual([machine]);
    await waitFor(
      'the rest of the other to be removed',
      async () => (await tracesOn(world.one)).length === 2,
    );
  });
});
