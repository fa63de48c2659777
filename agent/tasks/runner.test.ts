import { mkdir, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { TASK_API_VERSION, type Task, type TaskReport } from '../../api/v1alpha1/task.ts';
import { TASK_CONTAINER } from '../../api/v1alpha1/names.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import { keyOf } from '../../kube/objects.ts';
import { type TaskContext, TaskRunner, taskStatus } from './runner.ts';

const AT_ONCE = 2;
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };
const TASK: Task = { apiVersion: TASK_API_VERSION, type: 'uncache', entry: 'e', namespace: 'team' };

let directory: string;
let runner: TaskRunner;
/** Tasks that run. The key is the uid of the task's Pod. The test ends each task. */
let underWay: Map<string, PromiseWithResolvers<TaskReport>>;
/** Uids of Pods whose tasks take one more caller. */
let takers: Set<string>;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'berth-tasks-'));
  underWay = new Map();
  takers = new Set();
  runner = runnerOf(AT_ONCE);
});

function runnerOf(atOnce: number): TaskRunner {
  const work = async (_: Task, { uid, takeCallers }: TaskContext): Promise<TaskReport> => {
    const end = Promise.withResolvers<TaskReport>();
    takeCallers(() => takers.delete(uid));
    underWay.set(uid, end);
    return await end.promise;
  };
  const logger = pino({ level: 'silent' });
  return new TaskRunner({ directory, atOnce, work, logger, changed: () => undefined });
}

afterEach(async () => {
  for (const uid of ['a', 'b', 'c', 'd', 'e']) {
    underWay.get(uid)?.resolve({});
    runner.forget(uid);
  }
  await rm(directory, { recursive: true, maxRetries: 10 });
});

/** Returns a Pod. By default each Pod has a namespace of its own, so only the limit of the host applies. */
function podOf(
  uid: string,
  { phase, namespace = `ns-${uid}` }: { phase?: 'Running'; namespace?: string | undefined } = {},
): Pod {
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: uid, namespace, uid },
    spec: { containers: [{ name: TASK_CONTAINER, image: 'x' }] },
    ...(phase && { status: { phase } }),
  };
}

function startIn(namespace: string | undefined, ...uids: string[]): void {
  for (const uid of uids) {
    const pod = podOf(uid, { namespace });
    runner.start(pod, keyOf(pod), TASK);
  }
}

function start(...uids: string[]): void {
  startIn(undefined, ...uids);
}

function kinds(...uids: string[]): (string | undefined)[] {
  return uids.map((uid) => runner.state(uid)?.kind);
}

test('a limited number of tasks runs at once, and the others wait in their order with a reason', async () => {
  start('a', 'b', 'c', 'd');
  await vi.waitFor(() => expect([...underWay.keys()]).toEqual(['a', 'b']), WAIT);
  expect(kinds('a', 'b', 'c', 'd')).toEqual(['running', 'running', 'waiting', 'waiting']);
  const log = await readFile(join(directory, 'c', 'serial.log'), 'utf8');
  expect(log).toBe(
    'The task uncache is waiting. The host is already doing 2 tasks, which is its limit (tasksAtOnce)\n',
  );
  underWay.get('b')?.resolve({});
  await vi.waitFor(() => expect(kinds('b', 'c', 'd')).toEqual(['succeeded', 'running', 'waiting']), WAIT);
});

test('a namespace leaves one place of the host to others, and its own tasks wait in their order', async () => {
  startIn('many', 'a', 'b', 'c', 'e');
  startIn('other', 'd');
  await vi.waitFor(() => expect([...underWay.keys()]).toEqual(['a', 'd']), WAIT);
  expect(runner.state('b')).toEqual({
    kind: 'waiting',
    message: 'The host already has 1 task of namespace many, which is the limit for one namespace',
  });
  underWay.get('d')?.resolve({});
  await vi.waitFor(() => expect(kinds('d')).toEqual(['succeeded']), WAIT);
  expect(kinds('a', 'b', 'c')).toEqual(['running', 'waiting', 'waiting']);
  runner.abort('b');
  underWay.get('a')?.resolve({});
  const ends = ['succeeded', 'failed', 'running', 'waiting'];
  await vi.waitFor(() => expect(kinds('a', 'b', 'c', 'e')).toEqual(ends), WAIT);
});

test('on a host that does one task at once, each waiting task has a reason', async () => {
  runner = runnerOf(1);
  startIn('one', 'a', 'b');
  startIn('other', 'c');
  await vi.waitFor(() => expect(kinds('a', 'b', 'c')).toEqual(['running', 'waiting', 'waiting']), WAIT);
  expect([runner.state('b'), runner.state('c')]).toEqual([
    {
      kind: 'waiting',
      message: 'The host already has 1 task of namespace one, which is the limit for one namespace',
    },
    { kind: 'waiting', message: 'The host is already doing 1 task, which is its limit (tasksAtOnce)' },
  ]);
});

test('a task that fails lets the next one begin', async () => {
  start('a', 'b', 'c');
  await vi.waitFor(() => expect(underWay.size).toBe(AT_ONCE), WAIT);
  underWay.get('a')?.reject(new Error('no such image'));
  await vi.waitFor(() => expect(kinds('a', 'c')).toEqual(['failed', 'running']), WAIT);
});

test('the log of an ended task can still be read after a restart of the agent, until its Pod is deleted', async () => {
  start('a');
  await vi.waitFor(() => expect(underWay.has('a')).toBe(true), WAIT);
  underWay.get('a')?.reject(new Error('no such image'));
  await vi.waitFor(() => expect(kinds('a')).toEqual(['failed']), WAIT);
  runner = runnerOf(AT_ONCE);
  runner.sweep(new Set(['a']));
  const log = Readable.from(runner.log('a')?.read({ follow: true }) ?? []);
  expect(await text(log)).toMatch(/^The task uncache begins\n.*no such image\n$/);
  runner.forget('a');
  expect(runner.log('a')).toBeUndefined();
});

test('a waiting task whose Pod is deleted ends at once; a running one counts until it has ended', async () => {
  start('a', 'b', 'c', 'd', 'e');
  runner.abort('c');
  const message = 'The Pod of the task was deleted';
  await vi.waitFor(() => expect(runner.state('c')).toMatchObject({ kind: 'failed', message }), WAIT);
  runner.abort('a');
  await vi.waitFor(() => expect(underWay.size).toBe(AT_ONCE), WAIT);
  expect(kinds('a', 'b', 'd')).toEqual(['running', 'running', 'waiting']);
  underWay.get('b')?.resolve({});
  await vi.waitFor(() => expect(kinds('b', 'd')).toEqual(['succeeded', 'running']), WAIT);
  expect(kinds('a', 'e')).toEqual(['running', 'waiting']);
  underWay.get('a')?.resolve({});
  await vi.waitFor(() => expect(kinds('a', 'e')).toEqual(['succeeded', 'running']), WAIT);
});

test('the folder of a task that an earlier run of the agent began is removed with its Pod', async () => {
  await mkdir(join(directory, 'earlier'));
  start('a');
  runner.forget('earlier');
  expect(await readdir(directory)).toEqual(['a']);
});

test('the Pod of a waiting task is Pending with a reason, or Running if it was so before a restart of the agent', () => {
  start('a', 'b', 'c');
  const state = runner.state('c') ?? { kind: 'waiting', message: '' };
  const waiting = {
    reason: 'TaskQueued',
    message: 'The host is already doing 2 tasks, which is its limit (tasksAtOnce)',
  };
  const now = '2030-01-01T00:00:00Z';
  expect(taskStatus(podOf('c'), state, '127.0.0.1', now)).toMatchObject({
    phase: 'Pending',
    containerStatuses: [{ ready: false, state: { waiting } }],
  });
  expect(taskStatus(podOf('c', { phase: 'Running' }), state, '127.0.0.1', now).phase).toBe('Running');
});

test('a task ends, and the next one begins, although nothing can be written to its log', async () => {
  start('a', 'b', 'c');
  await vi.waitFor(() => expect(underWay.size).toBe(AT_ONCE), WAIT);
  for (const uid of ['a', 'b', 'c']) {
    // The runner may write into the folder at this moment.
    await rm(join(directory, uid), { recursive: true, maxRetries: 10 });
  }
  underWay.get('a')?.reject(new Error('the disk is full'));
  underWay.get('b')?.resolve({});
  await vi.waitFor(() => expect(kinds('a', 'b', 'c')).toEqual(['failed', 'succeeded', 'running']), WAIT);
});

test('a task whose server asks for a wait reports it to the operator, at most an hour', async () => {
  start('a', 'b');
  await vi.waitFor(() => expect(underWay.size).toBe(AT_ONCE), WAIT);
  for (const [uid, asked, retryAfterSeconds] of [
    ['a', 1_800_100, 1_801],
    ['b', 86_400_000, 3_600],
  ] as const) {
    const busy = new ReasonedError('ImageFetchFailed', 'busy', { retryAfterMilliseconds: asked });
    underWay.get(uid)?.reject(busy);
    await vi.waitFor(() => expect(kinds(uid)).toEqual(['failed']), WAIT);
    const state = runner.state(uid) ?? { kind: 'waiting', message: '' };
    const { conditions = [] } = taskStatus(podOf(uid), state, '192.0.2.1', '');
    const reported = conditions.find(({ type }) => type === 'berth.dev/Task');
    expect(JSON.parse(reported?.message ?? '')).toEqual({ retryAfterSeconds });
  }
});

test('a task that takes callers takes them once it has begun, also after it has failed', async () => {
  takers = new Set(['a', 'b', 'c']);
  const takes = (uid: string): boolean => runner.connect(uid, new Socket());
  start('a', 'b', 'c');
  await vi.waitFor(() => expect(underWay.size).toBe(AT_ONCE), WAIT);
  expect([takes('a'), takes('a'), takes('c'), takes('d')]).toEqual([true, false, false, false]);
  underWay.get('b')?.reject(new Error('no room'));
  await vi.waitFor(() => expect(kinds('b')).toEqual(['failed']), WAIT);
  expect([takes('b'), takes('b')]).toEqual([true, false]);
});
