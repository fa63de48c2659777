import { pino } from 'pino';
import { expect, it } from 'vitest';
import { Store } from '../../kube/cache.ts';
import type { Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import type { Job } from '../../kube/job.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { ENTRY_UID_LABEL, IMAGE_UID_LABEL, jobOf, ownersOf, podsOf, TASKS_BY_OWNER } from './owner.ts';

function holding<T extends KubeObject>(...objects: T[]): Informer<T> {
  const cache = new Store<T>(pino({ level: 'silent' }), { [TASKS_BY_OWNER]: ownersOf });
  objects.forEach((object) => cache.put(object));
  return { cache } as unknown as Informer<T>;
}

/** Returns a Job or Pod with this name that `owner` controls. */
function task(name: string, uid: string, owner?: { name: string; uid: string }, labels = {}): Job & Pod {
  const ownerReferences = owner && [{ apiVersion: 'v1', kind: 'Any', ...owner, controller: true }];
  return {
    metadata: { namespace: 'ci', name, uid, labels, ...(owner && { ownerReferences }) },
  } as unknown as Job & Pod;
}

const JOB = task('pull', 'job', undefined, { [IMAGE_UID_LABEL]: 'image' });

it('tasks are found by the uids of their Image, entry and Job', () => {
  const pod = task('pull-x', 'pod', { name: 'pull', uid: 'job' }, { [ENTRY_UID_LABEL]: 'entry' });
  expect(ownersOf(JOB)).toEqual(['image']);
  expect(ownersOf(pod)).toEqual(['entry', 'job']);
  const { cache } = holding(pod);
  expect([cache.byIndex(TASKS_BY_OWNER, 'entry'), cache.byIndex(TASKS_BY_OWNER, 'job')]).toEqual([
    [pod],
    [pod],
  ]);
});

it('a Pod is of a Job if the Job controller made it, whatever its labels say', () => {
  const own = task('own', 'p1', { name: 'pull', uid: 'job' });
  const mirror = task('mirror', 'p2', { name: 'mac1', uid: 'node' }, { [IMAGE_UID_LABEL]: 'job' });
  expect(podsOf(JOB, holding(own, mirror))).toEqual([own]);
});

it('the Job of a Pod is the one that made it, and none of its name since', () => {
  expect(jobOf(task('a', 'p', { name: 'pull', uid: 'job' }), holding(JOB))).toBe(JOB);
  expect(jobOf(task('a', 'p', { name: 'pull', uid: 'earlier' }), holding(JOB))).toBeUndefined();
  expect(jobOf(task('a', 'p'), holding(JOB))).toBeUndefined();
});
