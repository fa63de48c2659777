import pino from 'pino';
import { expect, it, vi } from 'vitest';
import { referenceOf } from '../../api/v1alpha1/cachetargets.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { type IndexFunctions, Store } from '../../kube/cache.ts';
import type { Controller } from '../../kube/controller.ts';
import type { Node } from '../../kube/core.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { trimNode } from '../host/observe.ts';
import { enqueueEntries } from './controller.ts';
import { ENTRIES_BY_REFERENCE, type EntrySources } from './observe.ts';

const logger = pino({ level: 'silent' });
const DIGEST = `sha256:${'a'.repeat(64)}`;

function cacheOf<T extends KubeObject>(indexes?: IndexFunctions<T>, transform?: (object: T) => T) {
  return { cache: new Store<T>(logger, indexes, transform) };
}

function entry(name: string, reference: string): ImageCacheEntry {
  const apiVersion = 'berth.dev/v1alpha1';
  return { apiVersion, kind: 'ImageCacheEntry', metadata: { name, uid: name }, spec: { reference } };
}

/**
 * Returns the names of the entries that are enqueued when a host changes the names of its only image from `before` to `after`, and the
 * number of references that are looked up for it.
 */
function changed(before: readonly string[], after: readonly string[]): { found: string[]; lookups: number } {
  const entries = cacheOf<ImageCacheEntry>({ [ENTRIES_BY_REFERENCE]: (object) => [referenceOf(object)] });
  const nodes = cacheOf<Node>({}, trimNode);
  const others = { jobs: cacheOf(), pods: cacheOf(), emulatorPods: cacheOf(), taskPods: cacheOf() };
  const found = new Set<string>();
  const controller = { enqueue: (name: string) => void found.add(name) } as Controller;
  enqueueEntries(controller, { ...others, entries, nodes, images: cacheOf() } as unknown as EntrySources);
  entries.cache.put(entry('guest', 'registry.example/guest:1'));
  entries.cache.put(entry('other', 'registry.example/other:1'));
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

it('reconciles only the entries of images that a host gets or loses', () => {
  const guest = ['registry.example/guest:1', `registry.example/guest@${DIGEST}`];
  expect(enqueued([], guest)).toEqual(['guest']);
  expect(enqueued(guest, [])).toEqual(['guest']);
  expect(enqueued(guest, guest)).toEqual([]);
  expect(enqueued(guest, ['registry.example/guest:1', 'registry.example/guest@sha256:b'])).toEqual(['guest']);
});

it('is not kept busy by a host that lists one image with countless names', () => {
  const names = Array.from({ length: 100_000 }, (_, index) => `n${index}`);
  const { found, lookups } = changed([], ['registry.example/guest:1', ...names]);
  expect(found).toEqual(['guest']);
  expect(lookups).toBeLessThan(1_000);
});
