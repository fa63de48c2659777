/** Ends of a VM other than `kubectl delete vm`, with real guests: the status of the VM, and traces on the host. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { NAMESPACES } from '../../../kube/core.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { isGone } from '../../fixtures/objects.ts';
import { VMs } from '../../fixtures/vms.ts';
import { waitFor } from '../../../hack/wait.ts';
import { BOOT, hypervisorsBelow, SET_UP_MILLISECONDS, STEP, World } from '../../worlds/vm.ts';

const TEST_MILLISECONDS = 300_000;
const NAMESPACE = 'platform-ending';

let world: World;
let elsewhere: VMs;

/** Two guests boot at the same time, before a test needs them. */
beforeAll(async () => {
  world = await World.start({ name: 'vm-endings', architecture: 'amd64', hosts: { host: '127.0.0.1' } });
  await world.cluster.createNamespace(NAMESPACE);
  elsewhere = new VMs(world.cluster, NAMESPACE);
  await makeVM('inside', elsewhere);
  await makeVM('deleted');
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
});

async function makeVM(name: string, vms = world.vms): Promise<void> {
  const ports = [`${await freePort()}:80`];
  await world.makeVM(name, { ports, readiness: { type: 'Port', port: 80 } }, vms);
}

async function ready(name: string, vms = world.vms): Promise<void> {
  await vms.waitForCondition(name, 'Ready', { status: 'True' }, BOOT);
}

/** Returns the page of the VM at its port of the host. */
async function urlOf(name: string, vms = world.vms): Promise<string> {
  const [endpoint] = (await vms.get(name)).status?.endpoints ?? [];
  const url = `http://127.0.0.1:${endpoint?.hostPort}/`;
  expect((await fetch(url)).status).toBe(200);
  return url;
}

async function expectSilence(url: string): Promise<void> {
  await expect(fetch(url)).rejects.toThrow('fetch failed');
}

async function failedFor(name: string, reason: string): Promise<void> {
  await world.vms.waitForPhase(name, 'Failed', reason, STEP);
  await world.vms.waitForCondition(name, 'Ready', { status: 'False', reason });
  await world.vms.waitForCondition(name, 'Stalled', { status: 'True', reason });
  await world.expectStory(name, new RegExp(`Warning +${reason} `));
}

test(
  'deletion of the whole namespace ends, and removes the machine',
  async () => {
    await ready('inside', elsewhere);
    const [machine, url] = [await world.machine('inside', elsewhere), await urlOf('inside', elsewhere)];
    await world.cluster.client().delete(NAMESPACES, { name: NAMESPACE });
    await machine.waitUntilGone();
    await expectSilence(url);
    // Kubernetes looks again only after half of the Pods' grace period. The other guests boot meanwhile.
    await makeVM('orphaned');
    await makeVM('drained');
    await waitFor(`namespace ${NAMESPACE} to be gone`, namespaceIsGone, STEP);
  },
  TEST_MILLISECONDS,
);

function namespaceIsGone(): Promise<boolean> {
  return isGone(() => world.cluster.client().get(NAMESPACES, { name: NAMESPACE }));
}

test(
  'kubectl delete pod: the VM is Failed with a reason, and is not created again with an empty disk',
  async () => {
    await ready('deleted');
    const [machine, url] = [await world.machine('deleted'), await urlOf('deleted')];
    await world.kubectl('delete', 'pod', 'deleted');
    await machine.expectGone();
    await expectSilence(url);
    await failedFor('deleted', 'PodDeleted');
    expect(await world.kubectl('get', 'pod', 'deleted', '--ignore-not-found')).toBe('');
    await world.kubectl('delete', 'vm', 'deleted');
  },
  TEST_MILLISECONDS,
);

test(
  'kubectl delete vm --cascade=orphan: its machine is removed all the same',
  async () => {
    await ready('orphaned');
    const [machine, url] = [await world.machine('orphaned'), await urlOf('orphaned')];
    await world.kubectl('delete', 'vm', 'orphaned', '--cascade=orphan');
    await world.vms.waitUntilGone('orphaned', STEP);
    await machine.waitUntilGone();
    await expectSilence(url);
  },
  TEST_MILLISECONDS,
);

test(
  'kubectl drain: asks before it destroys a disk, then evicts; the VM is Failed',
  async () => {
    await ready('drained');
    const [machine, url] = [await world.machine('drained'), await urlOf('drained')];
    await expect(world.kubectl('drain', 'host')).rejects.toThrow('--delete-emptydir-data');
    expect(await world.vms.names('Running')).toContain('drained');
    await world.kubectl('drain', 'host', '--delete-emptydir-data');
    await machine.expectGone();
    await expectSilence(url);
    await failedFor('drained', 'Evicted');
    expect(await hypervisorsBelow(world.host('host').dataDirectory)).toEqual([]);
  },
  TEST_MILLISECONDS,
);
