import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import type { Image } from '../../api/v1alpha1/image.ts';
import { IMAGE_UID_LABEL, OPERATION_LABEL, TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { IMAGES } from '../../api/v1alpha1/resources.ts';
import { TASK_API_VERSION } from '../../api/v1alpha1/task.ts';
import { Store } from '../../kube/cache.ts';
import { Consistency } from '../../kube/consistency.ts';
import { ApiError } from '../../kube/errors.ts';
import type { Job } from '../../kube/core.ts';
import type { KubeObject, Resource } from '../../kube/objects.ts';
import { parseConfig } from '../config/config.ts';
import { HOSTS_BY_NAMESPACE } from '../tasks/placement.ts';
import { ownersOfPod, TASKS_BY_OWNER } from '../tasks/owner.ts';
import { endedJobs, type ImageControllerOptions, ImageReconciler } from './controller.ts';
import { ATTEMPT_LABEL, type ImageJob, type ObservedImage, REQUESTED_AT_ANNOTATION } from './observe.ts';
import type { TaskOutcome } from '../tasks/outcome.ts';
import { replacedPlaces, targetFile } from './place.ts';

const logger = pino({ level: 'silent' });

function holding(...objects: KubeObject[]) {
  const cache = new Store<KubeObject>(logger, {
    [TASKS_BY_OWNER]: ownersOfPod,
    [HOSTS_BY_NAMESPACE]: () => [],
  });
  objects.forEach((object) => cache.put(object));
  return { cache, readSince: 0, cutIfStale: () => undefined };
}

/**
 * Reconciles a new Image at each of these times in milliseconds. Returns the status that the operator stores if the API server refuses the
 * Job of the Image, or the finalizer, with this error.
 */
async function statusAfter(
  refusal: ApiError,
  { times = [0], finalizers = ['berth.dev/image'] }: { times?: number[]; finalizers?: string[] } = {},
): Promise<Image['status']> {
  const image: Image = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Image',
    metadata: { namespace: 'ci', name: 'golden', uid: 'u', finalizers },
    spec: { source: { registry: { reference: 'registry.example/golden:1' } } },
  };
  let stored: Image['status'];
  let now = 0;
  const client = {
    get: async (type: Resource<KubeObject>) => {
      throw new ApiError(`no ${type.kind}`, { reason: 'NotFound', status: 404 });
    },
    create: async () => {
      throw refusal;
    },
    mergePatch: async (_type: Resource<KubeObject>, _ref: object, { status }: Image) => {
      if (status === undefined) {
        throw refusal;
      }
      stored = status;
      return image;
    },
  };
  const none = {
    vms: holding(),
    snapshots: holding(),
    jobs: holding(),
    taskPods: holding(),
    nodes: holding(),
    namespaces: holding(),
  };
  const options = {
    kind: 'Image',
    objects: holding(image),
    client,
    ...none,
    config: parseConfig({}, 'test'),
    recorder: { event: () => undefined },
    consistency: new Consistency(),
    clock: () => now,
  } as unknown as ImageControllerOptions;
  const reconciler = new ImageReconciler(options);
  for (now of times) {
    await reconciler.reconcile('ci/golden', { logger }).catch(() => undefined);
  }
  return stored;
}

it.each([
  ['a quota', 403, 'jobs.batch "x" is forbidden: exceeded quota: small'],
  ['a webhook', 400, 'admission webhook "policies.example" denied the request: no Jobs here'],
  [
    'a ValidatingAdmissionPolicy',
    422,
    'jobs.batch "x" is forbidden: ValidatingAdmissionPolicy … denied request',
  ],
  [
    'a webhook that cannot be called',
    500,
    'Internal error occurred: failed calling webhook "policies.example": connection refused',
  ],
])('an Image whose Job %s refuses has the words of the API server', async (_what, status, message) => {
  const { conditions } = (await statusAfter(new ApiError(message, { status, reason: '' }))) ?? {};
  const ready = conditions?.find(({ type }) => type === 'Ready');
  expect(ready).toMatchObject({ status: 'False', reason: 'JobRefused', message });
});

it.each([
  ['Job', ['berth.dev/image']],
  ['finalizer', []],
])(
  'an Image tells an error without a reason, with which its %s is refused, only if the error lasts',
  async (_what, finalizers) => {
    const message = 'insufficient quota to match these scopes';
    const error = new ApiError(message, { status: 500, reason: '' });
    expect(await statusAfter(error, { times: [0, 1_000], finalizers })).toBeUndefined();
    const { conditions } = (await statusAfter(error, { times: [0, 2_000], finalizers })) ?? {};
    const ready = conditions?.find(({ type }) => type === 'Ready');
    expect(ready).toMatchObject({ status: 'False', reason: 'JobRefused', message });
  },
);

const NOW = Date.parse('2030-01-02T00:00:00Z');
const BEFORE = '2030-01-01T00:00:00Z';
const MADE = { phase: 'Ready', content: { type: 'registry', reference: 'registry.example/golden@sha256:1' } };
const RUNNING = { phase: 'Running', nodeName: 'rack', firstRunningTime: '2030-01-01T00:00:00Z' };

/**
 * Reconciles an Image with a commit of the VM `builder`. In the cache, this VM has not run yet. `current` is the VM's status in the API
 * server. Returns the Jobs that were created, and the result of the commit.
 */
async function commitOf(current: object) {
  const vm = { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata: { namespace: 'ci', name: 'builder' } };
  const image = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Image',
    metadata: { namespace: 'ci', name: 'golden', uid: 'u', finalizers: ['berth.dev/image'] },
    spec: {
      source: { registry: { reference: 'registry.example/golden:1' } },
      commit: { vmName: 'builder', requestedAt: '2030-01-01T00:00:01Z' },
    },
    status: MADE,
  } as Image;
  const created: string[] = [];
  let stored: Image['status'];
  const client = {
    get: async (type: Resource<KubeObject>) => {
      if (type.kind === 'VM') {
        return { ...vm, status: current };
      }
      throw new ApiError(`no ${type.kind}`, { reason: 'NotFound', status: 404 });
    },
    create: async (type: Resource<KubeObject>, object: KubeObject) => {
      created.push(type.kind);
      return object;
    },
    mergePatch: async (_type: Resource<KubeObject>, _ref: object, { status }: Image) => {
      stored = status;
      return image;
    },
  };
  const options = {
    kind: 'Image',
    objects: holding(image),
    client,
    vms: holding(vm),
    snapshots: holding(),
    jobs: holding(),
    taskPods: holding(),
    nodes: holding(),
    namespaces: holding(),
    config: parseConfig({ imageStorage: { folder: true } }, 'test'),
    recorder: { event: () => undefined },
    consistency: new Consistency(),
    clock: () => 0,
  } as unknown as ImageControllerOptions;
  await new ImageReconciler(options).reconcile('ci/golden', { logger });
  return { created, result: stored?.lastCommit?.result };
}

it('a commit at the first run of a VM does not fail because the cache lags', async () => {
  expect(await commitOf(RUNNING)).toEqual({ created: ['Job'], result: undefined });
});

it('a commit of a VM that has not run fails', async () => {
  expect(await commitOf({})).toEqual({ created: [], result: 'Failed' });
});

it('the operator deletes an old Job after it has stored the result, and Kubernetes does not delete it for a week', async () => {
  const requests: string[] = [];
  const image: Image = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Image',
    metadata: { namespace: 'ci', name: 'golden', uid: 'u', finalizers: ['berth.dev/image'] },
    spec: { source: { registry: { reference: 'registry.example/golden:1' } } },
  };
  let job: Job | undefined;
  const client = {
    get: async () => undefined,
    create: async (_type: Resource<KubeObject>, made: Job) => {
      job = made;
      return made;
    },
    mergePatch: async (_type: Resource<KubeObject>, _ref: object, { status }: Image) => {
      requests.push(`patch to ${status?.phase}`);
      return image;
    },
    delete: async (_type: Resource<KubeObject>, { name }: { name: string }) => {
      requests.push(`delete ${name}`);
    },
  };
  const options = {
    kind: 'Image',
    objects: holding(image),
    client,
    vms: holding(),
    snapshots: holding(),
    jobs: holding(),
    taskPods: holding(),
    nodes: holding(),
    namespaces: holding(),
    config: parseConfig({}, 'test'),
    recorder: { event: () => undefined },
    consistency: new Consistency(),
    clock: () => NOW,
  } as unknown as ImageControllerOptions;
  await new ImageReconciler(options).reconcile('ci/golden', { logger });
  expect(job?.spec.ttlSecondsAfterFinished).toBe(7 * 24 * 3600);
  const conditions = [
    { type: 'Failed', status: 'True', reason: 'DeadlineExceeded', lastTransitionTime: BEFORE },
  ];
  const ended = { ...job, metadata: { ...job?.metadata, creationTimestamp: BEFORE }, status: { conditions } };
  const later = { ...options, jobs: holding(ended as Job) } as unknown as ImageControllerOptions;
  requests.length = 0;
  await new ImageReconciler(later).reconcile('ci/golden', { logger });
  expect(requests).toEqual(['patch to Failed', `delete ${ended.metadata.name}`]);
});

/**
 * Reconciles an Image whose content a commit has replaced, or whose deletion was requested. The API server refuses each Job with `refusal`.
 * Returns the patches that the operator sends, and the reasons of its Events.
 */
async function forgetting(refusal: ApiError, change: 'commit' | 'deletion') {
  const requestedAt = BEFORE;
  const old = { type: 'storedFile', path: 'ci/golden-1.qcow2', sha256: '1'.repeat(64) };
  const image = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Image',
    metadata: {
      namespace: 'ci',
      name: 'golden',
      uid: 'u',
      finalizers: ['berth.dev/image'],
      ...(change === 'deletion' && { deletionTimestamp: BEFORE }),
    },
    spec: { source: { fromVM: { name: 'builder' } }, commit: { vmName: 'builder', requestedAt } },
    status: { phase: 'Ready', content: old },
  } as unknown as Image;
  const target = { type: 'folder', path: 'ci/golden-2.qcow2' };
  const task = {
    apiVersion: TASK_API_VERSION,
    type: 'save',
    vm: { namespace: 'ci', name: 'builder', uid: 'v' },
    target,
  };
  const labels = { [IMAGE_UID_LABEL]: 'u', [OPERATION_LABEL]: 'commit', [ATTEMPT_LABEL]: '1' };
  const commit = {
    apiVersion: 'batch/v1',
    kind: 'Job',
    metadata: {
      namespace: 'ci',
      name: 'commit',
      uid: 'j',
      labels,
      annotations: { [REQUESTED_AT_ANNOTATION]: requestedAt },
    },
    spec: {
      template: {
        metadata: { annotations: { [TASK_ANNOTATION]: JSON.stringify(task) } },
        spec: { containers: [] },
      },
    },
  };
  const message = JSON.stringify({ digest: `sha256:${'2'.repeat(64)}` });
  const pod = {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      namespace: 'ci',
      name: 'commit-1',
      ownerReferences: [{ apiVersion: '', kind: 'Job', name: 'commit', uid: 'j', controller: true }],
    },
    spec: { nodeName: 'rack', containers: [] },
    status: { containerStatuses: [{ state: { terminated: { exitCode: 0, message } } }] },
  };
  const patches: string[] = [];
  const reasons: string[] = [];
  const world = { refusal: refusal as ApiError | undefined, now: NOW };
  const options = {
    kind: 'Image',
    resource: IMAGES,
    objects: holding(image),
    client: {
      create: async (_type: Resource<KubeObject>, object: KubeObject) => {
        if (world.refusal !== undefined) {
          throw world.refusal;
        }
        return object;
      },
      mergePatch: async (_type: Resource<KubeObject>, _ref: object, patch: object) => {
        patches.push(Object.keys(patch).join());
        return image;
      },
    },
    vms: holding(),
    snapshots: holding(),
    jobs: holding(commit),
    taskPods: holding(pod),
    nodes: holding(),
    namespaces: holding(),
    config: parseConfig({ imageStorage: { folder: true } }, 'test'),
    recorder: { event: (_object: object, { reason }: { reason: string }) => reasons.push(reason) },
    consistency: new Consistency(),
    clock: () => world.now,
  } as unknown as ImageControllerOptions;
  const reconciler = new ImageReconciler(options);
  const reconcile = async (): Promise<unknown> =>
    await reconciler.reconcile('ci/golden', { logger }).then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
  return { world, error: await reconcile(), patches, reasons, reconcile };
}

describe.each(['commit', 'deletion'] as const)('content that nothing names any more after a %s', (change) => {
  it('is not forgotten while a webhook cannot be called', async () => {
    const message = 'Internal error occurred: failed calling webhook "policies.example": connection refused';
    const failure = new ApiError(message, { status: 500, reason: 'InternalError' });
    const { error, patches, reasons } = await forgetting(failure, change);
    expect({ error, patches, reasons }).toEqual({ error: failure, patches: [], reasons: ['JobRefused'] });
  });

  it('tells while its removal waits for a webhook: once, again while the Event could be gone, and for a new fault', async () => {
    const message = 'Internal error occurred: failed calling webhook "policies.example": connection refused';
    const failure = new ApiError(message, { status: 500, reason: 'InternalError' });
    const { world, reasons, reconcile } = await forgetting(failure, change);
    await reconcile();
    expect(reasons).toEqual(['JobRefused']);
    world.now += 30 * 60_000;
    await reconcile();
    expect(reasons).toEqual(['JobRefused', 'JobRefused']);
    world.refusal = undefined;
    expect(await reconcile()).toBeUndefined();
    world.refusal = failure;
    await reconcile();
    expect(reasons.filter((reason) => reason === 'JobRefused')).toHaveLength(3);
  });

  it('is told and stays if a quota refuses its removal', async () => {
    const quota = new ApiError('jobs.batch "x" is forbidden: exceeded quota: small', {
      status: 403,
      reason: 'Forbidden',
    });
    const { error, patches, reasons } = await forgetting(quota, change);
    expect(error).toBeUndefined();
    expect(patches).toHaveLength(1);
    expect(reasons).toContain('StorageKeepsContent');
  });
});

const END = '2026-01-01T00:00:00Z';
const HOUR = 3_600_000;
const SUCCEEDED: TaskOutcome = { kind: 'succeeded', report: {}, finishedAt: END };
const content = { type: 'storedFile' as const, path: 'ci/golden-2.qcow2', sha256: '1'.repeat(64) };

/** Returns a Job that saves a disk to the storage folder. `condition` is the type of the condition that the Job has since END. */
function savingJob(
  condition: string | undefined,
  outcome: TaskOutcome = SUCCEEDED,
  path = 'ci/golden-1.qcow2',
): ImageJob {
  const vm = { namespace: 'ci', name: 'builder', uid: 'v' };
  const target = { type: 'folder', path };
  const task = { apiVersion: TASK_API_VERSION, type: 'save', vm, target };
  const metadata = { annotations: { [TASK_ANNOTATION]: JSON.stringify(task) } };
  const conditions = condition && [{ type: condition, status: 'True' as const, lastTransitionTime: END }];
  return {
    job: {
      apiVersion: 'batch/v1',
      kind: 'Job',
      metadata: { name: 'save', namespace: 'ci', uid: 'j' },
      spec: { template: { metadata, spec: { containers: [] } } },
      ...(conditions && { status: { conditions } }),
    },
    operation: 'save',
    requestedAt: undefined,
    attempt: 1,
    outcome,
  };
}

/** Returns the Jobs that are deleted after this number of hours, and the hours until the next deletion. */
function afterHours(hours: number, job: ImageJob | ImageJob[], status: object) {
  const now = Date.parse(END) + hours * HOUR;
  const { due, nextAt } = endedJobs({ jobs: [job].flat(), now } as unknown as ObservedImage, status);
  return { due: due.length, next: nextAt && (nextAt - now) / HOUR };
}

describe('the Job of an image', () => {
  const failed: TaskOutcome = { kind: 'failed', reason: 'DiskFull', message: '', finishedAt: END };
  const MINUTE = 1 / 60;

  it('is deleted a minute after its success', () => {
    expect(afterHours(MINUTE / 2, savingJob('Complete'), { content })).toEqual({ due: 0, next: MINUTE / 2 });
    expect(afterHours(MINUTE, savingJob('Complete'), { content })).toEqual({ due: 1, next: undefined });
  });

  it('is deleted an hour after its failure, or when a later attempt has succeeded', () => {
    const first = savingJob('Failed', failed);
    const later = { ...savingJob('Complete'), attempt: 2 };
    expect(afterHours(0.5, first, {})).toEqual({ due: 0, next: 0.5 });
    expect(afterHours(1, first, {})).toEqual({ due: 1, next: undefined });
    expect(afterHours(MINUTE, [first, later], { content })).toEqual({ due: 2, next: undefined });
  });

  it('of another request says nothing about the end of a failed one', () => {
    const pushed = { operation: 'push', requestedAt: END };
    const jobs = [
      { ...savingJob('Failed', failed), ...pushed },
      { ...savingJob('Complete'), ...pushed, requestedAt: '2026-01-02T00:00:00Z' },
    ];
    expect(afterHours(0.5, jobs, { content })).toEqual({ due: 1, next: 0.5 });
  });

  it('stays while it has not ended', () => {
    const running: TaskOutcome = { kind: 'running', nodeName: 'rack', report: {} };
    expect(afterHours(2, savingJob(undefined, running), {})).toEqual({ due: 0, next: undefined });
    expect(afterHours(2, savingJob('FailureTarget', running), {})).toEqual({ due: 0, next: undefined });
  });

  it('stays until the first content exists if its host ended and may have left a file', () => {
    const killed: TaskOutcome = { kind: 'failed', reason: 'DeadlineExceeded', message: '', finishedAt: END };
    expect(afterHours(9, savingJob('Failed', killed), {})).toEqual({ due: 0, next: undefined });
    expect(afterHours(9, savingJob('Failed', killed), { content })).toEqual({ due: 1, next: undefined });
  });

  it('does not stay if more than ten later attempts may have left a file, because its file is then removed', () => {
    const killed: TaskOutcome = { kind: 'failed', reason: 'DeadlineExceeded', message: '', finishedAt: END };
    const attempts = Array.from({ length: 12 }, (_, index) => ({
      ...savingJob('Failed', killed, `ci/try-${index + 1}.qcow2`),
      attempt: index + 1,
    }));
    const now = Date.parse(END) + HOUR;
    const object = { metadata: {}, spec: {} };
    const config = parseConfig({ imageStorage: { folder: true } }, 'test');
    const observed = { object, config, jobs: attempts, now } as unknown as ObservedImage;
    const oldest = attempts.slice(0, 2);
    expect(endedJobs(observed, {}).due).toEqual(oldest.map(({ job }) => job));
    expect(replacedPlaces(observed, {})).toEqual(oldest.map(({ job }) => targetFile(job)));
    expect(replacedPlaces(observed, { content })).toHaveLength(12);
  });
});
