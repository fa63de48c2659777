import { describe, expect, it } from 'vitest';
import { TASK_API_VERSION, type Task, type TaskReport } from '../../api/v1alpha1/task.ts';
import { reportFault } from './report.ts';

const apiVersion = TASK_API_VERSION;
const [A, B] = ['a', 'b'].map((digit) => `sha256:${digit.repeat(64)}`) as [string, string];
const HEX = A.replace('sha256:', '');
const STORED = 'storage.example/berth/platform-ci/golden';

function imported(source: object, target?: object): Task {
  return { apiVersion, type: 'import', image: { source, format: 'Auto' }, target } as Task;
}

const tasks = {
  tag: imported({ type: 'registry', reference: 'registry.example/team/disk:1' }),
  pin: imported({ type: 'registry', reference: `registry.example/team/disk:1@${A}` }),
  hub: imported({ type: 'registry', reference: 'alpine' }),
  http: imported({ type: 'http', url: 'https://images.example/disk', sha256: HEX }),
  file: imported({ type: 'sharedFile', path: 'disk.raw' }),
  kept: imported({ type: 'http', url: 'https://x.example/d', sha256: HEX }, { type: 'folder', path: 'ci/g' }),
  saved: {
    apiVersion,
    type: 'save',
    vm: { namespace: 'platform-ci', name: 'builder', uid: 'v' },
    target: { type: 'registry', reference: `${STORED}:0123456789abcdef` },
  } as Task,
  received: {
    apiVersion,
    type: 'receive',
    limitBytes: 2 ** 30,
    format: 'Auto',
    target: { type: 'registry', reference: `${STORED}:0123456789abcdef` },
  } as Task,
  pushed: {
    apiVersion,
    type: 'push',
    image: { source: { type: 'storedArtifact', reference: `${STORED}@${A}` }, format: 'Auto' },
    reference: 'registry.example/out:1',
  } as Task,
};

type Case = [keyof typeof tasks, TaskReport];

describe('a report', () => {
  it.each<Case>([
    ['tag', { digest: B, reference: `registry.example/team/disk@${A}`, sizeBytes: 2 ** 30, storageBytes: 0 }],
    ['pin', { digest: B, reference: `registry.example/team/disk@${A}` }],
    ['hub', { digest: B, reference: `docker.io/library/alpine@${B}` }],
    ['http', { digest: A }],
    ['file', { digest: B }],
    ['kept', { digest: B }],
    ['saved', { digest: A, reference: `${STORED}@${A}`, consistency: 'Crash' }],
    ['received', { digest: A, reference: `${STORED}@${A}` }],
    ['pushed', { digest: A, reference: `registry.example/out@${A}` }],
  ])('of %s with the values of an honest host fits', (name, report) => {
    expect(reportFault(tasks[name], report)).toBeUndefined();
  });

  it.each<Case>([
    ['tag', {}],
    ['tag', { digest: A }],
    ['tag', { digest: 'newest', reference: `registry.example/team/disk@${A}` }],
    ['tag', { digest: A, reference: 'registry.example/team/disk:1' }],
    ['tag', { digest: A, reference: `registry.example/team/disk:1@${A}` }],
    ['tag', { digest: A, reference: `registry.example/team/disk@sha512:${'a'.repeat(128)}` }],
    ['tag', { digest: A, reference: `registry.example/team/disk@${A}@${A}` }],
    ['tag', { digest: A, reference: `registry.example/team/disk2@${A}` }],
    ['tag', { digest: A, reference: `registry.example/team@${A}` }],
    ['tag', { digest: A, reference: `evil.example/team/disk@${A}` }],
    ['tag', { digest: A, reference: `registry.example:443/team/disk@${A}` }],
    ['pin', { digest: A, reference: `registry.example/team/disk@${B}` }],
    ['http', { digest: B }],
    ['http', { digest: A, reference: `evil.example/team/disk@${A}` }],
    ['file', { digest: 'sha256:short' }],
    ['file', { digest: A, reference: 'other.raw' }],
    ['kept', {}],
    ['kept', { digest: A, reference: 'another/tenant.qcow2' }],
    ['saved', { digest: A, reference: `storage.example/berth/platform-other/golden@${A}` }],
    ['saved', { digest: A, reference: `${STORED}:0123456789abcdef` }],
    ['saved', { digest: B, reference: `${STORED}@${A}` }],
    ['saved', { reference: `${STORED}@${A}` }],
    ['received', { digest: A, reference: `storage.example/berth/platform-other/golden@${A}` }],
    ['received', { digest: A, reference: `${STORED}@${A}`, sizeBytes: -1 }],
    ['pushed', { digest: A }],
    ['pushed', { digest: A, reference: `registry.example/elsewhere@${A}` }],
    ['pushed', { digest: B, reference: `registry.example/out@${A}` }],
    ['pushed', { digest: A, reference: `registry.example/out@${A}`, sizeBytes: -1 }],
    ['http', { digest: A, storageBytes: 2 ** 52 }],
  ])('of %s with %j does not', (name, report) => {
    expect(reportFault(tasks[name], report)).toMatch(/^reported /);
  });

  it('of a task that cannot be read does not fit', () => {
    expect(reportFault(undefined, { digest: A })).toBeDefined();
  });
});
