/**
 * Finds out why a Job has no Pod. The Job controller tells this only by Events, and the operator has no right to read Events. Therefore the
 * operator asks the API server to check the Pod of the Job with a dry run, which meets the same quota and the same policies.
 */
import {
  ApiError,
  DeadlineError,
  isConflict,
  isObjectRefused,
  isUnsupportedDryRun,
} from '../../kube/errors.ts';
import { soonest, timestamp } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Job, JOBS, type Pod, PODS } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { recheckMilliseconds, refusalMessage } from '../objects/refusals.ts';
import { trueCondition } from './outcome.ts';
import { podsOf } from './owner.ts';

/**
 * Time in milliseconds for which a Job may have no Pod before the first dry run. The Job controller usually creates a Pod within
 * milliseconds. The second dry run follows after the same time if the first one met an error that could be a short fault.
 */
const QUESTION_MILLISECONDS = 1_000;
/** Time in milliseconds without a Pod after which any error of a dry run counts as the reason. A short fault of etcd is over by then. */
const LASTING_MILLISECONDS = 2_000;

export interface RefusedPodsOptions {
  readonly client: KubeClient;
  readonly jobs: Pick<Informer<Job>, 'cache'>;
  readonly taskPods: Pick<Informer<Pod>, 'cache'>;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

/** Job without a Pod. All times are in milliseconds since the epoch. */
interface Podless {
  /** Time when the operator first saw that the Job has no Pod. */
  readonly since: number;
  /** Time of the next dry run. */
  readonly askAt: number;
  /** Message of the API server. It is undefined if the API server has not refused the Pod. */
  readonly message?: string | undefined;
}

export class RefusedPods {
  readonly #options: RefusedPodsOptions;
  /** Jobs without a Pod, by uid. */
  readonly #podless = new Map<string, Podless>();

  constructor(options: RefusedPodsOptions) {
    this.#options = options;
    options.jobs.cache.onChange(({ type, object }) => {
      if (type === 'deleted') {
        this.#podless.delete(uidOf(object));
      }
    });
  }

  /** Returns the message with which the API server refused the Pod of the Job in the last dry run. */
  messageFor(job: Job): string | undefined {
    return this.#podless.get(uidOf(job))?.message;
  }

  /**
   * Sends the dry runs that are due for these Jobs.
   * @returns milliseconds until the next dry run is due; undefined if every Job has its Pod or needs none
   */
  async ask(jobs: readonly Job[]): Promise<number | undefined> {
    const waits: number[] = [];
    for (const job of jobs) {
      if (needsPod(job) && podsOf(job, this.#options.taskPods).length === 0) {
        waits.push(await this.#askAbout(job));
      } else {
        this.#podless.delete(uidOf(job));
      }
    }
    return soonest(...waits);
  }

  async #askAbout(job: Job): Promise<number> {
    const now = this.#options.clock();
    const first = { since: now, askAt: now + QUESTION_MILLISECONDS };
    const known = this.#podless.get(uidOf(job)) ?? first;
    const next = now < known.askAt ? known : await this.#dryRun(job, known);
    this.#podless.set(uidOf(job), next);
    return Math.max(0, next.askAt - now);
  }

  async #dryRun(job: Job, known: Podless): Promise<Podless> {
    const { client, clock } = this.#options;
    const { since } = known;
    const error = await errorOf(client.create(PODS, podOf(job), { dryRun: true }));
    const now = clock();
    const later = now + recheckMilliseconds(timestamp(since), now);
    if (error === undefined || isUnsupportedDryRun(error)) {
      return { since, askAt: later };
    }
    const isReason = isObjectRefused(error) || (!isConflict(error) && now - since >= LASTING_MILLISECONDS);
    return isReason
      ? { since, askAt: later, message: refusalMessage(error, known.message) }
      : { ...known, askAt: now + QUESTION_MILLISECONDS };
  }
}

/** Resolves with the error of the API server, or with undefined after a success. @throws any other error */
async function errorOf(request: Promise<unknown>): Promise<Error | undefined> {
  try {
    await request;
    return undefined;
  } catch (error) {
    if (error instanceof ApiError || error instanceof DeadlineError) {
      return error;
    }
    throw error;
  }
}

function uidOf({ metadata }: Job): string {
  return metadata.uid ?? '';
}

function needsPod(job: Job): boolean {
  const isOver = trueCondition(job, 'Complete', 'Failed', 'FailureTarget') !== undefined;
  return !isOver && job.spec.suspend !== true && job.metadata.deletionTimestamp === undefined;
}

/** Returns the Pod that the Job controller creates for the Job. Its name is always the same, so that the words of a refusal do not change. */
function podOf({ metadata: { name, namespace = '', uid = '' }, spec: { template } }: Job): Unsaved<Pod> {
  return {
    metadata: {
      ...template.metadata,
      name: `${name}-dry-run`,
      namespace,
      ownerReferences: [{ apiVersion: JOBS.apiVersion, kind: JOBS.kind, name, uid, controller: true }],
    },
    spec: template.spec,
  };
}
