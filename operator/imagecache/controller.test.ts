import pino from 'pino';
import { expect, it, vi } from 'vitest';
import { digestsOf, contentName } from '../../api/v1alpha1/cachetargets.ts';
import type { ImageCacheEntry, NodeCacheState } from '../../api/v1alpha1/imagecacheentry.ts';
import { CACHE_FINALIZER, HOST_MARK, HOST_VALUE, SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import { type IndexFunctions, Store } from '../../kube/cache.ts';
import { Consistency } from '../../kube/consistency.ts';
import type { Controller } from '../../kube/controller.ts';
import type { Job, Node } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { PODS_BY_NODE, trimNode } from '../host/observe.ts';
import { parseConfig } from '../config/config.ts';
import { TASKS_BY_OWNER } from '../tasks/owner.ts';
import { JOBS_BY_HOST } from '../tasks/placement.ts';
import { type CacheControllerOptions, enqueueEntries, ImageCacheReconciler } from './controller.ts';
import { ENTRIES_BY_DIGEST, ENTRIES_BY_REFERENCE, type EntrySources, keyOfImage } from './observe.ts';

const logger = pino({ level: 'silent' });
const BEGIN = Date.parse('2030-01-01T00:10:00Z');
const END = BEGIN + 4_000;
const DIGEST = `sha256:${'a'.repeat(64)}`;

function cacheOf<T extends KubeObject>(indexes?: IndexFunctions<T>, transform?: (object: T) => T) {
  return { cache: new Store<T>(logger, indexes, transform) };
}

function entry(name: string, reference: string): ImageCacheEntry {
  const apiVersion = 'berth.dev/v1alpha1';
  return {
    apiVersion,
    kind: 'ImageCacheEntry',
    metadata: { name, namespace: 'platform-ci', uid: name },
    spec: { reference },
  };
}

/**
 * Changes the names of a host's only image from `before` to `after`. Returns the names of the entries that are enqueued, and the number of
 * references that are looked up.
 */
function changed(before: readonly string[], after: readonly string[]): { found: string[]; lookups: number } {
  const entries = cacheOf<ImageCacheEntry>({
    [ENTRIES_BY_REFERENCE]: (object) => [keyOfImage(object)],
    [ENTRIES_BY_DIGEST]: digestsOf,
  });
  const nodes = cacheOf<Node>({}, trimNode);
  const namespaces = cacheOf();
  const jobs = cacheOf<Job>({ [JOBS_BY_HOST]: () => [] });
  const others = { jobs, namespaces, pods: cacheOf(), emulatorPods: cacheOf(), taskPods: cacheOf() };
  const found = new Set<string>();
  const controller = { enqueue: (name: string) => void found.add(name) } as Controller;
  enqueueEntries(controller, { ...others, entries, nodes, images: cacheOf() } as unknown as EntrySources);
  entries.cache.put({ ...entry('guest', 'registry.example/guest:1'), status: { digest: DIGEST } });
  entries.cache.put({ ...entry('other', 'registry.example/other:1'), status: { digest: 'sha256:other' } });
  const report = (resourceVersion: string, names: readonly string[]): void => {
    const metadata = { name: 'host', uid: 'host', resourceVersion };
    const status = { images: [{ names: [...names] }] };
    nodes.cache.put({ apiVersion: 'v1', kind: 'Node', metadata, status });
  };
  report('1', before);
  found.clear();
  const byIndex = vi.spyOn(entries.cache, 'byIndex');
  report('2', after);
  return { found: [...found], lookups: byIndex.mock.calls.length };
}

function enqueued(before: readonly string[], after: readonly string[]): string[] {
  return changed(before, after).found;
}

/** Reconciles an entry for one host while the API server refuses its Job. Returns what the status then says about the host. */
async function rowWhile(refusal: ApiError): Promise<NodeCacheState | undefined> {
  const known = entry('guest', 'registry.example/guest:1');
  const queuedAt = '2030-01-01T00:00:00.000Z';
  let now = BEGIN;
  let guest: ImageCacheEntry = {
    ...known,
    metadata: { ...known.metadata, finalizers: [CACHE_FINALIZER] },
    spec: { ...known.spec, targets: { all: true } },
    status: { nodes: [{ node: 'host', state: 'Queued', queuedAt }], holders: ['host'] },
  };
  const metadata = { name: 'host', uid: 'host', labels: { [HOST_MARK]: HOST_VALUE } };
  const status = {
    allocatable: { [SLOT_RESOURCE]: '4' },
    conditions: [{ type: 'Ready', status: 'True' as const }],
  };
  const indexes = {
    [ENTRIES_BY_REFERENCE]: (object: ImageCacheEntry) => [keyOfImage(object)],
    ...Object.fromEntries([TASKS_BY_OWNER, PODS_BY_NODE, JOBS_BY_HOST].map((name) => [name, () => []])),
  };
  const informer = () => ({
    ...cacheOf<ImageCacheEntry>(indexes),
    readSince: 0,
    cutIfStale: () => undefined,
  });
  const options = {
    entries: informer(),
    nodes: cacheOf<Node>(),
    namespaces: cacheOf(),
    images: informer(),
    jobs: informer(),
    taskPods: informer(),
    pods: informer(),
    emulatorPods: informer(),
    client: {
      get: async () => {
        throw new ApiError('no ConfigMap', { status: 404, reason: 'NotFound' });
      },
      create: async () => {
        throw refusal;
      },
      mergePatch: async (_type: unknown, _ref: unknown, patch: ImageCacheEntry) => {
        guest = { ...guest, status: { ...guest.status, ...patch.status } };
        return guest;
      },
    },
    consistency: new Consistency(),
    recorder: { event: () => undefined },
    metrics: { ended: () => undefined },
    config: parseConfig({}, 'test'),
    clock: () => now,
  };
  options.nodes.cache.put({ apiVersion: 'v1', kind: 'Node', metadata, status });
  const reconciler = new ImageCacheReconciler(options as unknown as CacheControllerOptions);
  for (; now < END; now += 1_000) {
    const resourceVersion = String(now);
    options.entries.cache.put({ ...guest, metadata: { ...guest.metadata, resourceVersion } });
    await expect(reconciler.reconcile('platform-ci/guest')).rejects.toThrow(refusal);
  }
  return guest.status?.nodes?.[0];
}

it.each([
  [403, 'jobs.batch "x" is forbidden: exceeded quota: small'],
  [400, 'admission webhook "policies.example" denied the request: no Jobs here'],
  [422, 'jobs.batch "x" is forbidden: ValidatingAdmissionPolicy … denied request'],
  [500, 'jobs.batch "x" is forbidden: no reason at all'],
])('tells why a host has no Job if the API server refuses it with status %i', async (status, message) => {
  const row = await rowWhile(new ApiError(message, { status, reason: '' }));
  expect(row).toMatchObject({ state: 'Queued', message: `JobRefused: ${message}` });
});

it('tells once by an Event that the API server refuses the removal of the finalizer', async () => {
  const message = 'Internal error occurred: failed calling webhook "policy.example": connection refused';
  const failure = new ApiError(message, { status: 500, reason: 'InternalError' });
  const indexes = {
    [ENTRIES_BY_REFERENCE]: (object: ImageCacheEntry) => [keyOfImage(object)],
    [TASKS_BY_OWNER]: () => [],
  };
  const informer = () => ({
    ...cacheOf<ImageCacheEntry>(indexes),
    readSince: 0,
    cutIfStale: () => undefined,
  });
  const events: object[] = [];
  const options = {
    entries: informer(),
    nodes: cacheOf<Node>(),
    namespaces: cacheOf(),
    images: informer(),
    jobs: informer(),
    taskPods: informer(),
    client: {
      mergePatch: async (_type: unknown, _ref: unknown, patch: Partial<ImageCacheEntry>) => {
        if (patch.status === undefined) {
          throw failure;
        }
        return entry('guest', 'registry.example/guest:1');
      },
    },
    consistency: new Consistency(),
    recorder: { event: (_entry: ImageCacheEntry, event: object) => events.push(event) },
    metrics: { ended: () => undefined },
    config: parseConfig({}, 'test'),
    clock: () => BEGIN,
  };
  const { metadata, ...known } = entry('guest', 'registry.example/guest:1');
  const deletionTimestamp = '2030-01-01T00:00:00Z';
  const deleted = { ...metadata, deletionTimestamp, finalizers: [CACHE_FINALIZER], resourceVersion: '1' };
  options.entries.cache.put({ ...known, metadata: deleted });
  const reconciler = new ImageCacheReconciler(options as unknown as CacheControllerOptions);
  await expect(reconciler.reconcile('platform-ci/guest')).rejects.toThrow(failure);
  await expect(reconciler.reconcile('platform-ci/guest')).rejects.toThrow(failure);
  const reported = `The API server refused a change of the ImageCacheEntry or its Job: ${message}`;
  expect(events).toEqual([{ type: 'Warning', reason: 'JobRefused', action: 'Changing', message: reported }]);
});

it('reconciles only the entries of images that a host gets or loses', () => {
  const guest = ['registry.example/guest:1', contentName(DIGEST)];
  const found = ['platform-ci/guest'];
  expect(enqueued([], guest)).toEqual(found);
  expect(enqueued(guest, [])).toEqual(found);
  expect(enqueued(guest, guest)).toEqual([]);
  expect(enqueued(guest, ['registry.example/guest:1', contentName('sha256:b')])).toEqual(found);
});

it('is not kept busy by a host that lists one image with countless names', () => {
  const names = Array.from({ length: 100_000 }, (_, index) => contentName(`n${index}`));
  const { found, lookups } = changed([], [contentName(DIGEST), ...names]);
  expect(found).toEqual(['platform-ci/guest']);
  expect(lookups).toBeLessThan(1_000);
});
