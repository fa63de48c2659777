/** One host that lies about the work it was given: whatever it reports, an Image's content stays where the operator put it. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Image, ImageSpec } from '../../api/v1alpha1/image.ts';
import { TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { type Task, taskSchema } from '../../api/v1alpha1/task.ts';
import { type Job, JOBS } from '../../kube/job.ts';
import { IMAGES } from '../../operator/objects/resources.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { waitForObject } from '../fixtures/objects.ts';
import { VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';
import { tried } from './support/attempts.ts';

const NAMESPACE = 'platform-default';
const STORAGE = 'storage.example/berth';
const [GOOD, OTHER] = ['a', 'b'].map((digit) => `sha256:${digit.repeat(64)}`) as [string, string];
const SIZES = { sizeBytes: 64 * 1024 ** 3, storageBytes: 9 * 1024 ** 3 };
/** What a host says of work that it claims to have done: anything. */
type Lies = Record<string, unknown>;

let cluster: Cluster;
let host: ActingHost;
let vms: VMs;

beforeAll(async () => {
  cluster = await startCluster({ name: `hostile-reports-${process.pid}` });
  await cluster.startOperator({ config: { imageStorage: { registry: { prefix: STORAGE } } } });
  host = await ActingHost.join(cluster.client(), 'mac1');
  vms = new VMs(cluster);
});

afterAll(async () => {
  await host?.silence();
  await cluster?.stop();
});

async function create(name: string, spec: ImageSpec): Promise<void> {
  await cluster.client().create(IMAGES, { metadata: { name, namespace: NAMESPACE }, spec });
}

function until(name: string, what: string, matches: (image: Image) => boolean): Promise<Image> {
  const get = () => cluster.client().get(IMAGES, { namespace: NAMESPACE, name });
  return waitForObject(`Image ${name}: ${what}`, get, matches);
}

/** The work that was asked for is done by the host, which reports what `report` makes of its task. */
async function answer(
  name: string,
  requestedAt: string | undefined,
  report: (task: Task) => Lies,
): Promise<void> {
  const job = await waitFor(`a Job of Image ${name}`, async () => {
    const { items } = await cluster.client().list(JOBS, { namespace: NAMESPACE });
    return items.find(
      ({ metadata: { ownerReferences, annotations } }) =>
        ownerReferences?.[0]?.name === name && annotations?.['berth.dev/requested-at'] === requestedAt,
    );
  });
  const pod = await host.beginTask({ namespace: NAMESPACE, name: job.metadata.name });
  await host.finishTask(pod, report(taskOf(job)));
}

function taskOf(job: Job): Task {
  return taskSchema.parse(JSON.parse(job.spec.template.metadata?.annotations?.[TASK_ANNOTATION] ?? ''));
}

function condition({ status }: Image, type: string) {
  return status?.conditions?.find((one) => one.type === type);
}

const PULLS: Record<string, [ImageSpec['source'], Lies]> = {
  'a foreign registry': [tag('a'), { digest: GOOD, reference: `evil.example/team/a@${GOOD}` }],
  'a foreign repository': [tag('b'), { digest: GOOD, reference: `registry.example/other/b@${GOOD}` }],
  'a tag in place of a digest': [tag('c'), { digest: GOOD, reference: 'registry.example/team/c:1' }],
  'nothing at all': [tag('d'), {}],
  'another digest than the pinned one': [
    tag('e', `@${GOOD}`),
    { digest: OTHER, reference: `registry.example/team/e@${OTHER}` },
  ],
  "another tenant's place in the storage": [
    { http: { url: 'https://images.example/f.raw', sha256: 'c'.repeat(64) } },
    { digest: GOOD, reference: `${STORAGE}/platform-other/f@${GOOD}` },
  ],
  'a size below nothing': [
    tag('g'),
    { digest: GOOD, reference: `registry.example/team/g@${GOOD}`, sizeBytes: -1 },
  ],
};

function tag(name: string, rest = ':1'): ImageSpec['source'] {
  return { registry: { reference: `registry.example/team/${name}${rest}` } };
}

it('a fetch whose report does not fit its task is Failed, and gives the Image no content', async (context) => {
  const images = await Promise.all(
    Object.entries(PULLS).map(async ([kind, [source, lies]], index) => {
      const name = `pull-${index}`;
      await create(name, { source });
      await answer(name, undefined, () => ({ ...SIZES, ...lies }));
      return { kind, image: await until(name, 'an end', isOver) };
    }),
  );
  for (const { kind, image } of images) {
    const ready = condition(image, 'Ready');
    tried(context, `fetch: ${kind}`, `${image.status?.phase}: ${ready?.reason}`);
    expect.soft(image.status, kind).not.toHaveProperty('content');
    expect.soft(image.status?.phase, kind).toBe('Failed');
    expect.soft(ready, kind).toMatchObject({ status: 'False', reason: 'ReportRefused' });
    expect.soft(ready?.message, kind).toMatch(/^Host mac1 reported /);
  }
});

function isOver({ status: { phase = 'Pending' } = {} }: Image): boolean {
  return phase !== 'Pending' && phase !== 'Pulling';
}

const COMMITS: Record<string, (place: string) => Lies> = {
  'a foreign registry': () => ({ digest: OTHER, reference: `evil.example/x@${OTHER}` }),
  "another tenant's place": () => ({ digest: OTHER, reference: `${STORAGE}/platform-other/x@${OTHER}` }),
  'no digest': (place) => ({ reference: place }),
  'its own tag': (place) => ({ digest: OTHER, reference: place }),
  'two digests': (place) => ({ digest: OTHER, reference: `${repositoryOf(place)}@${GOOD}` }),
  'a file': () => ({ digest: OTHER, path: 'another/tenant.qcow2', reference: 'another/tenant.qcow2' }),
};

function repositoryOf(place: string): string {
  return place.replace(/:[^/:]*$/, '');
}

function placeOf(task: Task): string {
  return task.type === 'save' && task.target.type === 'registry' ? task.target.reference : '';
}

it('a commit whose report does not fit its task is Failed, and leaves the content as it was', async (context) => {
  await create('golden', { source: tag('golden') });
  const reference = `registry.example/team/golden@${GOOD}`;
  await answer('golden', undefined, () => ({ ...SIZES, digest: GOOD, reference }));
  const { status: before } = await until('golden', 'content', ({ status }) => status?.content !== undefined);
  await vms.create('guest', { image: 'golden' });
  await host.waitForPod({ namespace: NAMESPACE, name: 'guest' });
  await host.run({ namespace: NAMESPACE, name: 'guest' });
  await vms.waitForPhase('guest', 'Running');
  for (const [index, [kind, lies]] of Object.entries(COMMITS).entries()) {
    const requestedAt = `2026-01-0${index + 1}T00:00:00Z`;
    const commit = { vmName: 'guest', requestedAt };
    await cluster.client().mergePatch(IMAGES, { namespace: NAMESPACE, name: 'golden' }, { spec: { commit } });
    await answer('golden', requestedAt, (task) => ({ ...SIZES, ...lies(placeOf(task)) }));
    const image = await until(
      'golden',
      kind,
      ({ status }) => status?.lastCommit?.requestedAt === requestedAt,
    );
    tried(
      context,
      `commit: ${kind}`,
      `${image.status?.lastCommit?.result}: ${condition(image, 'Committed')?.reason}`,
    );
    expect.soft(image.status?.content, kind).toEqual(before?.content);
    expect.soft(image.status?.digest, kind).toBe(GOOD);
    expect
      .soft(condition(image, 'Committed'), kind)
      .toMatchObject({ status: 'False', reason: 'ReportRefused' });
  }
});
