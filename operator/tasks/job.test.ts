import { expect, it } from 'vitest';
import {
  DEDICATED_KEY,
  HOST_KEY,
  NAT_TAINT,
  SLOT_RESOURCE,
  TASK_ANNOTATION,
  TASK_CONTAINER,
  WORKLOAD_LABEL,
} from '../../api/v1alpha1/names.ts';
import { TASK_API_VERSION, type Task, type TaskImage } from '../../api/v1alpha1/task.ts';
import { referencesOf, taskJob, type TaskJobOptions, taskOf } from './job.ts';

const REFERENCE = 'registry.example/team/disk:1';
const IMAGE: TaskImage = { source: { type: 'registry', reference: REFERENCE }, format: 'Auto' };
const TASK: Task = {
  apiVersion: TASK_API_VERSION,
  type: 'cache',
  entry: 'fast',
  image: IMAGE,
  refresh: false,
};

function jobWith(change: Partial<TaskJobOptions> = {}) {
  return taskJob({
    metadata: { name: 'cache-1', namespace: 'platform-ci', labels: { kept: 'yes' } },
    workload: 'cache',
    task: TASK,
    containerImage: REFERENCE,
    pullSecrets: [],
    placement: { dedicatedTo: 'platform-ci' },
    takesSlot: false,
    activeDeadlineSeconds: 60,
    ttlSecondsAfterFinished: 120,
    priorityClassName: 'berth-tasks',
    ...change,
  });
}

function podWith(change: Partial<TaskJobOptions>) {
  return jobWith(change).spec.template.spec;
}

it('a task states small requests and limits, so that no quota for them and no LimitRange refuses its Pod', () => {
  const small = { cpu: '10m', memory: '16Mi' };
  const counted = { ...small, [SLOT_RESOURCE]: '1' };
  const resourcesOf = (takesSlot: boolean) => podWith({ takesSlot }).containers[0]?.resources;
  expect(resourcesOf(false)).toEqual({ requests: small, limits: small });
  expect(resourcesOf(true)).toEqual({ requests: counted, limits: counted });
  const { memory } = podWith({ machineBytes: 2n ** 30n }).containers[0]?.resources?.requests ?? {};
  expect(memory).toBe('1040Mi');
});

it('the Job and its Pod are found by the workload, the Pod has the task, and the operator decides about retries', () => {
  const { metadata, spec } = jobWith({ annotations: { extra: 'text' } });
  const labels = { kept: 'yes', [WORKLOAD_LABEL]: 'cache' };
  expect(metadata).toEqual({ name: 'cache-1', namespace: 'platform-ci', labels });
  expect(spec).toMatchObject({ backoffLimit: 0, activeDeadlineSeconds: 60, ttlSecondsAfterFinished: 120 });
  const { [TASK_ANNOTATION]: task = '', ...others } = spec.template.metadata?.annotations ?? {};
  expect([JSON.parse(task), others]).toEqual([TASK, { extra: 'text' }]);
  expect(spec.template.metadata?.labels).toEqual(labels);
});

it('the Pod of a task runs once, without access to the API, with the given image and secrets', () => {
  const pod = podWith({ pullSecrets: ['one', 'two'] });
  expect(pod).toMatchObject({
    restartPolicy: 'Never',
    automountServiceAccountToken: false,
    enableServiceLinks: false,
    priorityClassName: 'berth-tasks',
    imagePullSecrets: [{ name: 'one' }, { name: 'two' }],
  });
  expect(pod.containers).toMatchObject([
    { name: TASK_CONTAINER, image: REFERENCE, imagePullPolicy: 'IfNotPresent' },
  ]);
  expect(podWith({})).not.toHaveProperty('imagePullSecrets');
});

it.each<[string, TaskJobOptions['tolerates'], string[]]>([
  ['on hosts with broken NAT, which it does not need', [], []],
  ['also on cordoned hosts', ['cordon'], ['node.kubernetes.io/unschedulable']],
  ['also on hosts with a full disk', ['fullDisk'], ['node.kubernetes.io/disk-pressure']],
])('a task begins %s', (_, tolerates = [], keys) => {
  const found = podWith({ tolerates }).tolerations?.map(({ key, effect }) => [key, effect]);
  const expected = [HOST_KEY, DEDICATED_KEY, NAT_TAINT, ...keys];
  expect(found).toEqual(expected.map((key) => [key, 'NoSchedule']));
});

it('the task of a Job is read again, and one that cannot be read is none', () => {
  const made = jobWith();
  const job = { ...made, apiVersion: 'batch/v1', kind: 'Job' } as Parameters<typeof taskOf>[0];
  expect(taskOf(job)).toEqual(TASK);
  const { template } = job.spec;
  const broken = { ...template, metadata: { annotations: { [TASK_ANNOTATION]: '{"type":"cache"}' } } };
  expect(taskOf({ ...job, spec: { ...job.spec, template: broken } })).toBeUndefined();
});

it('a task names the references for which its host needs credentials', () => {
  expect(referencesOf(TASK)).toEqual([REFERENCE]);
  const reference = 'registry.example/out:1';
  const push = { apiVersion: TASK_API_VERSION, type: 'push', image: IMAGE, reference } as const;
  expect(referencesOf(push)).toEqual([REFERENCE, reference]);
  const uncache = {
    apiVersion: TASK_API_VERSION,
    type: 'uncache',
    entry: 'fast',
    namespace: 'team',
  } as const;
  expect(referencesOf(uncache)).toEqual([]);
});
