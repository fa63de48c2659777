import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { TASK_API_VERSION, type Task, type TaskReport } from '../../api/v1alpha1/task.ts';
import { TASK_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import { TaskRunner } from './runner.ts';
import { taskStatus } from './status.ts';

const AT_ONCE = 2;
const TASK: Task = { apiVersion: TASK_API_VERSION, type: 'uncache', entry: 'e' };

let directory: string;
let runner: TaskRunner;
/** Work under way, by the uid of its Pod; the test ends it. */
let underWay: Map<string, PromiseWithResolvers<TaskReport>>;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'berth-tasks-'));
  underWay = new Map();
  const work = async (_: Task, { uid }: { uid: string }): Promise<TaskReport> => {
    const end = Promise.withResolvers<TaskReport>();
    underWay.set(uid, end);
    return await end.promise;
  };
  const logger = pino({ level: 'silent' });
  runner = new TaskRunner({ directory, atOnce: AT_ONCE, work, logger, changed: () => undefined });
});

afterEach(async () => {
  for (const uid of ['a', 'b', 'c', 'd']) {
    underWay.get(uid)?.resolve({});
    runner.forget(uid);
  }
  await rm(directory, { recursive: true });
});

function podOf(uid: string, phase?: 'Running'): Pod {
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: uid, namespace: 'ns', uid },
    spec: { containers: [{ name: TASK_CONTAINER, image: 'x' }] },
    ...(phase && { status: { phase } }),
  };
}

function start(...uids: string[]): void {
  for (const uid of uids) {
    runner.start(podOf(uid), `ns/${uid}`, TASK);
  }
}

function kinds(...uids: string[]): (string | undefined)[] {
  return uids.map((uid) => runner.state(uid)?.kind);
}

test('a limited number of tasks runs at once, and the others wait in their order with a reason', async () => {
  start('a', 'b', 'c', 'd');
  await vi.waitFor(() => expect([...underWay.keys()]).toEqual(['a', 'b']));
  expect(kinds('a', 'b', 'c', 'd')).toEqual(['running', 'running', 'waiting', 'waiting']);
  const log = await readFile(join(directory, 'c', 'serial.log'), 'utf8');
  expect(log).toBe('The task uncache waits, because the host does 2 tasks at once\n');
  underWay.get('b')?.resolve({});
  await vi.waitFor(() => expect(kinds('b', 'c', 'd')).toEqual(['succeeded', 'running', 'waiting']));
});

test('a task that fails lets the next one begin', async () => {
  start('a', 'b', 'c');
  await vi.waitFor(() => expect(underWay.size).toBe(AT_ONCE));
  underWay.get('a')?.reject(new Error('no such image'));
  await vi.waitFor(() => expect(kinds('a', 'c')).toEqual(['failed', 'running']));
});

test('a waiting task whose Pod is deleted ends at once; a running one counts until it has ended', async () => {
  start('a', 'b', 'c', 'd');
  runner.abort('c');
  await vi.waitFor(() =>
    expect(runner.state('c')).toMatchObject({ kind: 'failed', message: 'The Pod of the task was deleted' }),
  );
  runner.abort('a');
  await vi.waitFor(() => expect(underWay.size).toBe(AT_ONCE));
  expect(kinds('a', 'b', 'd')).toEqual(['running', 'running', 'waiting']);
});

test('the Pod of a waiting task is Pending with a reason, or Running if it was so before a restart of the agent', () => {
  start('a', 'b', 'c');
  const state = runner.state('c') ?? { kind: 'waiting', message: '' };
  const waiting = {
    reason: 'TaskQueued',
    message: 'The host already does 2 tasks, which is its limit (tasksAtOnce)',
  };
  const now = '2030-01-01T00:00:00Z';
  expect(taskStatus(podOf('c'), state, '127.0.0.1', now)).toMatchObject({
    phase: 'Pending',
    containerStatuses: [{ ready: false, state: { waiting } }],
  });
  expect(taskStatus(podOf('c', 'Running'), state, '127.0.0.1', now).phase).toBe('Running');
});
