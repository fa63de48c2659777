/**
 * Removal of an Image's content from the image storage when nothing needs it. The Jobs are real, and the test acts as the agent of the one
 * host.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Image, ImageSpec } from '../../api/v1alpha1/image.ts';
import { type Task, taskSchema } from '../../api/v1alpha1/task.ts';
import { TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { EVENTS, type Job, JOBS, NAMESPACES, PODS } from '../../kube/core.ts';
import { JOB_NAME_LABEL } from '../support/jobhistory.ts';
import { IMAGES } from '../../api/v1alpha1/resources.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { isGone } from '../fixtures/objects.ts';
import { VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';

const NAMESPACE = 'platform-default';
const SYSTEM = 'berth-system';
const REPORT = { digest: `sha256:${'a'.repeat(64)}`, sizeBytes: 64 * 1024 ** 3, storageBytes: 9 * 1024 ** 3 };
/**
 * Time limit. The Job controller waits ten seconds before it tries again, and the deletion of a namespace takes as long. Jobs of an Image
 * are removed after it when the garbage collector of a new cluster knows the kind. It looks for new kinds every 30 seconds.
 */
const LONG = { deadlineMilliseconds: 90_000 };
const TEST_MILLISECONDS = 240_000;

let cluster: Cluster;
let host: ActingHost;
let vms: VMs;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-removal-${process.pid}` });
  await cluster.startOperator({ config: { imageStorage: { folder: true, keepSeconds: 2 } } });
  host = await ActingHost.join(cluster.client(), 'mac1', { slots: 16 });
  vms = new VMs(cluster);
});

afterAll(async () => {
  await host?.silence();
  await cluster?.stop();
});

function create(name: string, spec: ImageSpec, namespace = NAMESPACE): Promise<Image> {
  return cluster.client().create(IMAGES, { metadata: { name, namespace }, spec });
}

async function drop(name: string, namespace = NAMESPACE): Promise<void> {
  const ref = { namespace, name };
  await cluster.client().delete(IMAGES, ref);
  await waitFor(`Image ${name} to be gone`, () => isGone(() => cluster.client().get(IMAGES, ref)));
}

/** Returns the path of the image's content once the image is ready. */
async function pathOf(name: string, namespace = NAMESPACE): Promise<string> {
  return await waitFor(`Image ${name} to be ready`, async () => {
    const { status } = await cluster.client().get(IMAGES, { namespace, name });
    return status?.phase === 'Ready' && status.content?.path;
  });
}

function taskOf(job: Job): Task {
  return taskSchema.parse(JSON.parse(job.spec.template.metadata?.annotations?.[TASK_ANNOTATION] ?? ''));
}

function ref({ metadata: { namespace, name } }: Job): { namespace: string; name: string } {
  return { namespace: namespace ?? '', name };
}

async function jobOf(name: string, operation: string, namespace = NAMESPACE): Promise<Job> {
  return await waitFor(`a Job to ${operation} Image ${name}`, async () => {
    const { items } = await cluster.client().list(JOBS, { namespace });
    return items.find(
      ({ metadata: { labels, ownerReferences } }) =>
        ownerReferences?.[0]?.name === name && labels?.['berth.dev/operation'] === operation,
    );
  });
}

/** Creates an Image of a file on a web server, which is put into the storage. Returns the path of its content. */
async function make(name: string, namespace = NAMESPACE): Promise<string> {
  const http = { url: `https://images.example/${name}.qcow2`, sha256: 'b'.repeat(64) };
  await create(name, { source: { http } }, namespace);
  await host.finishTask(await host.beginTask(ref(await jobOf(name, 'pull', namespace))), REPORT);
  return await pathOf(name, namespace);
}

async function removalOf(path: string): Promise<Job | undefined> {
  const { items } = await cluster.client().list(JOBS, { namespace: SYSTEM });
  return items.find((job) => {
    const task = taskOf(job);
    return task.type === 'remove' && task.place.type === 'folder' && task.place.path === path;
  });
}

async function begun(path: string): Promise<Job> {
  const look = async (): Promise<Job | false> => {
    const job = await removalOf(path);
    return job?.spec.suspend === false && job;
  };
  return await waitFor(`the removal of ${path} to begin`, look, LONG);
}

async function untilOver(path: string): Promise<void> {
  const isOver = async () => (await removalOf(path)) === undefined;
  await waitFor(`the removal of ${path} to be over`, isOver, LONG);
}

/** Waits until the removal is recorded, and the Job controller has written everything about the suspended Job. */
async function suspended(path: string): Promise<Job> {
  return await waitFor(`the removal of ${path} to wait`, async () => {
    const job = await removalOf(path);
    return (
      job?.status?.conditions?.some(({ type, status }) => type === 'Suspended' && status === 'True') && job
    );
  });
}

let others = 0;

/** Removes other content that is not needed, and calls `look` when its removal has begun. */
async function duringLaterRemoval(look: () => Promise<void>): Promise<void> {
  others += 1;
  const name = `other-${others}`;
  const other = await make(name);
  await drop(name);
  const removal = await begun(other);
  await look();
  await host.finishTask(await host.beginTask(ref(removal)), {});
  await untilOver(other);
}

/** Waits until unneeded content that was released later is being removed. By then the operator would have removed the other content too. */
async function expectKept(path: string): Promise<void> {
  const before = await suspended(path);
  await duringLaterRemoval(async () => {
    const after = await removalOf(path);
    expect(after?.spec.suspend).toBe(true);
    expect(after?.metadata.resourceVersion).toBe(before.metadata.resourceVersion);
  });
}

async function stories(name: string, namespace = NAMESPACE): Promise<string[]> {
  const { items } = await cluster.client().list(EVENTS, { namespace });
  return items
    .filter(({ regarding, reason }) => regarding.name === name && reason === 'StorageKeepsContent')
    .map(({ note = '' }) => note);
}

// All wait for the garbage collector and for Jobs, most of the time.
describe.concurrent('content of an Image that is deleted', { timeout: TEST_MILLISECONDS }, () => {
  it('stays for a copy, without a write, and is removed once after the copy', async () => {
    const path = await make('golden');
    await create('copy', { source: { copyOf: { name: 'golden' } } });
    expect(await pathOf('copy')).toBe(path);
    await drop('golden');
    await expectKept(path);
    await drop('copy');
    const removal = await begun(path);
    expect(taskOf(removal)).toMatchObject({ type: 'remove', place: { type: 'folder', path } });
    expect(removal.spec.template.spec.imagePullSecrets).toBeUndefined();
    await host.finishTask(await host.beginTask(ref(removal)), {});
    await untilOver(path);
    await duringLaterRemoval(async () => {
      expect(await removalOf(path), 'content is removed once').toBeUndefined();
    });
    expect(await stories('golden')).toEqual([]);
  });

  it('in a shared folder is removed although a VM was made of it, because its host has a copy', async () => {
    const path = await make('base');
    const guest = { namespace: NAMESPACE, name: 'guest' };
    await vms.create('guest', { image: 'base' });
    await host.waitForPod(guest);
    await host.run(guest);
    await vms.waitForPhase('guest', 'Running');
    await drop('base');
    const removal = await begun(path);
    await host.finishTask(await host.beginTask(ref(removal)), {});
    await untilOver(path);
    expect((await vms.get('guest')).status?.phase).toBe('Running');
    await vms.delete('guest');
    await host.end(guest);
  });

  it('is removed although its namespace is deleted with it', async () => {
    const namespace = 'platform-gone';
    await cluster.createNamespace(namespace);
    const path = await make('last', namespace);
    await cluster.kubectl(['delete', 'namespace', namespace, '--wait=false']);
    const isAway = () => isGone(() => cluster.client().get(NAMESPACES, { name: namespace }));
    await waitFor(`namespace ${namespace} to be gone`, isAway, LONG);
    const removal = await begun(path);
    await host.finishTask(await host.beginTask(ref(removal)), {});
    await untilOver(path);
  });

  it('is reported once with the reason if the storage keeps it', async () => {
    const path = await make('stuck');
    await drop('stuck');
    const kept = 'registry.example: the registry removes nothing';
    await host.finishTask(await host.beginTask(ref(await begun(path))), { kept });
    await untilOver(path);
    await waitFor('an Event', async () => (await stories('stuck')).length > 0);
    await duringLaterRemoval(async () => {
      expect(await removalOf(path), 'the storage is asked once').toBeUndefined();
    });
    const [story, ...more] = await stories('stuck');
    expect(story).toContain(path);
    expect(story).toContain(kept);
    expect(more).toEqual([]);
  });

  it('is removed by another try if the host could not remove it', async () => {
    const path = await make('retried');
    await drop('retried');
    const removal = await begun(path);
    const first = await host.beginTask(ref(removal));
    await host.failTask(first, 'ImageFetchFailed', 'connection refused');
    const second = await waitFor(
      'a second try',
      async () => {
        const labelSelector = `${JOB_NAME_LABEL}=${removal.metadata.name}`;
        const { items } = await cluster.client().list(PODS, { namespace: SYSTEM, labelSelector });
        const pod = items.find(
          ({ metadata, spec }) => metadata.name !== first.name && spec.nodeName === 'mac1',
        );
        return pod && { namespace: SYSTEM, name: pod.metadata.name };
      },
      LONG,
    );
    await host.finishTask(second, {});
    await untilOver(path);
    expect(await stories('retried')).toEqual([]);
  });
});

describe.concurrent('content that a commit replaces', { timeout: TEST_MILLISECONDS }, () => {
  it('is removed when its Job has gone, and the new content stays', async () => {
    const before = await make('grows');
    const imported = await jobOf('grows', 'pull');
    const guest = { namespace: NAMESPACE, name: 'builder' };
    await vms.create('builder', { image: 'registry.example/guest:1' });
    await host.waitForPod(guest);
    await host.run(guest);
    await vms.waitForPhase('builder', 'Running');
    const commit = { vmName: 'builder', requestedAt: '2026-01-03T00:00:00Z' };
    await cluster.client().mergePatch(IMAGES, { namespace: NAMESPACE, name: 'grows' }, { spec: { commit } });
    await host.finishTask(await host.beginTask(ref(await jobOf('grows', 'commit'))), REPORT);
    const after = await waitFor('the commit', async () => {
      const path = await pathOf('grows');
      return path !== before && path;
    });
    await expectKept(before);
    await cluster.client().delete(JOBS, ref(imported), { propagationPolicy: 'Background' });
    await host.finishTask(await host.beginTask(ref(await begun(before))), {});
    await untilOver(before);
    expect(await removalOf(after)).toBeUndefined();
    expect(await pathOf('grows')).toBe(after);
  });
});
