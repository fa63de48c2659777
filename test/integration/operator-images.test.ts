/** Reconciliation of Images with real Jobs and a real scheduler. The test acts as the agent of the one host. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Image, ImageSpec } from '../../api/v1alpha1/image.ts';
import { type Machine, machineSchema } from '../../api/v1alpha1/machine.ts';
import { MACHINE_ANNOTATION, TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { type Task, taskSchema } from '../../api/v1alpha1/task.ts';
import { type Job, JOBS } from '../../kube/core.ts';
import { IMAGES, ISOS } from '../../api/v1alpha1/resources.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { isGone, waitForObject } from '../fixtures/objects.ts';
import { allowMetrics, untilKnown } from '../support/operatorlog.ts';
import { VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';

const NAMESPACE = 'platform-default';
const DIGEST = `sha256:${'a'.repeat(64)}`;
const PINNED = `registry.example/team/disk@${DIGEST}`;
const REPORT = { digest: DIGEST, sizeBytes: 64 * 1024 ** 3, storageBytes: 9 * 1024 ** 3 };

/** The host has one slot. Work on images must not wait for it. */
const CONFIG = { imageStorage: { folder: true }, osx_node_platform_quota_pod: 1 };

let cluster: Cluster;
let operator: OperatorProcess;
let host: ActingHost;
let vms: VMs;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-images-${process.pid}` });
  operator = await cluster.startOperator({ config: CONFIG });
  await allowMetrics(cluster);
  host = await ActingHost.join(cluster.client(), 'mac1', { slots: 1 });
  vms = new VMs(cluster);
});

afterAll(async () => {
  await host?.silence();
  await cluster?.stop();
});

function create(name: string, spec: ImageSpec): Promise<Image> {
  return cluster.client().create(IMAGES, { metadata: { name, namespace: NAMESPACE }, spec });
}

function patch(name: string, spec: object): Promise<Image> {
  return cluster.client().mergePatch(IMAGES, { namespace: NAMESPACE, name }, { spec });
}

function untilImage(name: string, what: string, matches: (image: Image) => boolean): Promise<Image> {
  const get = () => cluster.client().get(IMAGES, { namespace: NAMESPACE, name });
  return waitForObject(`Image ${name}: ${what}`, get, matches);
}

function untilPhase(name: string, phase: string): Promise<Image> {
  return untilImage(name, phase, ({ status }) => status?.phase === phase);
}

/** Changes the description, and returns the image when the operator has reconciled this change. */
async function untilSeen(name: string, description: string): Promise<Image> {
  const { generation } = (await patch(name, { description })).metadata;
  return await untilImage(name, 'to be seen', ({ status }) => status?.observedGeneration === generation);
}

function condition(image: Image, type: string) {
  return image.status?.conditions?.find((one) => one.type === type);
}

/** Returns the Jobs of the image for one kind of work, the last attempt last. */
async function jobsOf(name: string, operation: string): Promise<Job[]> {
  const { items } = await cluster.client().list(JOBS, { namespace: NAMESPACE });
  return items
    .filter(({ metadata }) => metadata.ownerReferences?.[0]?.name === name)
    .filter(({ metadata }) => metadata.labels?.['berth.dev/operation'] === operation)
    .sort((a, b) => a.metadata.name.localeCompare(b.metadata.name));
}

async function jobOf(name: string, operation: string, attempt = 1): Promise<Job> {
  return await waitFor(`Job ${attempt} to ${operation} Image ${name}`, async () => {
    const jobs = await jobsOf(name, operation);
    return jobs.find(({ metadata }) => metadata.labels?.['berth.dev/attempt'] === String(attempt));
  });
}

function taskOf(job: Job): Task {
  return taskSchema.parse(JSON.parse(job.spec.template.metadata?.annotations?.[TASK_ANNOTATION] ?? ''));
}

async function machineOf(name: string): Promise<Machine> {
  const pod = await waitFor(`the Pod of ${name}`, () => vms.pod(name));
  return machineSchema.parse(JSON.parse(pod.metadata.annotations?.[MACHINE_ANNOTATION] ?? ''));
}

function ref(job: Job): { namespace: string; name: string } {
  return { namespace: NAMESPACE, name: job.metadata.name };
}

describe('among hosts with a free slot', () => {
  it('the scheduler prefers the host that has the image, for each image another host', async () => {
    const client = cluster.client();
    const others = ['mac2', 'mac3', 'mac4', 'mac5', 'mac6'];
    const holders = ['mac6', 'mac3', 'mac4'];
    const hosts = await Promise.all(
      others.map((name) => ActingHost.join(client, name, { slots: 1, images: imagesOf(name) })),
    );
    try {
      await Promise.all([host, ...hosts].map((one) => one.placeable()));
      for (const holder of holders) {
        await vms.create(`near-${holder}`, { image: imageOn(holder) });
      }
      const placed = await Promise.all(holders.map((holder) => placeOf(`near-${holder}`)));
      expect(placed).toEqual(holders);
      for (const holder of holders) {
        await vms.delete(`near-${holder}`);
        const holding = hosts.find(({ name }) => name === holder);
        await holding?.end({ namespace: NAMESPACE, name: `near-${holder}` });
      }
    } finally {
      for (const one of hosts) {
        await one.remove();
      }
    }
  });

  function imageOn(holder: string): string {
    return `registry.example/team/near-${holder}:1`;
  }

  function imagesOf(holder: string): { names: string[]; sizeBytes: number }[] {
    const image = imageOn(holder);
    return [{ names: [image, image.replace(/:1$/, `@${DIGEST}`)], sizeBytes: 30 * 1024 ** 3 }];
  }

  async function placeOf(name: string): Promise<string | undefined> {
    return await waitFor(`VM ${name} to be placed`, async () => (await vms.pod(name)).spec.nodeName);
  }
});

describe('an Image of a registry', () => {
  it('is fetched by a Job, shows its progress, and is Ready with its sizes, pinned by digest', async () => {
    await create('disk', {
      description: 'Disk of the team',
      source: { registry: { reference: 'registry.example/team/disk:1' } },
      imagePullSecrets: [{ name: 'regcred' }],
    });
    const job = await jobOf('disk', 'pull');
    expect(taskOf(job)).toMatchObject({
      type: 'import',
      image: { source: { type: 'registry', reference: 'registry.example/team/disk:1' } },
    });
    expect(job.spec.template.spec.imagePullSecrets).toEqual([{ name: 'regcred' }]);
    const pod = await host.beginTask(ref(job), { progressPercent: 40 });
    await untilImage('disk', '40 per cent', ({ status }) => status?.progressPercent === 40);
    const wide = await cluster.kubectl(['get', 'images', 'disk', '-n', NAMESPACE, '-o', 'wide']);
    expect(wide.stdout).toMatch(/disk\s+Pulling\s+40.*Disk of the team/);
    await host.finishTask(pod, { ...REPORT, reference: PINNED });
    const ready = await untilPhase('disk', 'Ready');
    expect(ready.status).toMatchObject({ size: '64Gi', storageSize: '9Gi', digest: DIGEST });
    await untilKnown(cluster, operator, IMAGES, ready);
    await vms.create('guest', { image: 'disk' });
    expect(await machineOf('guest')).toMatchObject({
      image: { type: 'registry', reference: PINNED },
      imageName: 'berth.dev/platform-default/disk',
    });
  });

  it('that cannot be fetched shows the reason, and is tried again', async () => {
    await create('locked', { source: { registry: { reference: 'registry.example/team/locked:1' } } });
    const first = await host.beginTask(ref(await jobOf('locked', 'pull')));
    await host.failTask(first, 'ImageAccessDenied', 'registry.example: wrong password');
    const failed = await untilPhase('locked', 'Failed');
    expect(condition(failed, 'Ready')).toMatchObject({ status: 'False', reason: 'ImageAccessDenied' });
    expect(condition(failed, 'Ready')?.message).toMatch(/wrong password; the next attempt is at /);
    const second = await host.beginTask(ref(await jobOf('locked', 'pull', 2)));
    const reference = `registry.example/team/locked@${DIGEST}`;
    await host.finishTask(second, { ...REPORT, reference });
    await untilPhase('locked', 'Ready');
  });

  it('that is broken is not fetched again when Kubernetes has deleted its Job', async () => {
    await create('broken', { source: { registry: { reference: 'registry.example/team/broken:1' } } });
    const job = await jobOf('broken', 'pull');
    await host.failTask(await host.beginTask(ref(job)), 'ImageInvalid', 'not a disk');
    const { status } = await untilPhase('broken', 'Failed');
    expect(status?.contentFailure).toBe('ImageInvalid: not a disk');
    await cluster.client().delete(JOBS, ref(job), { propagationPolicy: 'Background' });
    await waitFor('the Job to be gone', () => isGone(() => cluster.client().get(JOBS, ref(job))));
    const later = await untilSeen('broken', 'looked at after its Job is gone');
    expect(condition(later, 'Stalled')).toMatchObject({ reason: 'ImageInvalid', message: 'not a disk' });
    expect(await jobsOf('broken', 'pull')).toEqual([]);
  });

  it('from which an uninstallation removed the finalizer is kept by a later operator', async () => {
    await operator.stop();
    const metadata = { finalizers: [] };
    await cluster.client().mergePatch(IMAGES, { namespace: NAMESPACE, name: 'disk' }, { metadata });
    operator = await cluster.startOperator({ config: CONFIG });
    const held = await untilImage('disk', 'to be held', (one) => one.metadata.finalizers !== undefined);
    expect(held.metadata.finalizers).toEqual(['berth.dev/image']);
    expect(held.status?.phase).toBe('Ready');
  });

  it('is copied without moving anything', async () => {
    await create('copy', { source: { copyOf: { name: 'disk' } } });
    const { status } = await untilPhase('copy', 'Ready');
    expect(status).toMatchObject({ content: { type: 'registry', reference: PINNED }, size: '64Gi' });
    expect(await jobsOf('copy', 'pull')).toHaveLength(0);
  });
});

describe('an ISO', () => {
  it('is fetched like an Image, and the machine of a VM names it', async () => {
    const http = { url: 'https://images.example/installer.iso', sha256: 'b'.repeat(64) };
    const metadata = { name: 'installer', namespace: NAMESPACE };
    await cluster.client().create(ISOS, { metadata, spec: { source: { http } } });
    const job = await jobOf('installer', 'pull');
    // Content from a web server is kept in the image storage.
    expect(taskOf(job)).toMatchObject({ type: 'import', target: { type: 'folder' } });
    await host.finishTask(await host.beginTask(ref(job)), REPORT);
    await waitFor('the ISO to be Ready', async () => {
      const { status } = await cluster.client().get(ISOS, metadata);
      return status?.phase === 'Ready' && status.content?.type === 'storedFile';
    });
    await vms.create('setup', { iso: 'installer', diskSize: '40Gi', powerState: 'Stopped' });
    expect(await machineOf('setup')).toMatchObject({
      iso: { type: 'storedFile' },
      isoName: 'berth.dev/platform-default/installer',
    });
    await vms.delete('setup');
    await vms.waitUntilGone('setup');
  });

  it('is copied without moving anything, and shows its description', async () => {
    const metadata = { name: 'other-installer', namespace: NAMESPACE };
    const spec = { source: { copyOf: { name: 'installer' } }, description: 'Setup of the desktop' };
    await cluster.client().create(ISOS, { metadata, spec });
    await waitFor('the copy to be Ready', async () => {
      const { status } = await cluster.client().get(ISOS, metadata);
      return status?.phase === 'Ready' && status.content?.type === 'storedFile';
    });
    expect(await jobsOf('other-installer', 'pull')).toHaveLength(0);
    const { stdout } = await cluster.kubectl(['get', 'isos', '-n', NAMESPACE, '-o', 'wide']);
    expect(stdout).toMatch(/^other-installer +Ready .*Setup of the desktop/m);
  });

  it('of a shared file goes to the host as it is, also beside an image', async () => {
    const source = { sharedFile: { path: 'discs/setup.iso' } };
    await cluster
      .client()
      .create(ISOS, { metadata: { name: 'disc', namespace: NAMESPACE }, spec: { source } });
    await vms.create('shared', { image: PINNED, iso: 'disc', powerState: 'Stopped' });
    expect(await machineOf('shared')).toMatchObject({
      image: { type: 'registry', reference: PINNED },
      iso: { type: 'sharedFile', path: 'discs/setup.iso' },
    });
    await vms.delete('shared');
    await vms.waitUntilGone('shared');
  });
});

describe('actions on an Image', () => {
  it('a push is done once per value, and reports its result or its failure', async () => {
    const asked = ['2026-01-01T00:00:00Z', '2026-01-02T00:00:00Z'];
    const push = { reference: 'registry.example/out:1', secretName: 'out' };
    await patch('disk', { push: { ...push, requestedAt: asked[0] } });
    const first = await jobOf('disk', 'push');
    expect(first.spec.template.spec.imagePullSecrets).toEqual([{ name: 'out' }, { name: 'regcred' }]);
    await host.failTask(await host.beginTask(ref(first)), 'ImageAccessDenied', 'may not write');
    const failed = await untilImage(
      'disk',
      'a failed push',
      (image) => condition(image, 'Pushed') !== undefined,
    );
    expect(condition(failed, 'Pushed')).toMatchObject({ status: 'False', reason: 'ImageAccessDenied' });
    expect(failed.status?.phase).toBe('Ready');

    await patch('disk', { push: { ...push, requestedAt: asked[1] } });
    const second = await waitFor('a second Job', async () =>
      (await jobsOf('disk', 'push')).find((job) => job.metadata.name !== first.metadata.name),
    );
    const reference = `registry.example/out@${DIGEST}`;
    await host.finishTask(await host.beginTask(ref(second)), { reference });
    const done = await untilImage(
      'disk',
      'a push',
      ({ status }) => status?.lastPush?.requestedAt === asked[1],
    );
    expect(done.status?.lastPush).toMatchObject({ result: 'Succeeded', reference });
    await untilSeen('disk', 'looked at after its push');
    expect(await jobsOf('disk', 'push')).toHaveLength(2);
  });

  it('an Image with a TTL is deleted once its push has ended, and not before', async () => {
    const push = { reference: 'registry.example/out:2', requestedAt: '2026-01-01T00:00:00Z' };
    const copyOf = { name: 'disk' };
    await create('short', { source: { copyOf }, push, ttlSecondsAfterFinished: 0 });
    const job = await jobOf('short', 'push');
    const { status } = await untilPhase('short', 'Ready');
    expect(status?.finishedTime).toBeUndefined();
    await host.finishTask(await host.beginTask(ref(job)), { reference: `registry.example/out@${DIGEST}` });
    await waitFor('Image short to be gone', () =>
      isGone(() => cluster.client().get(IMAGES, { namespace: NAMESPACE, name: 'short' })),
    );
    const kept = await untilImage('disk', 'to be finished', (one) => one.status?.finishedTime !== undefined);
    expect(kept.metadata.deletionTimestamp).toBeUndefined();
  });

  it('a commit takes the disk of a VM on its full host, and VMs created later get it', async () => {
    // This VM takes the only slot of the host.
    const guest = { namespace: NAMESPACE, name: 'guest' };
    await host.waitForPod(guest);
    await host.run(guest);
    await vms.waitForPhase('guest', 'Running');
    await patch('disk', { commit: { vmName: 'guest', requestedAt: '2026-01-03T00:00:00Z' } });
    const job = await jobOf('disk', 'commit');
    const task = taskOf(job);
    expect(task).toMatchObject({ type: 'save', vm: { name: 'guest' }, target: { type: 'folder' } });
    const pod = await host.beginTask(ref(job));
    await untilPhase('disk', 'Updating');
    await host.finishTask(pod, { ...REPORT, consistency: 'FileSystem' });
    const committed = await untilImage(
      'disk',
      'a commit',
      (image) => image.status?.lastCommit?.finishedAt !== undefined,
    );
    const path = task.type === 'save' && task.target.type === 'folder' ? task.target.path : '';
    const content = { type: 'storedFile', path, sha256: 'a'.repeat(64) };
    expect(committed.status).toMatchObject({ phase: 'Ready', content, consistency: 'FileSystem' });
    expect((await machineOf('guest')).image).toMatchObject({ type: 'registry' });
    await untilKnown(cluster, operator, IMAGES, committed);
    await vms.create('later', { image: 'disk' });
    expect((await machineOf('later')).image).toEqual(content);
  });

  it('a save creates a new Image of a VM, and VMs that name it wait until it is ready', async () => {
    await create('saved', { source: { fromVM: { name: 'guest' } } });
    await vms.create('early', { image: 'saved' });
    await vms.waitForCondition('early', 'ImageReady', { status: 'False', reason: 'ImageNotReady' });
    const pod = await host.beginTask(ref(await jobOf('saved', 'save')));
    await host.finishTask(pod, { ...REPORT, consistency: 'Crash' });
    const { status } = await untilPhase('saved', 'Ready');
    expect(status).toMatchObject({ consistency: 'Crash', origin: 'disk of VM platform-default/guest' });
    expect((await machineOf('early')).image).toMatchObject({ type: 'storedFile' });
  });
});

describe('an Image that is deleted', () => {
  it('is deleted with its Jobs, but not while a host prepares a VM from it', async () => {
    // Both VMs wait for the only slot of the host.
    await vms.delete('later');
    await vms.waitUntilGone('later');
    await vms.delete('guest');
    await host.end({ namespace: NAMESPACE, name: 'guest' });
    const early = { namespace: NAMESPACE, name: 'early' };
    await host.waitForPod(early);
    await host.waiting(early, 'Pulling', '10%');
    await vms.waitForPhase('early', 'Pulling');
    await cluster.kubectl(['delete', 'image', 'saved', '-n', NAMESPACE, '--wait=false']);
    const waits = await untilImage('saved', 'InUse', (image) => condition(image, 'InUse') !== undefined);
    expect(condition(waits, 'InUse')?.message).toContain('early');
    await host.run(early);
    await waitFor('Image saved and its Jobs to be gone', async () => {
      const saved = () => cluster.client().get(IMAGES, { namespace: NAMESPACE, name: 'saved' });
      return (await isGone(saved)) && (await jobsOf('saved', 'save')).length === 0;
    });
    await vms.waitForPhase('early', 'Running');
  });
});
