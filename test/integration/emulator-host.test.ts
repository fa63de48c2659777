/**
 * Emulators on an ARM host, by a real API server, scheduler, operator and agent. The VMs, emulators and cache Jobs of the host are sleeping
 * stand-ins, which the tests count and look at on the host itself.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { EmulatorSpec } from '../../api/v1alpha1/emulator.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { EMULATORS_CONDITION } from '../../api/v1alpha1/names.ts';
import { waitFor } from '../../hack/wait.ts';
import { NODES, PODS } from '../../kube/core.ts';
import { isNotFound } from '../../kube/errors.ts';
import { numbered } from '../fixtures/vms.ts';
import { faultsIn } from '../support/operatorlog.ts';
import { SleepingWorld } from '../worlds/sleepinghost.ts';

/** Number of VMs, of emulators and of cache Jobs that come and go. */
const EACH = 40;
const SLOTS = 4;
/** VM of most emulators. */
const HOME = 'home';
/** Size with which three emulators fit on small machines. */
const SMALL = { memory: '2560Mi', cpu: 1 };
/** Time limit. All of them need about half a minute on two idle cores. */
const ALL = { deadlineMilliseconds: 150_000, intervalMilliseconds: 50 };
/** Time limit. The garbage collector learns about new kinds each 30 s. */
const COLLECTED = { deadlineMilliseconds: 60_000 };

let world: SleepingWorld;

beforeAll(async () => {
  world = await SleepingWorld.start(`emulator-host-${process.pid}`);
  await runVM(HOME);
});

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
});

async function runVM(name: string): Promise<void> {
  await world.vms.create(name, { placement: { node: world.host.name }, cpu: 1, memory: '512Mi' });
  await world.vms.waitForPhase(name, 'Running');
}

async function create(name: string, spec: Partial<EmulatorSpec> = {}): Promise<void> {
  await world.emulators.create(name, { vmName: HOME, ...SMALL, ...spec });
}

/** Creates an emulator and resolves with the uid of its Pod when it is Running. */
async function run(name: string, spec: Partial<EmulatorSpec> = {}): Promise<string> {
  await create(name, spec);
  await world.emulators.waitForPhase(name, 'Running');
  return await uidOf(name);
}

async function uidOf(name: string): Promise<string> {
  return (await world.emulators.pod(name)).metadata.uid ?? '';
}

/** Waits until the host has this many emulators, with their folders and networks. */
async function expectOnHost(count: number): Promise<void> {
  const { emulators, network } = world.host;
  await waitFor(`${count} emulators on the host`, () => {
    const sizes = [emulators.machines.size, network.namespaces.size];
    if (sizes.some((size) => size !== count)) {
      throw new Error(`${sizes.join(' and ')} machines and namespaces`);
    }
    return true;
  });
}

/** Lets the next agent take over, as after an update. */
async function restartAgent(meanwhile: () => void = () => undefined): Promise<void> {
  await world.host.stop();
  meanwhile();
  await world.host.launch({ approve: false });
}

async function remove(name: string): Promise<void> {
  await world.emulators.delete(name);
  await world.emulators.waitUntilGone(name);
}

function startsOf(uid: string): number {
  return world.host.emulators.calls.filter((call) => call === `start ${uid}`).length;
}

describe('an emulator', () => {
  it.each(['Stopped', 'Suspended'] as const)(
    'ends with its VM that is %s, and runs again with it',
    async (power) => {
      const name = `with-${power.toLowerCase()}`;
      await runVM('paired');
      const first = await run(name, { vmName: 'paired' });
      await world.vms.patch('paired', { powerState: power });
      await world.vms.waitForPhase('paired', power);
      const { message } = await world.emulators.waitForReason(name, 'Ready', 'VMNotRunning');
      expect(message).toBe('VM paired is not running. The emulator starts when the VM is Running');
      await expectOnHost(0);
      await world.vms.patch('paired', { powerState: 'Running' });
      await world.emulators.waitForPhase(name, 'Running');
      expect(await uidOf(name)).not.toBe(first);
      await world.vms.delete('paired');
      await world.vms.waitUntilGone('paired');
      await expectOnHost(0);
      // The last test waits until the garbage collector has deleted the Emulator.
    },
  );

  it('that boots while its agent ends is not started twice', async () => {
    world.host.emulators.bootsAtOnce = false;
    await create('boots');
    await world.emulators.waitForPhase('boots', 'Starting');
    const uid = await uidOf('boots');
    await waitFor('ADB of the emulator', () => world.host.emulators.device(uid));
    await restartAgent();
    world.host.emulators.bootsAtOnce = true;
    world.host.emulators.device(uid).booted = true;
    await world.emulators.waitForPhase('boots', 'Running');
    expect([await uidOf('boots'), startsOf(uid)]).toEqual([uid, 1]);
    await remove('boots');
    await expectOnHost(0);
  });

  it('that is removed while its agent ends leaves nothing', async () => {
    const uid = await run('goes');
    world.host.emulators.deaf = true;
    await world.emulators.delete('goes');
    await waitFor('the end of the emulator to begin', () =>
      world.host.emulators.calls.includes(`power ${uid}`),
    );
    await restartAgent(() => {
      world.host.emulators.deaf = false;
    });
    await world.emulators.waitUntilGone('goes');
    await expectOnHost(0);
  });

  it('stays if the SDK is taken away, and a new one names the host and its reason until the SDK is back', async () => {
    const { emulators, name } = world.host;
    const before = emulators.offered;
    const uid = await run('old');
    const message = 'The folder /stand-in of the SDK does not exist';
    await restartAgent(() => {
      emulators.offered = { kind: 'none', message };
    });
    await waitFor('the Node to tell', async () => {
      const { status } = await world.cluster.client().get(NODES, { name });
      return status?.conditions?.some(
        (one) => one.type === EMULATORS_CONDITION && one.status === 'False' && one.message === message,
      );
    });
    await create('new');
    const reported = await world.emulators.waitForReason('new', 'Scheduled', 'HostWithoutEmulators');
    expect(reported.message).toContain(`Host ${name} runs no emulators: ${message}`);
    expect([await uidOf('old'), emulators.machines.get(uid)?.kind]).toEqual([uid, 'running']);
    await restartAgent(() => {
      emulators.offered = before;
    });
    await world.emulators.waitForPhase('new', 'Running');
    await Promise.all(['old', 'new'].map(remove));
    await expectOnHost(0);
  });

  it('whose boot never completes is ended after its time, and leaves its slot', async () => {
    world.host.emulators.bootsAtOnce = false;
    await create('slow', { deployTimeoutSeconds: 6 });
    const { status } = await world.emulators.waitForPhase('slow', 'Failed');
    expect(status?.failure?.reason).toBe('DeployTimeout');
    expect(status?.failure?.message).toContain(
      'Android is booting; ADB answers, and the boot is not complete yet',
    );
    await world.emulators.waitUntilPodGone('slow');
    await expectOnHost(0);
    world.host.emulators.bootsAtOnce = true;
    await remove('slow');
  });

  it('that may not use the virtualization of its host has failed, and nothing of it stays there', async () => {
    world.host.emulators.startError = new ReasonedError('AccelerationMissing', 'Nobody may use /dev/kvm');
    await create('unable');
    const { status } = await world.emulators.waitForPhase('unable', 'Failed');
    expect(status?.failure).toMatchObject({
      reason: 'AccelerationMissing',
      message: 'Nobody may use /dev/kvm',
    });
    expect(world.host.emulators.calls).toContain(`discard ${await uidOf('unable')}`);
    const { network } = world.host;
    await waitFor('the network to be gone', () => network.namespaces.size === 0);
    await remove('unable');
    await expectOnHost(0);
  });

  it('whose system image is missing waits in its Pod, and starts when somebody installs the image', async () => {
    const { emulators } = world.host;
    emulators.createError = new ReasonedError('SystemImageMissing', 'The SDK has no image android-36');
    await create('early');
    const { message } = await world.emulators.waitForReason('early', 'Ready', 'SystemImageMissing');
    expect(message).toContain('The SDK has no image android-36');
    const { status } = await world.emulators.get('early');
    expect([status?.phase, status?.failure]).toEqual(['Starting', undefined]);
    const uid = await uidOf('early');
    emulators.createError = undefined;
    await world.emulators.waitForPhase('early', 'Running');
    expect(await uidOf('early')).toBe(uid);
    await remove('early');
    await expectOnHost(0);
  });

  it('with exposure Host waits while other programs have all its ports', async () => {
    const { network } = world.host;
    const isUsable = network.isUsable.bind(network);
    network.isUsable = async () => false;
    await create('open', { exposure: 'Host' });
    const reported = await world.emulators.waitForReason('open', 'Ready', 'NoFreePort');
    expect(reported.message).toMatch(/No TCP port .* is free on this host in the range 5554-5754/);
    await create('late', { exposure: 'Host', deployTimeoutSeconds: 5 });
    const { status } = await world.emulators.waitForPhase('late', 'Failed');
    expect(status?.failure).toMatchObject({
      reason: 'DeployTimeout',
      message: expect.stringContaining(`; the host last reported NoFreePort: ${reported.message}`) as string,
    });
    network.isUsable = isUsable;
    await world.emulators.waitForPhase('open', 'Running');
    await Promise.all(['open', 'late'].map(remove));
    await expectOnHost(0);
  });

  it('that ends by itself has its last words, and leaves its slot', async () => {
    const uid = await run('dies');
    world.host.emulators.end(uid, 'Crashed', 'FATAL: no memory left');
    const { status } = await world.emulators.waitForPhase('dies', 'Failed');
    expect(status?.failure).toMatchObject({ reason: 'Crashed', message: 'FATAL: no memory left' });
    await waitFor('the network to be gone', () => world.host.network.namespaces.size === 0);
    await remove('dies');
    await expectOnHost(0);
  });
});

/** Names of VMs, emulators and cache entries that have worked, and that were deleted then. */
const seen = { vms: new Set<string>(), emulators: new Set<string>(), entries: new Set<string>() };

async function deleteSeen(
  names: readonly string[],
  known: Set<string>,
  deleteOne: (name: string) => Promise<void>,
): Promise<void> {
  const fresh = names.filter((name) => !known.has(name));
  await Promise.all(
    fresh.map(async (name) => {
      known.add(name);
      await deleteOne(name).catch((error: unknown) => {
        if (!isNotFound(error)) {
          throw error;
        }
      });
    }),
  );
}

/** Deletes everything that works on the host at this moment, except {@link HOME}. */
async function deleteWorking(): Promise<void> {
  const { namespace } = world.vms;
  const { items } = await world.cluster.client().list(PODS, { namespace });
  const { vms, emulators } = world.working;
  const namesOf = (uids: readonly string[]) =>
    items.filter(({ metadata }) => uids.includes(metadata.uid ?? '')).map(({ metadata }) => metadata.name);
  const references = [...world.images.fetched.values()];
  await Promise.all([
    deleteSeen(
      namesOf(vms).filter((name) => name !== HOME),
      seen.vms,
      (name) => world.vms.delete(name),
    ),
    deleteSeen(
      namesOf(emulators).map((name) => name.replace('.emulator', '')),
      seen.emulators,
      (name) => world.emulators.delete(name),
    ),
    deleteSeen(
      references.map((reference) => /(entry-\d+):1$/.exec(reference)?.[1] ?? reference),
      seen.entries,
      (name) => world.entries.delete(name),
    ),
  ]);
}

describe('the host', () => {
  it('has never more than four at work while 40 VMs, 40 emulators and 40 cache Jobs come and go', {
    timeout: 240_000,
  }, async () => {
    world.counts.clear();
    const began = performance.now();
    await Promise.all([
      world.vms.createMany(numbered('vm', EACH), { cpu: 1, memory: '512Mi' }),
      ...numbered('emulator', EACH).map((name) => create(name)),
      ...numbered('entry', EACH).map((name) =>
        world.entries.create(name, { reference: `registry.example/${name}:1`, targets: { all: true } }),
      ),
    ]);
    await waitFor(
      'all of them to have worked',
      async () => {
        await deleteWorking();
        const counts = Object.values(seen).map(({ size }) => size);
        if (counts.some((count) => count < EACH)) {
          throw new Error(
            `${counts.join(', ')} VMs, emulators and entries; ${JSON.stringify(world.working)}`,
          );
        }
        return true;
      },
      ALL,
    );
    await world.vms.delete(HOME);
    await waitFor('nothing to be left', () => world.traces === 0);
    const counts = [...world.counts].toSorted(([one], [other]) => one - other);
    const seconds = ((performance.now() - began) / 1000).toFixed(1);
    process.stderr.write(`40 of each: ${seconds} s; counts of workers ${JSON.stringify(counts)}\n`);
    // Fewer would mean that the host was never full.
    expect(Math.max(...world.counts.keys())).toBe(SLOTS);
  });

  it('Emulators of deleted VMs are deleted', { timeout: 90_000 }, async () => {
    await waitFor('them to be gone', async () => (await world.emulators.list()).length === 0, COLLECTED);
  });

  it('the operator has all rights that it needs, and none of its writes was refused as invalid', () => {
    expect(faultsIn(world.operator.logFile)).toEqual([]);
  });
});
