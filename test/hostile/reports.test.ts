/**
 * A host that lies about its tasks, and a tenant who presents own tasks as those of others. The content of an Image stays as the operator
 * set it.
 */
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Image, ImageSpec } from '../../api/v1alpha1/image.ts';
import { TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { type Task, taskSchema } from '../../api/v1alpha1/task.ts';
import { type Job, JOBS, PODS } from '../../kube/core.ts';
import { IMAGES } from '../../api/v1alpha1/resources.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { waitForObject } from '../fixtures/objects.ts';
import { CacheEntries, rowOf } from '../fixtures/cacheentries.ts';
import { VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';
import { account, type Account } from './support/accounts.ts';
import { tried } from './support/attempts.ts';
import { untilStill } from '../support/stillness.ts';

const NAMESPACE = 'platform-default';
/** Namespace in which the tenant has `edit`. */
const TENANT = 'platform-tenant';
/** Namespace of Images whose Jobs and Pods a quota refuses. So forged Jobs and Pods would be the only ones. */
const HELD_BACK = 'platform-held-back';
const STORAGE = 'storage.example/berth';
const [GOOD, OTHER] = ['a', 'b'].map((digit) => `sha256:${digit.repeat(64)}`) as [string, string];
const SIZES = { sizeBytes: 64 * 1024 ** 3, storageBytes: 9 * 1024 ** 3 };
/** A report of a host about its work, with any content. */
type Lies = Record<string, unknown>;

let cluster: Cluster;
let host: ActingHost;
let vms: VMs;
let tenant: Account;

beforeAll(async () => {
  cluster = await startCluster({ name: `hostile-reports-${process.pid}` });
  await cluster.startOperator({ config: { imageStorage: { registry: { prefix: STORAGE } } } });
  host = await ActingHost.join(cluster.client(), 'mac1');
  vms = new VMs(cluster);
  await cluster.createNamespace(TENANT);
  const binding = ['create', 'rolebinding', 'edit', '-n', TENANT, '--clusterrole=edit'];
  await cluster.kubectl([...binding, `--serviceaccount=${TENANT}:tenant`]);
  tenant = await account(cluster, TENANT, 'tenant');
});

afterAll(async () => {
  await tenant?.close();
  await host?.silence();
  await cluster?.stop();
});

function create(name: string, spec: ImageSpec, namespace = NAMESPACE): Promise<Image> {
  return cluster.client().create(IMAGES, { metadata: { name, namespace }, spec });
}

function until(
  name: string,
  what: string,
  matches: (image: Image) => boolean,
  namespace = NAMESPACE,
): Promise<Image> {
  const get = () => cluster.client().get(IMAGES, { namespace, name });
  return waitForObject(`Image ${name}: ${what}`, get, matches);
}

/** Lets the host do the requested task. The host reports the result of `report`. */
async function answer(
  name: string,
  requestedAt: string | undefined,
  report: (task: Task) => Lies,
): Promise<void> {
  const job = await jobFor(name, requestedAt);
  const pod = await host.beginTask({ namespace: NAMESPACE, name: job.metadata.name });
  await host.finishTask(pod, report(taskOf(job)));
}

function jobFor(name: string, requestedAt?: string, namespace = NAMESPACE): Promise<Job> {
  return waitFor(`a Job of Image ${name}`, async () => {
    const { items } = await cluster.client().list(JOBS, { namespace });
    return items.find(
      ({ metadata: { ownerReferences, annotations } }) =>
        ownerReferences?.[0]?.name === name && annotations?.['berth.dev/requested-at'] === requestedAt,
    );
  });
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

it('a fetch whose report does not fit its task fails, and gives the Image no content', async (context) => {
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

it('a commit whose report does not fit its task fails, and leaves the content unchanged', async (context) => {
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

/** Creates an Image of the tenant, whose task ends with content that the tenant chose. Resolves with the paths of Job and Pod. */
async function ownTask(name: string): Promise<Record<'Job' | 'Pod', string>> {
  await create(name, { source: tag(name) }, TENANT);
  const job = await jobFor(name, undefined, TENANT);
  const pod = await host.beginTask({ namespace: TENANT, name: job.metadata.name });
  const reference = `registry.example/team/${name}@${OTHER}`;
  await host.finishTask(pod, { ...SIZES, digest: OTHER, reference });
  await until(name, 'content', ({ status }) => status?.content !== undefined, TENANT);
  return {
    Job: `/apis/batch/v1/namespaces/${TENANT}/jobs/${job.metadata.name}`,
    Pod: `/api/v1/namespaces/${TENANT}/pods/${pod.name}`,
  };
}

/** Returns what a report of a host could change. The message is left out, because it can have the random name of a refused Pod. */
function contentOf({ status: { phase, content, digest, size } = {} }: Image) {
  return { phase, content, digest, size };
}

it('a task or Pod that a tenant presents as that of another object does not change that object', async (context) => {
  const client = cluster.client();
  const entries = new CacheEntries(cluster);
  const victim = { namespace: NAMESPACE, name: 'victim' };
  const reference = 'registry.example/team/cached:1';
  const entry = await entries.create('victim', { reference, targets: { nodes: [host.name] } });
  await cluster.createNamespace(HELD_BACK);
  const quota = ['create', 'quota', 'few', '-n', HELD_BACK, '--hard=pods=0,count/jobs.batch=1'];
  await cluster.kubectl(quota);
  const image = await create('without-pod', { source: tag('without-pod') }, HELD_BACK);
  const job = await jobFor('without-pod', undefined, HELD_BACK);
  const jobless = await create('without-job', { source: tag('without-job') }, HELD_BACK);
  const isHeldBack = (one: Image) => condition(one, 'Ready')?.message.includes('exceeded quota') === true;
  await until('without-pod', 'a refusal of its Pod', isHeldBack, HELD_BACK);
  await until('without-job', 'a refusal of its Job', isHeldBack, HELD_BACK);
  await vms.create('victim');
  await host.waitForPod(victim);
  await host.run(victim);
  const vm = await vms.waitForPhase('victim', 'Running');
  await entries.waitFor('victim', 'a pull', (one) => rowOf(one, host.name)?.state === 'Caching');
  const states = async () => ({
    entry: (await entries.get('victim')).status?.nodes,
    images: (await client.list(IMAGES, { namespace: HELD_BACK })).items.map(contentOf),
    vm: (await vms.get('victim')).status,
    pod: (await client.get(PODS, victim)).metadata.uid,
  });
  const before = await untilStill(states);
  const forgeries = [
    ['Pod', 'batch/v1', job],
    ['Pod', 'berth.dev/v1alpha1', vm],
    ['Job', 'berth.dev/v1alpha1', image],
    ['Job', 'berth.dev/v1alpha1', jobless],
    ['Job', 'berth.dev/v1alpha1', vm],
    ['Job', 'berth.dev/v1alpha1', entry],
  ] as const;
  for (const [index, [what, apiVersion, { kind, metadata }]] of forgeries.entries()) {
    const path = (await ownTask(`own-${index}`))[what];
    const { name, uid = '' } = metadata;
    const reported = `${what} as one of ${kind} ${name}`;
    for (const label of ['berth.dev/image-uid', 'berth.dev/cache-entry-uid', 'berth.dev/vm-uid']) {
      const labelled = await tenant.send('PATCH', path, { metadata: { labels: { [label]: uid } } });
      expect(labelled, `${reported} by ${label}`).toMatchObject({ status: 403 });
    }
    const ownerReferences = [{ apiVersion, kind, name, uid, controller: true }];
    // Without this finalizer the garbage collector would remove the forged object, because its owner is not in this namespace.
    const forged = { metadata: { ownerReferences, finalizers: ['example.com/hold'] } };
    const { status } = await tenant.send('PATCH', path, forged);
    tried(context, reported, `HTTP ${status}`);
    // A change of every object makes the operator look at it again. A later Image shows that the operator has done so.
    const look = [`example.com/look=${index}`, '--overwrite'];
    await cluster.kubectl(['annotate', '-n', HELD_BACK, 'images', '--all', ...look]);
    await cluster.kubectl(['annotate', '-n', NAMESPACE, 'vm/victim', 'ice/victim', ...look]);
    await create(`later-${index}`, { source: tag('later') });
    await jobFor(`later-${index}`);
    expect(await states(), `after a ${reported}`).toEqual(before);
  }
});
