import { pino } from 'pino';
import { expect, it, vi } from 'vitest';
import { WORKLOAD_LABEL } from '../../api/v1alpha1/names.ts';
import { Store } from '../../kube/cache.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Job, Pod } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import { ownersOfPod, TASKS_BY_OWNER } from './owner.ts';
import { RefusedPods } from './refusedpods.ts';

const logger = pino({ level: 'silent' });
const QUOTA =
  'pods "pull-x" is forbidden: exceeded quota: small, requested: pods=1, used: pods=9, limited: pods=9';
const SCOPES = 'pods "pull-x" is forbidden: insufficient quota to match these scopes';

const JOB: Job = {
  apiVersion: 'batch/v1',
  kind: 'Job',
  metadata: { name: 'pull', namespace: 'ci', uid: 'job' },
  spec: {
    template: {
      metadata: { labels: { [WORKLOAD_LABEL]: 'image' }, annotations: { 'berth.dev/task': '{}' } },
      spec: { containers: [{ name: 'task', image: 'x' }] },
    },
  },
};

/**
 * Asks about the Job once a second, as a controller does that follows the waits. `answer` returns the API server's answer at a second.
 * Returns the seconds of the dry runs, the Pods in them, and the words at each second.
 */
async function asked(seconds: number, answer: (second: number) => ApiError | undefined, job: Job = JOB) {
  vi.spyOn(Math, 'random').mockReturnValue(0);
  const jobs = { cache: new Store<Job>(logger) };
  const taskPods = { cache: new Store<Pod>(logger, { [TASKS_BY_OWNER]: ownersOfPod }) };
  jobs.cache.put(job);
  const runs: number[] = [];
  const requests: unknown[][] = [];
  let now = 0;
  const client = {
    create: async (...request: unknown[]) => {
      runs.push(now / 1000);
      requests.push(request);
      const refusal = answer(now / 1000);
      if (refusal !== undefined) {
        throw refusal;
      }
    },
  } as unknown as KubeClient;
  const refused = new RefusedPods({ client, jobs, taskPods, clock: () => now });
  const messages: (string | undefined)[] = [];
  const ask = async (): Promise<number | undefined> => {
    const wait = await refused.ask([job]);
    messages.push(refused.messageFor(job));
    return wait;
  };
  while (now <= seconds * 1000) {
    const wait = await ask();
    now += wait ?? Number.POSITIVE_INFINITY;
  }
  return { refused, runs, requests, messages, taskPods, jobs, ask };
}

const quota = () => new ApiError(QUOTA, { status: 403, reason: 'Forbidden' });
const unknown = () => new ApiError(SCOPES, { status: 500, reason: '' });

it('the Pod of a Job that stays without a Pod is checked after a second, and then after growing waits', async () => {
  const { runs, requests, messages } = await asked(200, quota);
  expect(runs).toEqual([1, 11, 22, 44, 88, 148]);
  expect(messages).toEqual([undefined, ...Array.from({ length: 6 }, () => QUOTA)]);
  const [resource, pod, options] = requests[0] ?? [];
  expect(resource).toMatchObject({ kind: 'Pod' });
  expect(options).toEqual({ dryRun: true });
  expect(pod).toEqual({
    metadata: {
      ...JOB.spec.template.metadata,
      name: 'pull-dry-run',
      namespace: 'ci',
      ownerReferences: [{ apiVersion: 'batch/v1', kind: 'Job', name: 'pull', uid: 'job', controller: true }],
    },
    spec: JOB.spec.template.spec,
  });
});

it('an error without a reason is told once it lasts, within 5 s', async () => {
  const { runs, messages } = await asked(5, unknown);
  expect(runs).toEqual([1, 2]);
  expect(messages).toEqual([undefined, undefined, SCOPES]);
  expect((await asked(5, (second) => (second < 2 ? unknown() : undefined))).messages).toEqual([
    undefined,
    undefined,
    undefined,
  ]);
});

it('a webhook that supports no dry run says nothing about the Pod', async () => {
  const message = 'admission webhook "policy.example" does not support dry run';
  const { runs, messages } = await asked(
    20,
    () => new ApiError(message, { status: 400, reason: 'BadRequest' }),
  );
  expect(runs).toEqual([1, 11]);
  expect(messages).toEqual([undefined, undefined, undefined]);
});

it('the words are forgotten when the API server accepts the Pod, when the Pod exists, and when the Job is gone', async () => {
  const later = await asked(12, (second) => (second < 5 ? quota() : undefined));
  expect(later.messages).toEqual([undefined, QUOTA, undefined]);

  const { refused, taskPods, ask } = await asked(1, quota);
  expect(refused.messageFor(JOB)).toBe(QUOTA);
  taskPods.cache.put({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: 'pull-x',
      namespace: 'ci',
      ownerReferences: [{ apiVersion: 'batch/v1', kind: 'Job', name: 'pull', uid: 'job', controller: true }],
    },
    spec: { containers: [] },
  });
  expect(await ask()).toBeUndefined();
  expect(refused.messageFor(JOB)).toBeUndefined();

  const gone = await asked(1, quota);
  gone.jobs.cache.delete('ci/pull');
  expect(gone.refused.messageFor(JOB)).toBeUndefined();
});

it.each([
  ['waits suspended', { ...JOB, spec: { ...JOB.spec, suspend: true } }],
  ['has failed', { ...JOB, status: { conditions: [{ type: 'Failed', status: 'True' as const }] } }],
])('no Pod is checked for a Job that %s', async (_what, job) => {
  expect((await asked(20, quota, job)).runs).toEqual([]);
});
