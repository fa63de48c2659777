/**
 * Removes content from the cluster's image storage when nothing needs the content any more. Events report content that could not be
 * removed.
 */
import type { Logger } from 'pino';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import type { Recorder } from '../objects/events.ts';
import { type Job, JOBS } from '../../kube/core.ts';
import type { OperatorConfig } from '../config/config.ts';
import { contentOwner, isRemoval, keptEvent, placeKey } from '../image/place.ts';
import { Writer } from '../objects/writer.ts';
import { jobOf } from '../tasks/owner.ts';
import {
  cachedNeeds,
  currentNeeds,
  isNeeded,
  observeRemovals,
  planRemovals,
  type ContentRemoval,
  type RemovalPlan,
  type RemovalSources,
} from './plan.ts';

/**
 * The only key of this controller. One reconcile handles all removals, so that the needed content is determined only once for all of them.
 */
const REMOVALS_KEY = 'storage';

export interface RemovalControllerOptions extends RemovalSources {
  readonly client: KubeClient;
  readonly config: OperatorConfig;
  readonly recorder: Recorder;
  readonly consistency: Consistency;
  readonly clock: () => number;
}

export class RemovalReconciler {
  readonly #options: RemovalControllerOptions;
  readonly #jobs: Writer<Job>;
  /**
   * For each removal, the time of the first check that found the content unneeded. The map's key is the uid of the removal's Job. When the
   * operator starts, the map is empty, so each removal waits its full time again. During this time, work that the previous operator process
   * began can end.
   */
  #unneededSince: RemovalPlan['unneededSince'] = new Map();
  /** Uids of ended Jobs that this process has already reported and deleted. The cache might still contain these Jobs. */
  #reported: ReadonlySet<string> = new Set();

  constructor(options: RemovalControllerOptions) {
    const { client, consistency, jobs } = options;
    this.#options = options;
    this.#jobs = new Writer({ client, consistency, type: JOBS, informer: jobs });
  }

  async reconcile(_key: string, { logger }: { logger: Logger }): Promise<Result> {
    const { config, clock } = this.#options;
    const removals = observeRemovals(this.#options);
    if (removals.length === 0) {
      return undefined;
    }
    const plan = planRemovals({
      removals,
      needs: cachedNeeds(this.#options),
      unneededSince: this.#unneededSince,
      // Without an image storage, `keepMilliseconds` is infinite, so nothing is removed.
      keepMilliseconds: (config.imageStorage?.keepSeconds ?? Number.POSITIVE_INFINITY) * 1000,
      now: clock(),
    });
    this.#unneededSince = plan.unneededSince;
    await this.#finish(plan, logger);
    await this.#begin(plan.due, logger);
    const { wakeMilliseconds } = plan;
    return wakeMilliseconds === undefined ? undefined : { requeueAfterMilliseconds: wakeMilliseconds };
  }

  async #begin(due: readonly ContentRemoval[], logger: Logger): Promise<void> {
    if (due.length === 0) {
      return;
    }
    const needs = await currentNeeds(this.#options.client, this.#options);
    for (const { job, place } of due.filter((one) => !isNeeded(one.place, needs))) {
      await this.#jobs.patch(REMOVALS_KEY, job, { spec: { suspend: false } });
      logger.info(
        { job: job.metadata.name, place: placeKey(place) },
        'removing content that nothing needs any more',
      );
    }
  }

  /**
   * Reports each removal that has ended, and then deletes its Job. The report is a log line, and also an Event if the content remains. If
   * the operator crashes before the deletion, the next operator reports the removal again.
   */
  async #finish({ ended }: RemovalPlan, logger: Logger): Promise<void> {
    const uidOf = ({ job }: ContentRemoval): string => job.metadata.uid ?? '';
    const reported = new Set(ended.map(uidOf).filter((uid) => this.#reported.has(uid)));
    for (const removal of ended.filter((one) => !reported.has(uidOf(one)))) {
      this.#tell(removal, removal.end.kept, logger);
      await this.#jobs.delete(removal.job, { propagationPolicy: 'Background' });
      reported.add(uidOf(removal));
    }
    this.#reported = reported;
  }

  #tell({ job, place }: ContentRemoval, kept: string | undefined, logger: Logger): void {
    const lost = placeKey(place);
    if (kept === undefined) {
      logger.info({ place: lost }, 'content was removed from the image storage');
      return;
    }
    logger.warn({ place: lost, kept }, 'content stays in the image storage');
    this.#options.recorder.event(contentOwner(job), keptEvent(lost, kept));
  }
}

/**
 * When a change can allow a removal to begin, this function enqueues the removals. Changes of VMs' Pods enqueue nothing, because the
 * next regular reconcile sees them.
 */
export function enqueueRemovals(
  controller: Controller,
  { images, isos, jobs, taskPods }: RemovalSources,
): void {
  const look = (): void => controller.enqueue(REMOVALS_KEY);
  jobs.cache.onChange(({ object }) => {
    if (isRemoval(object)) {
      look();
    }
  });
  taskPods.cache.onChange(({ object }) => {
    const job = jobOf(object, jobs);
    if (job !== undefined && isRemoval(job)) {
      look();
    }
  });
  // Each change of an image's content enqueues the removals. Regular checks alone could miss content that an image needs only for a short
  // time.
  for (const { cache } of [images, isos]) {
    cache.onChange(({ type, object, previous }) => {
      const isSame = type === 'updated' && sameContent(object, previous);
      if (!isSame && jobs.cache.list().some(isRemoval)) {
        look();
      }
    });
  }
}

function sameContent(a: Image | ISO, b: Image | ISO | undefined): boolean {
  return JSON.stringify(a.status?.content) === JSON.stringify(b?.status?.content);
}
