import { expect, test, vi } from 'vitest';
import { TASK_API_VERSION, type Task } from '../../api/v1alpha1/task.ts';
import { Keyring } from '../images/oci/credentials.ts';
import type { PublishingOptions } from '../images/publisher.ts';
import type { AskedImage } from '../images/store.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import type { TaskContext } from './runner.ts';
import { type TaskHost, taskWork } from './work.ts';

const POD = { metadata: { namespace: 'team' } } as TaskContext['pod'];

const INDEX = `sha256:${'1'.repeat(64)}`;
const MANIFEST = `sha256:${'2'.repeat(64)}`;

/** Does an import task without a target. The store resolves the reference to `named`. Returns the reference in the report of the task. */
async function imported(source: MachineImageSource, named: string | undefined): Promise<string | undefined> {
  const ensure = async (_: MachineImageSource, { onResolved }: AskedImage) => {
    if (named !== undefined) {
      onResolved?.(named);
    }
    return { path: import.meta.filename, digest: MANIFEST, format: 'raw', virtualSizeBytes: 512 };
  };
  const images = { ensure, cloned: vi.fn(), release: vi.fn() };
  const host = { images, keyring: async () => Keyring.parse([]) } as unknown as TaskHost;
  const context = { uid: 'u', pod: POD, log: vi.fn(), progress: vi.fn() } as unknown as TaskContext;
  const task: Task = { apiVersion: TASK_API_VERSION, type: 'import', image: { source, format: 'Auto' } };
  return (await taskWork(host)(task, context)).reference;
}

test.each([
  ['an index', INDEX],
  ['the image itself', MANIFEST],
])('an import without a target reports the digest that the tag names now, here of %s', async (_, named) => {
  const reference = 'registry.example/team/disk:1';
  const pinned = `registry.example/team/disk@${named}`;
  expect(await imported({ type: 'registry', reference }, pinned)).toBe(pinned);
});

test('an import without a target reports no reference if the image is from no registry', async () => {
  expect(await imported({ type: 'sharedFile', path: 'disk' }, undefined)).toBeUndefined();
});

test('a push that takes long delays no removal of its image from the cache', async () => {
  const calls: string[] = [];
  const base = { path: import.meta.filename, digest: MANIFEST, format: 'raw', virtualSizeBytes: 512 };
  const images = {
    ensure: async () => base,
    cloned: (holder: string) => calls.push(`no longer awaited: ${holder}`),
    release: (holder: string) => calls.push(`no longer needed: ${holder}`),
  };
  const publisher = { push: async () => ({ reference: `pushed ${calls.push('push')}` }) };
  const host = { images, publisher, keyring: async () => Keyring.parse([]) } as unknown as TaskHost;
  const context = { uid: 'u', pod: POD, log: vi.fn(), progress: vi.fn() } as unknown as TaskContext;
  const reference = 'registry.example/team/disk:1';
  const image = { source: { type: 'registry', reference }, format: 'Auto' } as const;
  await taskWork(host)({ apiVersion: TASK_API_VERSION, type: 'push', image, reference }, context);
  expect(calls).toEqual(['no longer awaited: task/u', 'push', 'no longer needed: task/u']);
});

test('a copy of the disk of a VM that is not on this host fails because there is no machine', async () => {
  const host = { machineOf: () => undefined } as unknown as TaskHost;
  const vm = { namespace: 'platform-ci', name: 'builder', uid: 'v' };
  const target = { type: 'folder', path: 'platform-ci/golden.qcow2' } as const;
  const copied = taskWork(host)({ apiVersion: TASK_API_VERSION, type: 'save', vm, target }, {
    pod: POD,
  } as TaskContext);
  const message = 'VM platform-ci/builder is not on this host';
  await expect(copied).rejects.toMatchObject({ reason: 'NoMachine', message });
});

test.each([
  ['a push', 'push', [25, 50, 75, 100]],
  ['an import that stores the image', 'import', [25, 50, 75, 100]],
  ['an import that only fetches the image', 'fetch', [50, 100]],
] as const)('the progress of %s never goes back', async (_, type, expected) => {
  const percents: number[] = [];
  const report = (onProgress: (percent: number) => void) =>
    [50, 100].forEach((percent) => onProgress(percent));
  const ensure = async (_: MachineImageSource, { onProgress }: AskedImage) => {
    report(onProgress);
    return { path: import.meta.filename, digest: MANIFEST, format: 'raw', virtualSizeBytes: 512 };
  };
  const publish = async (_to: unknown, _disk: unknown, { onProgress }: PublishingOptions) => {
    report(onProgress);
    return {};
  };
  const images = { ensure, cloned: vi.fn(), release: vi.fn() };
  const publisher = { push: publish, store: publish };
  const host = { images, publisher, keyring: async () => Keyring.parse([]) } as unknown as TaskHost;
  const context = { uid: 'u', pod: POD, log: vi.fn(), progress: (percent: number) => percents.push(percent) };
  const reference = 'registry.example/team/disk:1';
  const image = { source: { type: 'registry', reference }, format: 'Auto' } as const;
  const target = type === 'import' ? { type: 'folder' as const, path: 'team/disk.qcow2' } : undefined;
  const apiVersion = TASK_API_VERSION;
  const task: Task =
    type === 'push' ? { apiVersion, type, image, reference } : { apiVersion, type: 'import', image, target };
  await taskWork(host)(task, context as unknown as TaskContext);
  expect(percents).toEqual(expected);
});
