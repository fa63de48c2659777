import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { NODES } from '../../kube/core.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { faultsIn } from '../support/operatorlog.ts';
import { PodHistory } from '../support/podhistory.ts';
import { conditionOf, numbered, VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';

const HOSTS = 8;
const QUOTA = 4;
/** Time limit of a fleet on two busy cores. On an idle machine it takes a few seconds. */
const FLEET = { deadlineMilliseconds: 60_000 };

let cluster: Cluster;
let operator: OperatorProcess;
let history: PodHistory;
let vms: VMs;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-fleet-${process.pid}`, hosts: HOSTS });
  history = await PodHistory.start(cluster.client());
  operator = await cluster.startOperator();
  vms = new VMs(cluster);
});

afterAll(async () => {
  history?.stop();
  await cluster?.stop();
});

async function waitForRunning(count: number): Promise<string[]> {
  return await waitFor(
    `${count} VMs to run`,
    async () => {
      const running = await vms.names('Running');
      return running.length === count && running;
    },
    FLEET,
  );
}

async function deleteAndWait(names: readonly string[]): Promise<void> {
  await Promise.all(names.map((name) => vms.delete(name)));
  for (const name of names) {
    await vms.waitUntilGone(name, FLEET);
  }
}

describe('40 VMs on 8 hosts with 4 slots each', () => {
  const names = numbered('fleet', 40);
  let waiting: string[];

  it('four-slots: 32 run, and 8 wait with the reason in kubectl get and in their condition', async () => {
    await vms.createMany(names);
    const running = await waitForRunning(HOSTS * QUOTA);
    waiting = names.filter((name) => !running.includes(name));
    for (const name of waiting) {
      await vms.waitForCondition(name, 'Scheduled', {
        status: 'False',
        reason: 'Unschedulable',
        message: `No host is free: ${HOSTS} without a free slot`,
      });
    }
    const { stdout } = await cluster.kubectl(['get', 'vms', '-n', vms.namespace, '-o', 'wide']);
    const rows = stdout.split('\n').filter((row) => row.includes('without a free slot'));
    expect(new Set(rows.map((row) => row.split(/\s+/)[0]))).toEqual(new Set(waiting));
  });

  it('waiting VMs run as soon as others are deleted', async () => {
    const ended = names.filter((name) => !waiting.includes(name)).slice(0, waiting.length);
    await deleteAndWait(ended);
    const running = await waitForRunning(HOSTS * QUOTA);
    expect(running).toEqual(expect.arrayContaining(waiting));
  });

  it('a lower quota ends no machine, and limits new placements', async () => {
    await operator.stop();
    operator = await cluster.startOperator({ config: { osx_node_platform_quota_pod: 2 } });
    await waitFor('the hosts to have 2 slots', async () => {
      const { items } = await cluster.client().list(NODES);
      return items.every(
        ({ status }) =>
          status?.allocatable?.['berth.dev/slot'] === '2' && status.capacity?.['berth.dev/slot'] === '2',
      );
    });
    expect(await vms.names('Running')).toHaveLength(HOSTS * QUOTA);
    await vms.create('late');
    await vms.waitForCondition('late', 'Scheduled', { status: 'False', reason: 'Unschedulable' });

    const all = (await vms.list()).filter(({ metadata }) => metadata.name !== 'late');
    const onFirst = all.filter(({ status }) => status?.nodeName === 'host-0').map((vm) => vm.metadata.name);
    // Each host has four machines. After the deletion of two, the first host is at its lower quota, so the VM must go on waiting.
    await deleteAndWait(onFirst.slice(0, 2));
    await vms.create('later');
    await vms.waitForCondition('later', 'Scheduled', { status: 'False', reason: 'Unschedulable' });
    expect((await vms.get('late')).status?.phase).toBe('Pending');
    await deleteAndWait(onFirst.slice(2, 3));
    const deleted = onFirst.slice(0, 3);
    const untouched = all.map((vm) => vm.metadata.name).filter((name) => !deleted.includes(name));
    const placed = await waitFor('one of the two that wait to run', async () => {
      const running = await vms.names('Running');
      return running.find((name) => name === 'late' || name === 'later');
    });
    expect((await vms.get(placed)).status?.nodeName).toBe('host-0');
    const running = new Set(await vms.names('Running'));
    expect(untouched.filter((name) => !running.has(name))).toEqual([]);
  });

  it("four-slots: by the Pods' history no host ever had more than four machines", async () => {
    expect(await history.mostOnOneHost()).toBe(QUOTA);
  });
});

describe('the operator', () => {
  it('has all rights that it needs, and none of its writes was refused as invalid', () => {
    expect(faultsIn(operator.logFile)).toEqual([]);
  });

  it('reports nothing but Running of a VM at rest', async () => {
    const running = (await vms.list()).filter(({ status }) => status?.phase === 'Running');
    expect(running).not.toEqual([]);
    for (const vm of running) {
      expect(conditionOf(vm, 'Ready')).toMatchObject({ status: 'True' });
      expect(conditionOf(vm, 'Stalled')).toBeUndefined();
      expect(conditionOf(vm, 'Reconciling')).toBeUndefined();
    }
  });
});
