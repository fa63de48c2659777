import { pino } from 'pino';
import { expect, it } from 'vitest';
import { IMAGE_UID_LABEL } from '../../api/v1alpha1/names.ts';
import { Store } from '../../kube/cache.ts';
import type { Job, Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { ENTRY_UID_LABEL, jobOf, ownersOf, ownersOfPod, podsOf, TASKS_BY_OWNER } from './owner.ts';

function holding(...objects: (Job & Pod)[]): Informer<Job & Pod> {
  const cache = new Store<Job & Pod>(pino({ level: 'silent' }), { [TASKS_BY_OWNER]: ownersOfPod });
  objects.forEach((object) => cache.put(object));
  return { cache } as unknown as Informer<Job & Pod>;
}

/** Returns a Job or Pod with this name that `owner` controls. */
function task(name: string, uid: string, owner?: { name: string; uid: string }, labels = {}): Job & Pod {
  const ownerReferences = owner && [{ apiVersion: 'v1', kind: 'Any', ...owner, controller: true }];
  return {
    metadata: { namespace: 'ci', name, uid, labels, ...(owner && { ownerReferences }) },
  } as unknown as Job & Pod;
}

const JOB = task('pull', 'job', undefined, { [IMAGE_UID_LABEL]: 'image' });

it('a Job belongs to an Image or entry by its labels, and a Pod also by its Job', () => {
  const pod = task('pull-x', 'pod', { name: 'pull', uid: 'job' }, { [ENTRY_UID_LABEL]: 'entry' });
  expect(ownersOf(JOB)).toEqual(['image']);
  expect(ownersOfPod(pod)).toEqual(['entry', 'ci/job']);
});

it('an owner reference does not make a Job belong to the Image that it names', () => {
  const forged = task('forged', 'j2', { name: 'golden', uid: 'image' }, { [IMAGE_UID_LABEL]: 'own' });
  expect(ownersOf(forged)).toEqual(['own']);
});

it('a Pod of another namespace does not belong to the Job in its owner reference', () => {
  const forged = task('forged', 'p3', { name: 'pull', uid: 'job' });
  const elsewhere = { ...forged, metadata: { ...forged.metadata, namespace: 'other' } };
  expect(podsOf(JOB, holding(elsewhere))).toEqual([]);
});

it('a Pod belongs to a Job if the Job controller made it, with any labels', () => {
  const own = task('own', 'p1', { name: 'pull', uid: 'job' });
  const mirror = task('mirror', 'p2', { name: 'mac1', uid: 'node' }, { [IMAGE_UID_LABEL]: 'job' });
  expect(podsOf(JOB, holding(own, mirror))).toEqual([own]);
});

it('the Job of a Pod is the one that made it, and no later Job of its name', () => {
  expect(jobOf(task('a', 'p', { name: 'pull', uid: 'job' }), holding(JOB))).toBe(JOB);
  expect(jobOf(task('a', 'p', { name: 'pull', uid: 'earlier' }), holding(JOB))).toBeUndefined();
  expect(jobOf(task('a', 'p'), holding(JOB))).toBeUndefined();
});
