import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import { IMAGE_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { TaskReport } from '../../api/v1alpha1/task.ts';
import { Store } from '../../kube/cache.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { ContainerState, Job, Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import type { KubeObject, Resource } from '../../kube/objects.ts';
import { parseConfig } from '../config/config.ts';
import { folderKey, removalRecord } from '../image/place.ts';
import { ownersOfPod, TASKS_BY_OWNER } from '../tasks/owner.ts';
import { currentNeeds, observeRemovals, type RemovalSources } from './controller.ts';

const IMAGE = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'Image',
  metadata: { name: 'golden', namespace: 'platform-ci', uid: 'u' },
  spec: { source: { fromVM: { name: 'builder' } } },
};

function holding<T extends KubeObject>(objects: readonly T[]): Informer<T> {
  const cache = new Store<T>(pino({ level: 'silent' }), { [TASKS_BY_OWNER]: ownersOfPod });
  objects.forEach((object) => cache.put(object));
  return { cache } as unknown as Informer<T>;
}

/** Returns the Job of a removal, with a condition of the Job controller if `condition` is given. */
function job(condition?: { type: string; reason?: string; message?: string }): Job {
  const observed = { object: IMAGE, kind: 'Image' as const, config: parseConfig({}, 'test') };
  const place = { type: 'folder' as const, path: 'platform-ci/golden.qcow2' };
  const made = removalRecord(
    {
      ...observed,
      jobs: [],
      origin: undefined,
      vm: () => undefined,
      snapshot: () => undefined,
      deploying: [],
      credentials: [],
      isDedicated: () => false,
      now: 0,
    },
    place,
  );
  const { metadata, spec } = made;
  const conditions = condition === undefined ? [] : [{ ...condition, status: 'True' as const }];
  const named = { ...metadata, name: metadata.name ?? '', uid: 'j' };
  return {
    apiVersion: 'batch/v1',
    kind: 'Job',
    metadata: named,
    spec: { ...spec, suspend: false },
    status: { conditions },
  };
}

function pod(name: string, second: number, terminated: ContainerState['terminated']): Pod {
  const { metadata } = job();
  const creationTimestamp = `2026-01-01T00:00:0${second}Z`;
  const owner = { apiVersion: 'batch/v1', kind: 'Job', name: metadata.name, uid: 'j', controller: true };
  const state = { ...(terminated && { terminated }) };
  const container = { name: 'task', image: '', imageID: '', ready: false, restartCount: 0, state };
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, namespace: 'berth-system', creationTimestamp, ownerReferences: [owner] },
    spec: { containers: [] },
    status: { phase: 'Failed', containerStatuses: [container] },
  };
}

function failed(name: string, second: number, message: string): Pod {
  return pod(name, second, { exitCode: 1, reason: 'ImageFetchFailed', message });
}

function done(report: TaskReport): Pod {
  return pod('done', 9, { exitCode: 0, reason: 'Completed', message: JSON.stringify(report) });
}

function endOf(one: Job, pods: Pod[]) {
  const [images, isos, machines] = [holding([]), holding([]), holding([])];
  const sources = { images, isos, pods: machines, jobs: holding([one]), taskPods: holding(pods) };
  return observeRemovals(sources as unknown as RemovalSources)[0]?.end;
}

describe('a removal', () => {
  it('that failed once goes on, because the Job controller tries it again', () => {
    expect(endOf(job(), [failed('a', 1, 'refused')])).toBeUndefined();
  });

  it('that failed for the last time has the message of that time', () => {
    const over = job({ type: 'Failed', reason: 'BackoffLimitExceeded', message: 'reached the limit' });
    const end = endOf(over, [failed('a', 2, 'away'), failed('b', 1, 'refused')]);
    expect(end).toEqual({ kept: 'ImageFetchFailed: away' });
  });

  it('that no host has started in time has the message of the Job controller', () => {
    const over = job({
      type: 'Failed',
      reason: 'DeadlineExceeded',
      message: 'active longer than its deadline',
    });
    expect(endOf(over, [])).toEqual({ kept: 'DeadlineExceeded: active longer than its deadline' });
  });

  it('has ended when its Job has, with the content that the storage has kept', () => {
    const over = job({ type: 'Complete' });
    expect(endOf(over, [failed('a', 1, 'away'), done({})])).toEqual({ kept: undefined });
    expect(endOf(over, [done({ kept: 'it removes nothing' })])).toEqual({ kept: 'it removes nothing' });
  });

  it('has no result from a Pod that only has the label of its Job', () => {
    const foreign = done({ kept: 'what a host wants' });
    foreign.metadata.labels = { [IMAGE_UID_LABEL]: 'j' };
    foreign.metadata.ownerReferences = [
      { apiVersion: 'v1', kind: 'Node', name: 'mac1', uid: 'n', controller: true },
    ];
    expect(endOf(job({ type: 'Complete' }), [foreign])).toBeUndefined();
  });

  it('has not ended before its result is seen', () => {
    expect(endOf(job({ type: 'Complete' }), [])).toBeUndefined();
  });
});

describe('the content that is needed now', () => {
  /** Client that returns one object in each page. When the next page is read, the objects of the last page are no longer readable. */
  function clientWith(...objects: readonly KubeObject[]): Pick<KubeClient, 'pages'> {
    async function* pages(type: Resource<KubeObject>) {
      for (const object of objects.filter(({ kind }) => kind === type.kind)) {
        const { proxy, revoke } = Proxy.revocable(object, {});
        yield { items: [proxy], resourceVersion: '1' };
        revoke();
      }
    }
    return { pages } as Pick<KubeClient, 'pages'>;
  }

  const needed = (path: string) => ({ type: 'storedFile', path, sha256: 'a'.repeat(64) });

  it('is found in pages, of which none stays in memory', async () => {
    const images = ['a', 'b'].map((name) => ({ ...IMAGE, status: { content: needed(`ci/${name}`) } }));
    const { keys, unknown } = await currentNeeds(clientWith(...images), { jobs: holding<Job>([]) });
    expect([...keys]).toEqual(['a', 'b'].map((name) => folderKey(`ci/${name}`)));
    expect(unknown).toBe(false);
  });

  it('is all content if a Pod of one page cannot be read', async () => {
    const client = clientWith(pod('unreadable', 1, undefined), IMAGE);
    const needs = await currentNeeds(client, { jobs: holding<Job>([]) });
    expect(needs.unknown).toBe(true);
  });
});
