import { describe, expect, it } from 'vitest';
import { type Image, imageStatusSchema, type ImageSpec } from '../../api/v1alpha1/image.ts';
import { FAILURE_TEXT_LENGTH } from '../../api/v1alpha1/source.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import type { TaskReport } from '../../api/v1alpha1/task.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Job } from '../../kube/core.ts';
import { parseConfig } from '../config/config.ts';
import { taskOf } from '../tasks/job.ts';
import { failureText, finalFailure, readFailure } from './facts.ts';
import type { ImageJob, ObservedImage } from './observe.ts';
import { planImage } from './plan.ts';
import { abandonedPlaces, replacedPlaces } from './place.ts';

const requestedAt = '2026-01-01T00:00:00Z';
const NOW = Date.parse('2026-01-02T00:00:00Z');
const CONTENT = { type: 'registry', reference: 'registry.example/team/disk:1' };
const REGISTRY = { registry: { reference: 'registry.example/team/disk:1' } };
const WEB = { http: { url: 'https://images.example/disk.qcow2', sha256: 'a'.repeat(64) } };
const FROM_VM = { fromVM: { name: 'builder' } };
const LOG = `${'line of a log '.repeat(200)}and its end`;

const ran: VM = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'VM',
  metadata: { name: 'builder', namespace: 'platform-ci', uid: 'v1' },
  spec: {},
  status: { nodeName: 'mac1', firstRunningTime: requestedAt },
};

function observed(spec: ImageSpec, status: Image['status'] = {}, vm: VM | undefined = ran): ObservedImage {
  const metadata = { name: 'golden', namespace: 'platform-ci', uid: 'u1', generation: 1 };
  return {
    object: { apiVersion: 'berth.dev/v1alpha1', kind: 'Image', metadata, spec, status },
    kind: 'Image',
    jobs: [],
    origin: undefined,
    vm: () => vm,
    snapshot: () => undefined,
    deploying: [],
    credentials: [],
    isDedicated: () => false,
    config: parseConfig({ imageStorage: { folder: true } }, 'test'),
    now: NOW,
  };
}

/** Returns the same state with the failed Job of the next operation. */
function failed(state: ObservedImage, reason: string, message: string): ObservedImage {
  return withJob(state, { kind: 'failed', reason, message, finishedAt: requestedAt } as ImageJob['outcome']);
}

/** Returns the same state with the Job of the next operation. */
function withJob(state: ObservedImage, outcome: ImageJob['outcome']): ObservedImage {
  const { createJob: job } = planImage(state);
  const operation = job?.metadata.labels?.['berth.dev/operation'] ?? '';
  const time = job?.metadata.annotations?.['berth.dev/requested-at'];
  return { ...state, jobs: [{ job: job as Job, operation, requestedAt: time, attempt: 1, outcome }] };
}

/** Returns the state after the operator has written the status and Kubernetes has deleted the Jobs. */
function withoutJobs(state: ObservedImage): ObservedImage {
  const status = boundStatus(imageStatusSchema, planImage(state).status);
  return { ...state, object: { ...state.object, status }, jobs: [] };
}

function conditionOf(state: ObservedImage, type: string) {
  return planImage(state).status.conditions?.find((one) => one.type === type);
}

describe('a final failure', () => {
  it.each([
    ['pull', REGISTRY],
    ['pull', WEB],
    ['save', FROM_VM],
  ])('of a %s stays when its Job is gone, and nothing is tried again: %j', (_, source) => {
    const state = failed(observed({ source }), 'ImageInvalid', 'not a disk');
    const later = withoutJobs(state);
    expect(later.object.status).toMatchObject({
      phase: 'Failed',
      contentFailure: 'ImageInvalid: not a disk',
    });
    expect(conditionOf(later, 'Stalled')).toMatchObject({ reason: 'ImageInvalid', message: 'not a disk' });
    const { createJob, status, wakeMilliseconds } = planImage(later);
    expect([createJob, wakeMilliseconds]).toEqual([undefined, undefined]);
    expect(boundStatus(imageStatusSchema, status)).toEqual(later.object.status);
  });

  it('is that of a save of a VM without a disk', () => {
    const later = withoutJobs(failed(observed({ source: FROM_VM }), 'NoDisk', 'The machine has no disk'));
    expect(conditionOf(later, 'Stalled')).toMatchObject({ reason: 'NoDisk' });
    expect(later.object.status).toMatchObject({ finishedTime: expect.any(String) });
    expect(planImage(later).createJob).toBeUndefined();
  });

  it('is the only one that is stored', () => {
    const later = withoutJobs(failed(observed({ source: REGISTRY }), 'ImageFetchFailed', 'no answer'));
    expect(later.object.status?.contentFailure).toBeUndefined();
    expect(planImage(later).createJob).toBeDefined();
  });

  it('leaves no file in the storage, because its removal is recorded before its Job is gone', () => {
    const state = failed(observed({ source: WEB }), 'DigestMismatch', 'wrong');
    const file = { type: 'folder', path: expect.stringContaining('golden-') };
    expect(abandonedPlaces(state)).toEqual([file]);
    expect(replacedPlaces(state, planImage(state).status)).toEqual([file]);
    const elsewhere = failed(observed({ source: REGISTRY }), 'ImageInvalid', '');
    expect(replacedPlaces(elsewhere, planImage(elsewhere).status)).toEqual([]);
  });
});

describe.each([
  ['a file of a web server', WEB],
  ['the disk of a VM', FROM_VM],
])('the next attempt to store %s', (_, source) => {
  const first = failed(observed({ source }), 'DeadlineExceeded', 'The host does not respond');
  const later = { ...first, now: NOW + 3_600_000 };
  const next = planImage(later).createJob as Job;
  const report = { digest: `sha256:${'b'.repeat(64)}` };
  const succeeded = { kind: 'succeeded', report, finishedAt: requestedAt } as const;
  const operation = next.metadata.labels?.['berth.dev/operation'] ?? '';
  const stored: ObservedImage = {
    ...later,
    jobs: [...later.jobs, { job: next, operation, requestedAt: undefined, attempt: 2, outcome: succeeded }],
  };

  it('has a file of its own, because the host of the first attempt might still write', () => {
    const [before, after] = [later.jobs[0]?.job as Job, next].map((job) => taskOf(job));
    expect(before).toMatchObject({ target: { type: 'folder' } });
    expect(after).toEqual({ ...before, target: { type: 'folder', path: expect.any(String) } });
    expect(after).not.toEqual(before);
  });

  it('removes the file of the first attempt when it has succeeded, and not before', () => {
    const task = taskOf(later.jobs[0]?.job as Job);
    expect(replacedPlaces(later, planImage(later).status)).toEqual([]);
    expect(replacedPlaces(stored, planImage(stored).status)).toEqual([
      task !== undefined && 'target' in task && task.target,
    ]);
  });
});

describe('the next attempt after failures', () => {
  const state = observed({ source: REGISTRY });
  const attempt = (number: number, host: string | undefined, reason: string): ImageJob => {
    const [one] = failed(state, reason, 'as told').jobs;
    return { ...(one as ImageJob), attempt: number, host };
  };
  const avoided = (jobs: ImageJob[]): unknown[] => {
    const { createJob } = planImage({ ...state, jobs, now: NOW + 3_600_000 });
    const { nodeAffinity } = createJob?.spec.template.spec.affinity ?? {};
    const preferences = nodeAffinity?.preferredDuringSchedulingIgnoredDuringExecution ?? [];
    return preferences.map(({ preference }) => preference.matchFields?.[0]?.values?.[0]);
  };

  it('prefers hosts without a failure, and then those that failed longest ago', () => {
    const refused = 'ImageFetchFailed';
    const jobs = [attempt(1, 'rack1', refused), attempt(3, 'rack1', refused), attempt(2, 'rack2', refused)];
    expect(avoided(jobs)).toEqual(['rack1', 'rack2']);
    expect(avoided([attempt(1, undefined, refused)])).toEqual([]);
  });

  it('may continue on a host whose source was too slow', () => {
    expect(avoided([attempt(1, 'rack1', 'TooSlow')])).toEqual([]);
  });
});

it('a failed upload leaves no file in the storage, also when its Job is gone', () => {
  const upload = { source: { upload: { maxSize: '2Gi' } } };
  const state = failed(observed(upload), 'UploadInterrupted', 'The sender is gone');
  const task = taskOf(state.jobs[0]?.job as Job);
  expect(task).toMatchObject({ type: 'receive', target: { type: 'folder' } });
  const target = task?.type === 'receive' && task.target;
  expect(abandonedPlaces(state)).toEqual([target]);
  expect(abandonedPlaces(withoutJobs(state))).toEqual([target]);
});

describe('the wait after a failure on a host whose clock is wrong', () => {
  it.each(['1970-01-01T00:00:00Z', '2026-01-01T23:59:49Z', '2026-01-02T00:00:01Z', undefined])(
    'starts at the creation of the Job: %s',
    (finishedAt) => {
      const state = failed(observed({ source: REGISTRY }), 'ImageFetchFailed', 'no answer');
      const jobs = state.jobs.map(({ job, ...about }) => {
        const metadata = { ...job.metadata, creationTimestamp: '2026-01-01T23:59:55Z' };
        const outcome = { ...about.outcome, finishedAt } as ImageJob['outcome'];
        return { ...about, job: { ...job, metadata }, outcome };
      });
      expect(planImage({ ...state, jobs })).toMatchObject({ createJob: undefined, wakeMilliseconds: 5_000 });
    },
  );
});

describe('the text of a failure', () => {
  it('keeps the reason and the end of a message that is too long', () => {
    const text = failureText({ reason: 'DigestMismatch', message: LOG });
    expect(text).toHaveLength(FAILURE_TEXT_LENGTH);
    expect(text).toMatch(/^DigestMismatch: .*and its end$/);
    expect(finalFailure(text)?.reason).toBe('DigestMismatch');
  });

  it('has the same reason and message when it is read', () => {
    const failure = { reason: 'TaskFailed', message: 'read: no such file: /disk' };
    expect(readFailure(failureText(failure))).toEqual(failure);
    expect(readFailure(undefined)).toEqual({ reason: '', message: '' });
  });

  it.each([undefined, 'ImageFetchFailed: no answer', 'FromTheFuture: word'])('"%s" is not final', (text) => {
    expect(finalFailure(text)).toBeUndefined();
  });

  it('of an action gives its condition the same reason after the status was stored', () => {
    const push = { reference: 'registry.example/out:1', requestedAt };
    const commit = { vmName: 'builder', requestedAt };
    for (const [type, action] of [['Pushed', { push }] as const, ['Committed', { commit }] as const]) {
      const state = failed(
        observed({ source: REGISTRY, ...action }, { content: CONTENT }),
        'ImageAccessDenied',
        LOG,
      );
      const [now, later] = [conditionOf(state, type), conditionOf(withoutJobs(state), type)];
      expect(now).toMatchObject({ reason: 'ImageAccessDenied', message: expect.stringMatching(/its end$/) });
      expect(later).toEqual(now);
    }
  });
});

it('a push that no registry can take fails before a host saves the disk for it, and again when it is requested again', () => {
  const reference = 'registry.example/Team/disk:1';
  const pushing = (at: string) => ({ source: FROM_VM, push: { reference, requestedAt: at } });
  const state = observed(pushing(requestedAt));
  expect(planImage(state).createJob?.metadata.labels).toMatchObject({ 'berth.dev/operation': 'save' });
  const expected = {
    status: 'False',
    reason: 'PushFailed',
    message: `Nothing can be pushed as ${reference}: "Team/disk" is not the name of a repository`,
  };
  expect(conditionOf(state, 'Pushed')).toMatchObject(expected);
  const { status } = planImage(state);
  const later = '2026-01-01T01:00:00Z';
  expect(planImage(observed(pushing(later), status)).status.lastPush?.requestedAt).toBe(later);
  expect(
    planImage(observed(pushing(requestedAt), { ...status, content: CONTENT })).createJob,
  ).toBeUndefined();
});

describe('an Image that asks for the memory of its VM', () => {
  const memory = {
    cpu: 2,
    memoryBytes: 2 ** 30,
    key: 'c'.repeat(64),
    savedAt: '2026-01-01T12:00:00.123Z',
  };
  const shown = { size: '1Gi', cpu: 2, key: memory.key, savedAt: '2026-01-01T12:00:00Z' };
  const source = { fromVM: { name: 'builder', memory: true } };
  const digest = `sha256:${'b'.repeat(64)}`;
  const saved = (report: TaskReport) =>
    withJob(observed({ source }), {
      kind: 'succeeded',
      report: { digest, ...report },
      finishedAt: requestedAt,
    });

  it('has a task that asks for it, and shows what the host reported', () => {
    expect(taskOf(planImage(observed({ source })).createJob as Job)).toMatchObject({ memory: true });
    const plain = planImage(observed({ source: FROM_VM })).createJob as Job;
    expect(taskOf(plain)).not.toHaveProperty('memory');
    const later = withoutJobs(saved({ memory }));
    expect(planImage(later).status.memory).toEqual(shown);
    expect(conditionOf(later, 'Ready')).toMatchObject({ status: 'True', message: 'The image has content' });
  });

  it('waits for room for a clone of the VM on its host, which prepares the memory', () => {
    const sized: VM = { ...ran, status: { ...ran.status, resources: { memory: '1Gi' } } };
    const memoryOf = (from: ImageSpec['source']) =>
      planImage(observed({ source: from }, {}, sized)).createJob?.spec.template.spec.containers[0]?.resources;
    const { requests, limits } = memoryOf(source) ?? {};
    expect(requests?.['memory']).toBe(`${1024 + 128 + 16}Mi`);
    expect(limits).toEqual(requests);
    expect(memoryOf(FROM_VM)?.requests?.['memory']).toBe('16Mi');
  });

  it('says so if the host reported none, for example because its agent is older', () => {
    const later = withoutJobs(saved({ consistency: 'Crash' }));
    expect(planImage(later).status.memory).toBeUndefined();
    const message = 'The image has no memory. Its VMs boot from its disk';
    expect(conditionOf(later, 'Ready')).toMatchObject({ status: 'True', message });
  });

  it('gives hosts the digest of the memory in a storage folder', () => {
    const memoryDigest = 'd'.repeat(64);
    const { status } = planImage(saved({ memory, memoryDigest }));
    expect(status.content).toMatchObject({ type: 'storedFile', memoryDigest });
    expect(planImage(saved({ memoryDigest })).status.content).not.toHaveProperty('memoryDigest');
  });

  it('has none after a commit, which saves only a disk', () => {
    const { status } = planImage(saved({ memory }));
    const commit = { vmName: 'builder', requestedAt };
    const committing = withJob(observed({ source, commit }, status), {
      kind: 'succeeded',
      report: { digest },
      finishedAt: requestedAt,
    });
    expect(taskOf(committing.jobs[0]?.job as Job)).not.toHaveProperty('memory');
    expect(planImage(committing).status.memory).toBeUndefined();
    expect(conditionOf(committing, 'Ready')?.message).toMatch(/^The image has no memory/);
  });

  it('gives it to a copy', () => {
    const origin = withoutJobs(saved({ memory })).object;
    const copy = { ...observed({ source: { copyOf: { name: 'golden' } } }), origin };
    expect(planImage(copy).status.memory).toEqual(shown);
  });
});

describe('an Image of a VM that failed', () => {
  const failure = { reason: 'PodDeleted', message: 'gone', time: requestedAt };
  const lost: VM = { ...ran, status: { firstRunningTime: requestedAt, failure } };

  it.each([
    ['after it ran, and has no host any more', lost],
    ['before it ran', { ...ran, status: { nodeName: 'mac1', failure } }],
  ])('%s says that there is no disk', (_, vm) => {
    const state = observed({ source: FROM_VM }, {}, vm);
    expect(planImage(state).createJob).toBeUndefined();
    expect(conditionOf(state, 'Ready')).toMatchObject({
      reason: 'NoMachine',
      message: 'VM builder failed and left no disk. Delete the VM and create it again',
    });
    const commit = { vmName: 'builder', requestedAt };
    const committing = observed({ source: REGISTRY, commit }, { content: CONTENT }, vm);
    expect(conditionOf(committing, 'Committed')?.reason).toBe('NoMachine');
  });

  it('is made as long as a host has the disk', () => {
    const vm = { ...ran, status: { ...ran.status, failure } };
    expect(planImage(observed({ source: FROM_VM }, {}, vm)).createJob).toBeDefined();
  });

  it('is also made on a cordoned host, because no other host has the disk', () => {
    const tolerated = (source: ImageSpec['source']) =>
      planImage(observed({ source })).createJob?.spec.template.spec.tolerations?.map(({ key }) => key);
    const cordon = 'node.kubernetes.io/unschedulable';
    expect(tolerated(FROM_VM)).toContain(cordon);
    expect(tolerated(REGISTRY)).not.toContain(cordon);
  });

  it('waits for a VM that may still run', () => {
    const state = observed({ source: FROM_VM }, {}, { ...ran, status: { nodeName: 'mac1' } });
    expect(conditionOf(state, 'Ready')?.reason).toBe('VMNotReady');
    expect(planImage(state).createJob).toBeUndefined();
  });
});

describe('a commit whose VM is deleted', () => {
  const commit = { vmName: 'builder', requestedAt };
  const asked = observed({ source: REGISTRY, commit }, { content: CONTENT });
  const gone = { vm: () => undefined };
  const report = { digest: `sha256:${'b'.repeat(64)}`, sizeBytes: 2 ** 20 };

  it('has not failed while a host stores the copy of the disk, and succeeds with the Job', () => {
    const running = withJob(asked, { kind: 'running', nodeName: 'mac1', report: {} });
    const { createJob, status } = planImage({ ...running, ...gone });
    expect([createJob, status.lastCommit]).toEqual([undefined, undefined]);
    expect(status.phase).toBe('Updating');
    const succeeded = withJob(asked, { kind: 'succeeded', report, finishedAt: requestedAt });
    const after = planImage({ ...succeeded, object: { ...asked.object, status }, ...gone }).status;
    expect(after.lastCommit).toMatchObject({ requestedAt, result: 'Succeeded' });
    expect(after).toMatchObject({ phase: 'Ready', content: { type: 'storedFile' }, digest: report.digest });
  });

  it('has failed if no Job was made yet', () => {
    expect(planImage({ ...asked, ...gone }).status.lastCommit?.message).toMatch(/^VMNotFound: /);
  });
});
