/** A guest fills its disk while a neighbour writes. Operator, agent and QEMU are real, and the disk of the host is small. */
import { execFile } from 'node:child_process';
import { mkdir, rm, stat, statfs, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import type { VM, VMSpec } from '../../api/v1alpha1/vm.ts';
import { AgentProcess, endMachines } from '../../hack/cluster/agent.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { tell } from '../worlds/qemuguest.ts';
import { createImage, guestFile, shareGuest } from '../fixtures/images.ts';
import { conditionOf, VMs } from '../fixtures/vms.ts';
import { mountTmpfs, whyNoTmpfs } from '../support/tmpfs.ts';
import { unless } from '../support/unless.ts';
import { waitFor } from '../../hack/wait.ts';
import { tried } from './support/attempts.ts';

const execute = promisify(execFile);

const HOST = 'small';
const DISK_MEBIBYTES = 1024;
const MINIMUM_FREE = '256Mi';
const MEMORY = '256Mi';
const MEBIBYTE = 2 ** 20;
/** Size of a file that the test removes to make room. */
const BALLAST_MEBIBYTES = 300;
/** A size that is larger than the host's disk. */
const GREEDY_MEBIBYTES = 3000;

const SET_UP_MILLISECONDS = 400_000;
const TEST_MILLISECONDS = 400_000;
/** Time limit for an emulated guest on a busy machine that fills its disk. */
const SLOW = { deadlineMilliseconds: 240_000, intervalMilliseconds: 200 };

const missing = whyNoTmpfs();

describe('a host with a small disk', unless(missing), () => {
  const ports = new Map<string, number>();
  let cluster: Cluster;
  let agent: AgentProcess;
  let vms: VMs;
  /** Folder in which the host's disk is mounted. */
  let disk: string;
  const parts = new AsyncDisposableStack();

  beforeAll(async () => {
    const guest = await guestFile('amd64');
    cluster = parts.adopt(await startCluster({ name: `hostile-disk-${process.pid}` }), (one) => one.stop());
    disk = join(cluster.directory, HOST);
    await mkdir(disk);
    mountTmpfs(disk, DISK_MEBIBYTES);
    parts.defer(async () => void (await waitFor('the disk to be unmounted', unmounted)));
    parts.defer(() => endMachines(cluster.directory));
    await writeFile(join(disk, 'ballast'), Buffer.alloc(BALLAST_MEBIBYTES * MEBIBYTE));
    const shared = await shareGuest(cluster, guest);
    // The host offers far more disk than it has.
    await cluster.startOperator({ config: { diskRequestRatio: 0.01 } });
    const images = { sharedRoots: [shared], minimumFree: MINIMUM_FREE };
    const config = { architecture: 'amd64', cpuOvercommit: 8, images };
    agent = parts.adopt(await AgentProcess.start(cluster, { nodeName: HOST, config }), (one) => one.stop());
    await createImage(cluster, 'guest', { sharedFile: { path: 'guest.qcow2' } });
    vms = new VMs(cluster);
    for (const name of ['greedy', 'neighbour']) {
      await makeVM(name);
    }
    for (const name of ['greedy', 'neighbour']) {
      await waitUntilReady(name);
    }
  }, SET_UP_MILLISECONDS);

  afterAll(async () => await parts.disposeAsync());

  /** Unmounts the disk. Threads of a machine can still end on a busy machine, after the process was killed. */
  async function unmounted(): Promise<true> {
    await execute('umount', [disk]);
    return true;
  }

  async function makeVM(name: string): Promise<void> {
    const port = await freePort();
    ports.set(name, port);
    const spec: Partial<VMSpec> = { image: 'guest', cpu: 1, memory: MEMORY, diskSize: '8Gi' };
    await vms.create(name, { ...spec, ports: [`${port}:80`], readiness: { type: 'Port', port: 80 } });
  }

  async function waitUntilReady(name: string): Promise<void> {
    await vms.waitForCondition(name, 'Ready', { status: 'True' }, SLOW);
  }

  async function waitUntilPaused(name: string): Promise<VM> {
    const wanted = { status: 'False', reason: 'HostDiskFull' } as const;
    await vms.waitForCondition(name, 'Ready', wanted, SLOW);
    return await vms.get(name);
  }

  async function filled(name: string): Promise<number> {
    return Number(await tell(ports.get(name) ?? 0, 'filled'));
  }

  /** Lets the guest write this many bytes to new places of its disk, and waits until the guest reports it. */
  async function expectToWrite(name: string, mebibytes: number): Promise<void> {
    const before = await filled(name);
    await tell(ports.get(name) ?? 0, `fill=${mebibytes}`);
    await waitFor(`${name} to write`, async () => (await filled(name)) === before + mebibytes, SLOW);
  }

  async function freeBytes(): Promise<number> {
    const { bavail, bsize } = await statfs(disk);
    return bavail * bsize;
  }

  async function diskBytes(name: string): Promise<number> {
    const { uid = '' } = (await vms.pod(name)).metadata;
    return (await stat(join(disk, 'machines', uid, 'disk.qcow2'))).blocks;
  }

  async function description(name: string): Promise<string> {
    return (await cluster.kubectl(['-n', vms.namespace, 'describe', 'vm', name])).stdout;
  }

  async function expectEvent(name: string, reason: string): Promise<void> {
    const isReported = async (): Promise<boolean> => (await description(name)).includes(reason);
    await waitFor(`an Event ${reason} of VM ${name}`, isReported);
  }

  test(
    'the guest that fills it is paused and told, and the neighbour writes on',
    async (context) => {
      await tell(ports.get('neighbour') ?? 0, 'fill=1');
      await tell(ports.get('greedy') ?? 0, `fill=${GREEDY_MEBIBYTES}`);
      const { status } = await waitUntilPaused('greedy');
      expect(status?.phase).toBe('Running');
      expect(await freeBytes()).toBeGreaterThan(Number(parseQuantity(MINIMUM_FREE)) / 2);
      await expectEvent('greedy', 'HostDiskFull');
      const before = await diskBytes('greedy');
      await expectToWrite('neighbour', 5);
      expect(await diskBytes('greedy')).toBe(before);
      expect(conditionOf(await vms.get('neighbour'), 'Ready')?.status).toBe('True');
      tried(context, 'a guest that fills its disk', 'paused, its neighbour writes on');
    },
    TEST_MILLISECONDS,
  );

  test(
    'it is still paused after a restart of the agent, and its disk has not grown',
    async (context) => {
      const before = await diskBytes('greedy');
      await agent.kill();
      await agent.startAgain();
      await agent.ready();
      await expectToWrite('neighbour', 5);
      await waitUntilPaused('greedy');
      expect(await diskBytes('greedy')).toBe(before);
      tried(context, 'the agent killed while a guest is paused', 'still paused');
    },
    TEST_MILLISECONDS,
  );

  test(
    'a neighbour whose memory has no room is not suspended, and runs on',
    async (context) => {
      await vms.patch('neighbour', { powerState: 'Suspended' });
      const wanted = { status: 'True', reason: 'NoRoomToSuspend' } as const;
      await vms.waitForCondition('neighbour', 'Reconciling', wanted, SLOW);
      await expectToWrite('neighbour', 1);
      await vms.patch('neighbour', { powerState: 'Running' });
      await vms.waitForVM(
        'neighbour',
        'nothing to reconcile',
        (vm) => conditionOf(vm, 'Reconciling') === undefined,
        SLOW,
      );
      tried(context, 'suspending without room', 'refused with a reason, the guest runs on');
    },
    TEST_MILLISECONDS,
  );

  test(
    'it goes on when there is room, is paused again when that is filled, and is stopped and started as any other',
    async (context) => {
      const before = await diskBytes('greedy');
      await rm(join(disk, 'ballast'));
      await waitFor('the guest to go on', async () => (await diskBytes('greedy')) > before, SLOW);
      await expectEvent('greedy', 'HostDiskHasRoom');
      await waitUntilPaused('greedy');
      await vms.patch('greedy', { powerState: 'Stopped' });
      await vms.waitForPhase('greedy', 'Stopped', undefined, SLOW);
      await vms.patch('greedy', { powerState: 'Running' });
      await waitUntilReady('greedy');
      tried(context, 'room is made for a paused guest', 'goes on, and is paused again');
    },
    TEST_MILLISECONDS,
  );

  test(
    'a paused machine is deleted without a trace, and then the neighbour is suspended and resumed',
    async (context) => {
      await tell(ports.get('greedy') ?? 0, `fill=${GREEDY_MEBIBYTES}`);
      // Since its restart the guest writes from the beginning again, to places that exist already. Later its disk grows again.
      await waitUntilPaused('greedy');
      await vms.delete('greedy');
      await vms.waitUntilGone('greedy', SLOW);
      await vms.patch('neighbour', { powerState: 'Suspended' });
      await vms.waitForPhase('neighbour', 'Suspended', undefined, SLOW);
      await vms.patch('neighbour', { powerState: 'Running' });
      await waitUntilReady('neighbour');
      await expectToWrite('neighbour', 1);
      expect(await description('neighbour')).not.toContain('HostDiskFull');
      tried(context, 'a paused machine is deleted', 'gone, and its room is free');
    },
    TEST_MILLISECONDS,
  );
});
