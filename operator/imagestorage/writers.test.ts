import { expect, it } from 'vitest';
import { TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { TASK_API_VERSION, type StorageTarget } from '../../api/v1alpha1/task.ts';
import type { Job, Pod } from '../../kube/core.ts';
import { writingHosts } from './writers.ts';

const REGISTRY: StorageTarget = { type: 'registry', reference: 'registry.example/berth/team/i:1' };

function jobOf(target: StorageTarget | undefined): Job {
  const image = { source: { type: 'http', url: 'https://images.example/a', sha256: '0' }, format: 'Auto' };
  const task = { apiVersion: TASK_API_VERSION, type: 'import', image, target };
  const metadata = { annotations: { [TASK_ANNOTATION]: JSON.stringify(task) } };
  return { metadata: { name: 'job' }, spec: { template: { metadata, spec: {} } } } as unknown as Job;
}

function podOn(nodeName: string | undefined, phase = 'Pending'): Pod {
  return {
    metadata: { name: `${nodeName}-${phase}` },
    spec: { nodeName },
    status: { phase },
  } as unknown as Pod;
}

it.each<[string, StorageTarget | undefined, Pod[], string[]]>([
  [
    'hosts with an unfinished task, each once',
    REGISTRY,
    [podOn('b'), podOn('a', 'Running'), podOn('b', 'Running')],
    ['a', 'b'],
  ],
  ['no host whose task has ended', REGISTRY, [podOn('a', 'Succeeded'), podOn('b', 'Failed')], []],
  ['no host of a Pod without a host', REGISTRY, [podOn(undefined)], []],
  ['no host of a task that only fetches', undefined, [podOn('a', 'Running')], []],
  ['no host of a folder', { type: 'folder', path: 'team/i' }, [podOn('a', 'Running')], []],
])('the credentials of the image storage are for %s', (_, target, pods, expected) => {
  expect(writingHosts(pods, () => jobOf(target))).toEqual(expected);
});

it('the credentials of the image storage are not for the host of a Pod that no Job made', () => {
  expect(writingHosts([podOn('a')], () => undefined)).toEqual([]);
});
