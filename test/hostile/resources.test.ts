/**
 * Machines that want more than their share of a host: more memory than the host has, and more disk than is free. disk.test.ts has the tests
 * with real guests.
 */
import { appendFile, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import * as fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type MachineReport, machineReportSchema, parseDocument } from '../../api/v1alpha1/machine.ts';
import { DISK_CONDITION, MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import type { KubeClient } from '../../kube/client.ts';
import { NODES, type Pod, PODS } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { DESIRED, machineFor, operatorClient, podFor, setDesired, TestHost } from '../worlds/agenthost.ts';
import { waitFor } from '../../hack/wait.ts';
import { hostileRuns, tried } from './support/attempts.ts';

const STEP = { deadlineMilliseconds: 60_000 };
const SET_UP_MILLISECONDS = 300_000;
const TEST_MILLISECONDS = 300_000;
const MEBIBYTE = 2 ** 20;
/** Grace period of the machine that fills the disk during its stop. It is longer than {@link STEP}, the limit of each wait. */
const GRACE_SECONDS = 120;

describe('memory past the host', () => {
  const namespace = 'platform-greedy';
  const ref = { namespace, name: 'greedy' };
  let cluster: Cluster;
  let host: TestHost;
  /** A client with the rights of the operator, which no policy stops here. */
  let operator: KubeClient;
  let offered: number;
  let restarts = 0;

  beforeAll(async () => {
    cluster = await startCluster({ name: `hostile-resources-${process.pid}` });
    await cluster.createNamespace(namespace);
    operator = await operatorClient(cluster);
    host = await TestHost.make(cluster, { name: 'narrow' });
    await host.start();
    const { status } = await cluster.client().get(NODES, { name: 'narrow' });
    offered = Number(parseQuantity(status?.allocatable?.['memory'] ?? '0'));
    for (const name of ['greedy', 'neighbour']) {
      await operator.create(PODS, podFor(host, machineFor(namespace, name)));
      await waitForPod(name, ({ phase }) => phase === 'Running');
    }
  }, SET_UP_MILLISECONDS);

  afterAll(async () => {
    await host?.remove();
    await cluster?.stop();
  });

  async function waitForPod(
    name: string,
    matches: (status: NonNullable<Pod['status']>) => boolean,
  ): Promise<Pod> {
    return await waitFor(
      `Pod ${name} to be as wanted`,
      async () => {
        const pod = await operator.get(PODS, { namespace, name });
        if (!matches(pod.status ?? {})) {
          throw new Error(JSON.stringify(pod.status));
        }
        return pod;
      },
      STEP,
    );
  }

  function reportOf({ status = {} }: Pod): MachineReport {
    const said = status.conditions?.find(({ type }) => type === MACHINE_CONDITION)?.message;
    return machineReportSchema.parse(parseDocument(said) ?? {});
  }

  /** Requests a restart with this memory. Resolves with the memory of the new machine, in bytes. */
  async function restart(memoryBytes: number): Promise<number | undefined> {
    restarts += 1;
    const restartRequestedAt = new Date(restarts * 1000).toISOString().replace('.000Z', 'Z');
    const pod = await operator.get(PODS, ref);
    await setDesired(operator, pod, { ...DESIRED, cpu: 256, memoryBytes, restartRequestedAt });
    const restarted = await waitForPod('greedy', (status) => {
      const report = reportOf({ status } as Pod);
      return report.restartedAt === restartRequestedAt && report.memoryBytes !== undefined;
    });
    expect(reportOf(restarted).cpu).toBe(DESIRED.cpu);
    return reportOf(restarted).memoryBytes;
  }

  async function resize(memoryBytes: number): Promise<void> {
    const { metadata, spec } = await operator.get(PODS, ref);
    const containers = spec.containers.map(({ resources, ...rest }) => ({
      ...rest,
      resources: { ...resources, requests: { ...resources?.requests, memory: String(memoryBytes) } },
    }));
    const { uid } = metadata;
    await operator.mergePatch(
      PODS,
      ref,
      { metadata: { uid }, spec: { containers } },
      { subresource: 'resize' },
    );
  }

  test(
    'a machine gets the memory that its Pod requests, although it is told of more',
    async (context) => {
      const sizes = fc.integer({ min: 2, max: 1000 });
      await fc.assert(
        fc.asyncProperty(sizes, async (times) => {
          expect(await restart(times * offered)).toBe(DESIRED.memoryBytes);
          tried(context, 'memory of 2 to 1000 hosts and a restart', 'started with the old size');
        }),
        hostileRuns(40),
      );
    },
    TEST_MILLISECONDS,
  );

  test('the API server refuses the Pod more than the host has', async (context) => {
    const error = await resize(10 * offered).catch((refusal: unknown) => refusal);
    expect(error).toBeInstanceOf(ApiError);
    expect((error as ApiError).message).toContain("node didn't have enough allocatable resources");
    tried(context, 'pods/resize to ten hosts', `refused: ${(error as ApiError).status}`);
  });

  test(
    'memory that the host has, but a neighbour needs, is not promised',
    async (context) => {
      await resize(offered - MEBIBYTE);
      const { status } = await waitForPod('greedy', ({ conditions = [] }) =>
        conditions.some(({ type }) => type === 'PodResizePending'),
      );
      const pending = status?.conditions?.find(({ type }) => type === 'PodResizePending');
      expect(pending).toMatchObject({ status: 'True', reason: 'Deferred' });
      expect(await restart(offered)).toBe(DESIRED.memoryBytes);
      tried(
        context,
        'pods/resize to all of a host with a neighbour, and a restart',
        'Deferred, the old size',
      );
    },
    TEST_MILLISECONDS,
  );
});

describe('a disk with less free space than images.minimumFree', () => {
  const namespace = 'platform-full';
  let cluster: Cluster;
  let host: TestHost;
  let operator: KubeClient;

  beforeAll(async () => {
    cluster = await startCluster({ name: `hostile-disk-standin-${process.pid}` });
    await cluster.createNamespace(namespace);
    operator = await operatorClient(cluster);
    // No disk has that much space.
    host = await TestHost.make(cluster, { name: 'full', images: { minimumFree: '1Pi' } });
    await host.start();
  }, SET_UP_MILLISECONDS);

  afterAll(async () => {
    await host?.remove();
    await cluster?.stop();
  });

  /** Creates a machine, with these further fields of its Pod. Resolves with its uid when it runs. */
  async function run(name: string, spec: Partial<Pod['spec']> = {}): Promise<string> {
    await operator.create(PODS, podFor(host, machineFor(namespace, name), DESIRED, spec));
    const { metadata } = await waitForPod(name, (pod) => conditionOf(pod, 'Ready')?.status === 'True');
    return metadata.uid ?? '';
  }

  async function waitForPod(name: string, matches: (pod: Pod) => boolean): Promise<Pod> {
    return await waitFor(
      `Pod ${name} to be as wanted`,
      async () => {
        const pod = await operator.get(PODS, { namespace, name });
        if (!matches(pod)) {
          throw new Error(JSON.stringify(pod.status));
        }
        return pod;
      },
      STEP,
    );
  }

  function conditionOf({ status }: Pod, type: string) {
    return status?.conditions?.find((condition) => condition.type === type);
  }

  /** Lets the disk of the machine grow until `isOver` returns true, as a guest that writes would. */
  async function writeUntil(
    uid: string,
    what: string,
    isOver: () => Promise<boolean> | boolean,
  ): Promise<void> {
    const folder = join(host.dataDirectory, 'machines', uid);
    await mkdir(folder, { recursive: true });
    await waitFor(
      what,
      async () => {
        await appendFile(join(folder, 'disk.qcow2'), Buffer.alloc(MEBIBYTE));
        return await isOver();
      },
      { ...STEP, intervalMilliseconds: 200 },
    );
  }

  test('a machine is not suspended without room, and says why', async (context) => {
    const uid = await run('asleep');
    const pod = await operator.get(PODS, { namespace, name: 'asleep' });
    await setDesired(operator, pod, { ...DESIRED, powerState: 'Suspended' });
    const { status } = await waitForPod('asleep', (one) => conditionOf(one, DISK_CONDITION) !== undefined);
    const reported = status?.conditions?.find(({ type }) => type === DISK_CONDITION);
    expect(reported).toMatchObject({ status: 'False', reason: 'NoRoomToSuspend' });
    expect(reported?.message).toContain('images.minimumFree');
    expect(host.driver.calls).not.toContain(`suspend ${uid}`);
    await setDesired(operator, pod, { ...DESIRED, powerState: 'Running' });
    await waitForPod('asleep', (one) => conditionOf(one, DISK_CONDITION) === undefined);
    tried(context, 'suspending without room', 'not done, with a reason');
  });

  test('a machine that fills the disk during its stop loses the rest of its grace period', async (context) => {
    const uid = await run('stopping', { terminationGracePeriodSeconds: GRACE_SECONDS });
    const pod = await operator.get(PODS, { namespace, name: 'stopping' });
    host.driver.deaf = true;
    const began = performance.now();
    await setDesired(operator, pod, { ...DESIRED, powerState: 'Stopped' });
    await waitFor('the stop to begin', () => host.driver.calls.includes(`power ${uid}`), STEP);
    const isStopped = (): boolean => host.driver.calls.includes(`stop ${uid}`);
    await writeUntil(uid, 'the machine to be stopped', isStopped);
    expect(performance.now() - began).toBeLessThan(GRACE_SECONDS * 1000);
    host.driver.deaf = false;
    tried(context, 'a disk that grows within the grace of a stop', 'the power is taken away');
  });

  test('only the machine whose disk grows is paused', async (context) => {
    // A new agent has not paused a machine recently.
    await host.stop();
    await host.launch();
    const quiet = await run('quiet');
    const uid = await run('grows');
    const isPaused = (): boolean => host.driver.calls.includes(`pause ${uid}`);
    await writeUntil(uid, 'the machine to be paused', isPaused);
    await waitForPod('grows', (pod) => conditionOf(pod, 'Ready')?.reason === 'HostDiskFull');
    expect(host.driver.calls).not.toContain(`pause ${quiet}`);
    tried(context, 'a disk that grows', 'paused');
  });
});
