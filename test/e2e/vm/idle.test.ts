/** A whole Berth at rest: the writers to the API server while nothing changes. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { conditionIn } from '../../../operator/objects/conditions.ts';
import { IMAGES } from '../../../api/v1alpha1/resources.ts';
import { JOBS } from '../../../kube/core.ts';
import { auditedWrites, isSignOfLife, untilSettled } from '../../support/apiwrites.ts';
import { CacheEntries } from '../../fixtures/cacheentries.ts';
import { numbered } from '../../fixtures/vms.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { waitFor } from '../../../hack/wait.ts';
import { page, tell } from '../../worlds/qemuguest.ts';
import { BOOT, SET_UP_MILLISECONDS, STEP, World } from '../../worlds/vm.ts';

const NAMESPACE = 'platform-default';
/** Longer than every interval at which operator or agent check something again. The longest interval is a minute. */
const QUIET_MILLISECONDS = 65_000;
const TEST_MILLISECONDS = 400_000;
const SIMULATED_HOSTS = 5;
/** Number of VMs that fill the simulated hosts. */
const SIMULATED_VMS = 20;
/** The only real host sends a heartbeat every five minutes, which may be within the quiet time. */
const HEARTBEAT = 'berth-agent: patch nodes/status';

let world: World;

beforeAll(async () => {
  world = await World.start({
    name: 'idle',
    architecture: 'amd64',
    hosts: { real: '127.0.0.1' },
    audit: true,
  });
}, SET_UP_MILLISECONDS);

afterAll(async () => await world?.[Symbol.asyncDispose]());

/** Creates a VM that is Ready when its guest agent answers, which starts late. */
async function makeWithGuestAgent(name: string): Promise<void> {
  const { vms } = world;
  const port = await freePort();
  const readiness = { type: 'GuestAgent' } as const;
  await world.makeVM(name, { placement: { node: 'real' }, ports: [`${port}:80`], readiness });
  await page(port);
  await vms.waitForCondition(name, 'GuestAgentConnected', { status: 'False', reason: 'NotConnected' });
  await vms.waitForCondition(name, 'Ready', { status: 'False', reason: 'NotReady' });
  await tell(port, 'agent=0');
  await vms.waitForCondition(name, 'Ready', { status: 'True' });
  const { status } = await vms.get(name);
  expect(conditionIn(status ?? {}, 'GuestAgentConnected')).toMatchObject({ status: 'True' });
  expect(status).toMatchObject({
    addresses: expect.arrayContaining(['10.0.2.15']) as string[],
    guest: { os: 'Berth guest', hostName: 'berth-guest' },
  });
}

/** Creates running VMs, one with a guest agent, a stopped VM, a waiting VM, an Image and its entry of the cache. */
async function fill(): Promise<void> {
  const { cluster, vms } = world;
  await waitFor(
    'the Image to be Ready',
    async () =>
      (await cluster.client().get(IMAGES, { namespace: NAMESPACE, name: 'guest' })).status?.phase === 'Ready',
    STEP,
  );
  const entries = new CacheEntries(cluster);
  const imageRef = { namespace: NAMESPACE, name: 'guest' };
  await entries.create('guest', { imageRef, targets: { nodes: ['real'] } });
  await entries.waitUntilCached('guest', 1, STEP);
  await cluster.addHosts(SIMULATED_HOSTS);
  const simulated = numbered('simulated', SIMULATED_VMS);
  await vms.createMany(simulated, { image: 'guest', architecture: 'arm64' });
  await makeWithGuestAgent('running');
  await world.makeVM('stopped', { placement: { node: 'real' }, powerState: 'Stopped' });
  for (const name of [...simulated, 'running']) {
    await vms.waitForPhase(name, 'Running', undefined, BOOT);
  }
  await vms.waitForPhase('stopped', 'Stopped', undefined, BOOT);
  await vms.create('waiting', { architecture: 'arm64' });
  await vms.waitForCondition('waiting', 'Scheduled', { status: 'False', reason: 'Unschedulable' });
}

/** The Jobs of an Image go a minute after their success. */
async function untilWithoutJobs(): Promise<void> {
  const { cluster } = world;
  await waitFor(
    'the Jobs of the Image to be deleted',
    async () => (await cluster.client().list(JOBS, { namespace: NAMESPACE })).items.length === 0,
    STEP,
  );
}

test('idle-quiet: the only writes are Leases and heartbeats of hosts', {
  timeout: TEST_MILLISECONDS,
}, async () => {
  await fill();
  await untilWithoutJobs();
  await untilSettled(world.cluster);
  const begin = Date.now();
  await waitFor('the quiet time to pass', () => Date.now() - begin >= QUIET_MILLISECONDS, {
    deadlineMilliseconds: 2 * QUIET_MILLISECONDS,
    intervalMilliseconds: 1_000,
  });
  const all = auditedWrites(world.cluster);
  const writers = new Set(all.map(({ writer }) => writer));
  for (const writer of ['berth-operator', 'berth-agent']) {
    expect(writers, 'whose writes are seen').toContain(writer);
  }
  const written = all
    .filter((write) => write.at >= begin && !isSignOfLife(write))
    .map(({ writer, what, object, body }) => ({ write: `${writer}: ${what}`, object, body }));
  expect(written.filter(({ write }) => write !== HEARTBEAT)).toEqual([]);
  expect(written.length, 'heartbeats of the real host').toBeLessThanOrEqual(1);
});
