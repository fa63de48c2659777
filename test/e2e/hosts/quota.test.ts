/** Slots of an ARM host with real aarch64 guests: never more machines than the quota. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { NODES } from '../../../kube/core.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { conditionOf } from '../../fixtures/vms.ts';
import { waitFor } from '../../../hack/wait.ts';
import { GreatestCount } from '../../support/greatestcount.ts';
import { page } from '../../worlds/qemuguest.ts';
import { BOOT, hypervisorsBelow, SET_UP_MILLISECONDS, STEP, World } from '../../worlds/vm.ts';

const TEST_MILLISECONDS = 600_000;
const NAMES = ['a', 'b', 'c', 'd', 'e'];
const FULL = 'No host is free: 1 without a free slot';
/** Time limit for a boot. Each look runs kubectl, whose time of the processor the guests lack. */
const UP = { ...BOOT, intervalMilliseconds: 2_000 };

let world: World;
let counter: GreatestCount;

beforeAll(async () => {
  world = await World.start({ name: 'host-quota', architecture: 'arm64', hosts: { host: '127.0.0.1' } });
  counter = new GreatestCount(hypervisors);
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
  await counter?.stop();
});

async function makeVM(name: string): Promise<void> {
  await world.makeVM(name, { architecture: 'arm64', ports: [`${await freePort()}:80`] });
}

/** Returns the only VM that does not run, whose status says that no slot is free. */
async function pending(): Promise<string> {
  const [name = ''] = await waitFor(
    'one VM alone to be Pending because the host is full',
    async () => {
      const vms = (await world.vms.list()).filter(({ status }) => status?.phase !== 'Running');
      const message = vms[0] && conditionOf(vms[0], 'Scheduled')?.message;
      return vms.length === 1 && message === FULL && vms.map(({ metadata }) => metadata.name);
    },
    BOOT,
  );
  return name;
}

async function slots(): Promise<(string | undefined)[]> {
  const { status } = await world.cluster.client().get(NODES, { name: 'host' });
  return [status?.capacity?.['berth.dev/slot'], status?.allocatable?.['berth.dev/slot']];
}

async function hypervisors(): Promise<number> {
  return (await hypervisorsBelow(world.host('host').dataDirectory)).length;
}

async function guestIsUp(name: string): Promise<void> {
  await waitFor(
    `the guest of VM ${name} to be up`,
    async () => (await world.kubectl('logs', name)).includes('berth-guest: ready'),
    UP,
  );
}

test(
  'of five VMs four run, the fifth says why it waits, and it runs when another is deleted',
  async () => {
    expect(await slots()).toEqual(['4', '4']);
    for (const name of NAMES) {
      await makeVM(name);
    }
    const fifth = await pending();
    expect(await world.vms.names('Running')).toHaveLength(4);
    expect(await hypervisors()).toBe(4);
    expect(conditionOf(await world.vms.get(fifth), 'Scheduled')).toMatchObject({
      status: 'False',
      reason: 'Unschedulable',
      message: FULL,
    });
    const table = await world.kubectl('get', 'vm', '-o', 'wide');
    expect(table).toMatch(new RegExp(`^${fifth} +Pending +False +.*${FULL.replace(/[()]/g, '\\$&')}`, 'm'));
    expect(await world.kubectl('describe', 'vm', fifth)).toContain(FULL);

    const [first = ''] = NAMES.filter((name) => name !== fifth);
    await guestIsUp(first);
    const { status } = await world.vms.get(first);
    expect(await page(status?.endpoints?.[0]?.hostPort ?? 0)).toMatchObject({ architecture: 'aarch64' });
    await world.kubectl('delete', 'vm', first);
    await world.vms.waitForPhase(fifth, 'Running', undefined, BOOT);
    expect(await hypervisors()).toBe(4);
    expect(await counter.greatest()).toBe(4);
  },
  TEST_MILLISECONDS,
);

test(
  'a lower quota of 2 ends none of four machines, and new machines wait until fewer than two run',
  async () => {
    await world.operator.stop();
    world.operator = await world.cluster.startOperator({ config: { osx_node_platform_quota_pod: 2 } });
    await waitFor('two slots', async () => (await slots()).every((count) => count === '2'), STEP);
    expect(await world.vms.names('Running')).toHaveLength(4);
    expect(await hypervisors()).toBe(4);

    const [one = '', two = '', three = ''] = await world.vms.names('Running');
    await makeVM('next');
    await Promise.all([guestIsUp(one), guestIsUp(two), guestIsUp(three)]);
    await world.kubectl('delete', 'vm', one, two);
    expect(await pending()).toBe('next');
    expect(await hypervisors()).toBe(2);
    expect(await counter.greatest()).toBe(4);
    await world.kubectl('delete', 'vm', three);
    await world.vms.waitForPhase('next', 'Running', undefined, BOOT);
    expect(await hypervisors()).toBe(2);
    expect(await counter.greatest()).toBe(2);
  },
  TEST_MILLISECONDS,
);
