/** A whole Berth at rest: the writers to the API server while nothing changes. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { conditionIn } from '../../../operator/objects/conditions.ts';
import { IMAGES } from '../../../api/v1alpha1/resources.ts';
import { JOBS, LEASES } from '../../../kube/core.ts';
import { auditedWrites, isSignOfLife, untilSettled } from '../../support/apiwrites.ts';
import { ForwardClock } from '../../support/forwardclock.ts';
import { CacheEntries } from '../../fixtures/cacheentries.ts';
import { numbered } from '../../fixtures/vms.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { waitFor } from '../../../hack/wait.ts';
import { page, tell } from '../../worlds/qemuguest.ts';
import { BOOT, SET_UP_MILLISECONDS, STEP, World } from '../../worlds/vm.ts';

const NAMESPACE = 'platform-default';
/** Longer than every interval at which operator or agent check something again. The longest interval is a minute. */
const QUIET_MILLISECONDS = 66_000;
/** The operator renews its lease at this interval. After a longer step, a busy machine could let the lease expire. */
const TICK_MILLISECONDS = 2_000;
const LEASE = { namespace: 'berth-system', name: 'berth-operator' };
const TEST_MILLISECONDS = 400_000;
const SIMULATED_HOSTS = 5;
/** Number of VMs that fill the simulated hosts. */
const SIMULATED_VMS = 20;
/** The only real host sends a heartbeat every five minutes, which may be within the quiet time. */
const HEARTBEAT = 'berth-agent: patch nodes/status';

let world: World;
let clock: ForwardClock;
let clockFolder: string;

beforeAll(async () => {
  clockFolder = mkdtempSync(join(tmpdir(), 'berth-clock-'));
  clock = new ForwardClock(clockFolder);
  world = await World.start({
    clock,
    name: 'idle',
    architecture: 'amd64',
    hosts: { real: '127.0.0.1' },
    audit: true,
  });
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
  rmSync(clockFolder, { recursive: true, force: true });
});

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

/** Lets the clocks of operator and agent run for {@link QUIET_MILLISECONDS}. The operator keeps its lease, as in a real minute. */
async function passQuietTime(): Promise<void> {
  const client = world.cluster.client();
  for (let passed = 0; passed < QUIET_MILLISECONDS; passed += TICK_MILLISECONDS) {
    const before = await client.get(LEASES, LEASE);
    await clock.advance(TICK_MILLISECONDS);
    await waitFor('the operator to renew its lease', async () => {
      const { metadata, spec } = await client.get(LEASES, LEASE);
      expect(spec?.leaseTransitions, 'the operator continues to lead').toBe(before.spec?.leaseTransitions);
      return metadata.resourceVersion !== before.metadata.resourceVersion;
    });
  }
}

/** The Jobs of an Image go a minute after their success. */
async function untilWithoutJobs(): Promise<void> {
  const { cluster } = world;
  await passQuietTime();
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
  await passQuietTime();
  // Events and combined statuses are written some seconds after the change.
  await untilSettled(world.cluster);
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
