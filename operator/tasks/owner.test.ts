import { pino } from 'pino';
import { expect, it } from 'vitest';
import * as fc from 'fast-check';
import { IMAGE_UID_LABEL } from '../../api/v1alpha1/names.ts';
import { Store } from '../../kube/cache.ts';
import type { Job, Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import {
  type AbandonedJobOptions,
  AbandonedJobReconciler,
  enqueueAbandonedJobs,
  ENTRY_UID_LABEL,
  jobOf,
  ownersOf,
  ownersOfPod,
  podsOf,
  TASKS_BY_OWNER,
} from './owner.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { Consistency } from '../../kube/consistency.ts';
import type { Controller } from '../../kube/controller.ts';
import { ApiError } from '../../kube/errors.ts';
import { keyOf, type KubeObject } from '../../kube/objects.ts';
import { assertAsyncHistories } from '../../test/support/properties.ts';

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

const logger = pino({ level: 'silent' });
const NAMES = ['guest', 'other'];

type Step =
  | { readonly type: 'create' | 'release' | 'work' | 'end'; readonly name: string }
  /** The caches show the next change of the entries or of the Jobs. The other cache stays behind. */
  | { readonly type: 'entriesSeen' | 'jobsSeen' }
  /** A new operator begins with caches of its own. Its cache of entries can be behind its cache of Jobs. */
  | { readonly type: 'restart' | 'reconcile' | 'refuse' };

const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      type: fc.constantFrom('create', 'release', 'work', 'end'),
      name: fc.constantFrom(...NAMES),
    }),
  },
  { weight: 4, arbitrary: fc.record({ type: fc.constantFrom('entriesSeen', 'jobsSeen', 'reconcile') }) },
  { weight: 1, arbitrary: fc.record({ type: fc.constantFrom('restart', 'refuse') }) },
) as fc.Arbitrary<Step>;

/** One kind of objects in the API server, and a cache that shows each change later. */
class Kind<T extends KubeObject> {
  readonly objects = new Map<string, T>();
  cache = new Store<T>(logger);
  readSince = 0;
  #unseen: { readonly type: 'put' | 'delete'; readonly object: T }[] = [];

  write(object: T, type: 'put' | 'delete' = 'put'): void {
    const key = object.metadata.name;
    if (type === 'put') {
      this.objects.set(key, object);
    } else {
      this.objects.delete(key);
    }
    this.#unseen.push({ type, object });
  }

  see(): void {
    const change = this.#unseen.shift();
    if (change?.type === 'put') {
      this.cache.put(change.object);
    } else if (change !== undefined) {
      this.cache.delete(keyOf(change.object));
    }
  }

  seeAll(): void {
    while (this.#unseen.length > 0) {
      this.see();
    }
  }

  restart(): void {
    this.cache = new Store<T>(logger);
    this.#unseen = [...this.objects.values()].map((object) => ({ type: 'put', object }));
  }

  cutIfStale(): void {}
}

class World {
  readonly entries = new Kind<ImageCacheEntry>();
  readonly jobs = new Kind<Job>();
  /** Names of Jobs that were deleted although their entry existed. */
  readonly wronglyDeleted: string[] = [];
  #serial = 0;
  #refuses = false;
  #queued = false;
  #reconciler = this.#start();

  #start(): AbandonedJobReconciler {
    const none = { cache: new Store(logger) };
    const options = {
      entries: this.entries,
      jobs: this.jobs,
      images: none,
      isos: none,
      consistency: new Consistency(),
      client: {
        pages: async function* (this: void, type: { plural: string }) {
          yield { items: type.plural === 'imagecacheentries' ? [...entries.values()] : [] };
        },
        delete: async (_type: unknown, { name }: { name: string }) => this.#delete(name),
      },
    } as unknown as AbandonedJobOptions;
    const entries = this.entries.objects;
    enqueueAbandonedJobs({ enqueue: () => (this.#queued = true) } as unknown as Controller, options);
    return new AbandonedJobReconciler(options);
  }

  #delete(name: string): void {
    if (this.#refuses) {
      this.#refuses = false;
      throw new ApiError('refused once', { status: 500, reason: 'InternalError' });
    }
    const job = this.jobs.objects.get(name);
    if (job === undefined) {
      return;
    }
    const uid = job.metadata.labels?.[ENTRY_UID_LABEL];
    if ([...this.entries.objects.values()].some((entry) => entry.metadata.uid === uid)) {
      this.wronglyDeleted.push(name);
    }
    this.jobs.write(job, 'delete');
  }

  #identity(name: string) {
    this.#serial += 1;
    return { name, uid: `${name}-${this.#serial}`, resourceVersion: String(this.#serial) };
  }

  /** Ends the removal Jobs of an entry name, whether their entries still exist or not. */
  #end(name: string): void {
    for (const job of this.jobs.objects.values()) {
      if (job.metadata.name.startsWith(`uncache-${name}-`)) {
        const { resourceVersion } = this.#identity(name);
        const conditions = [{ type: 'Complete', status: 'True' as const }];
        this.jobs.write({ ...job, metadata: { ...job.metadata, resourceVersion }, status: { conditions } });
      }
    }
  }

  #work(name: string): void {
    const entry = this.entries.objects.get(name);
    const jobName = `uncache-${entry?.metadata.uid}`;
    if (entry !== undefined && !this.jobs.objects.has(jobName)) {
      const labels = { [ENTRY_UID_LABEL]: entry.metadata.uid ?? '' };
      this.jobs.write({
        apiVersion: 'batch/v1',
        kind: 'Job',
        metadata: { ...this.#identity(jobName), namespace: 'berth-system', labels },
        spec: { template: { spec: { containers: [] } } },
      });
    }
  }

  async reconcile(): Promise<void> {
    this.#queued = false;
    await this.#reconciler.reconcile('', { logger }).catch(() => (this.#queued = true));
  }

  async apply(one: Step): Promise<void> {
    switch (one.type) {
      case 'create':
        if (!this.entries.objects.has(one.name)) {
          this.entries.write({ metadata: this.#identity(one.name), spec: {} } as ImageCacheEntry);
        }
        return;
      case 'release': {
        const entry = this.entries.objects.get(one.name);
        return entry && this.entries.write(entry, 'delete');
      }
      case 'work':
        return this.#work(one.name);
      case 'end':
        return this.#end(one.name);
      case 'entriesSeen':
        return this.entries.see();
      case 'jobsSeen':
        return this.jobs.see();
      case 'refuse':
        this.#refuses = true;
        return;
      case 'restart':
        this.entries.restart();
        this.jobs.restart();
        this.#reconciler = this.#start();
        return;
      default:
        return await this.reconcile();
    }
  }

  /** Shows all changes, and reconciles as long as the controller has something to do. */
  async stabilize(): Promise<void> {
    for (let round = 0; round < 10; round += 1) {
      this.entries.seeAll();
      this.jobs.seeAll();
      if (!this.#queued) {
        return;
      }
      await this.reconcile();
    }
  }

  /** Returns the ended Jobs without an entry. */
  leftovers(): string[] {
    const uids = new Set([...this.entries.objects.values()].map(({ metadata }) => metadata.uid));
    return [...this.jobs.objects.values()]
      .filter(({ status, metadata }) => status !== undefined && !uids.has(metadata.labels?.[ENTRY_UID_LABEL]))
      .map(({ metadata }) => metadata.name);
  }
}

it('no-orphan: no ended Job of a removal outlives its entry, and no Job of an entry is deleted', async (context) => {
  await assertAsyncHistories(context, { step, maxLength: 60, numRuns: 500 }, async (history) => {
    const world = new World();
    for (const one of history) {
      await world.apply(one);
    }
    await world.stabilize();
    expect(world.wronglyDeleted).toEqual([]);
    expect(world.leftovers()).toEqual([]);
  });
});
