/** A record of all Jobs, from a watch that begins before the first Job. */
import { pino } from 'pino';
import { WORKLOAD_LABEL } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { Informer } from '../../kube/informer.ts';
import { JOBS } from '../../kube/core.ts';
import { ENTRY_NAME_LABEL } from '../../operator/tasks/owner.ts';

/** Label that the Job controller sets on the Pods of a Job. */
export const JOB_NAME_LABEL = 'batch.kubernetes.io/job-name';

/** Counts the Jobs of ImageCacheEntries, by the name of the entry. */
export class JobHistory {
  readonly #stopping = new AbortController();
  readonly #here = new Map<string, Set<string>>();
  readonly #most = new Map<string, number>();
  readonly #made = new Map<string, number>();
  #all = 0;

  static async start(client: KubeClient): Promise<JobHistory> {
    const history = new JobHistory();
    const jobs = new Informer(client, JOBS, {
      logger: pino({ level: 'silent' }),
      labelSelector: `${WORKLOAD_LABEL}=cache`,
    });
    jobs.cache.onChange(({ type, object: { metadata } }) => {
      const { uid = '', labels = {} } = metadata;
      history.#record(type, labels[ENTRY_NAME_LABEL] ?? '', uid);
    });
    jobs.start(history.#stopping.signal);
    await jobs.synced;
    return history;
  }

  /** Returns the largest number of Jobs that the entry had at the same time, including ended Jobs. */
  mostOf(entry: string): number {
    return this.#most.get(entry) ?? 0;
  }

  /** Returns the number of Jobs that were ever created for the entry. */
  madeFor(entry: string): number {
    return this.#made.get(entry) ?? 0;
  }

  /** Number of Jobs that exist now, of all entries. */
  get present(): number {
    return [...this.#here.values()].reduce((sum, { size }) => sum + size, 0);
  }

  /** Number of Jobs that were ever created, of all entries. */
  get all(): number {
    return this.#all;
  }

  stop(): void {
    this.#stopping.abort(new Error('the test is over'));
  }

  #record(type: 'added' | 'updated' | 'deleted', entry: string, uid: string): void {
    const here = this.#here.get(entry) ?? new Set();
    this.#here.set(entry, here);
    if (type === 'deleted') {
      here.delete(uid);
    } else {
      here.add(uid);
    }
    if (type === 'added') {
      this.#all += 1;
      this.#made.set(entry, this.madeFor(entry) + 1);
    }
    this.#most.set(entry, Math.max(this.mostOf(entry), here.size));
  }
}
