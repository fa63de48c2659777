/** Has content removed from the cluster's image storage once nothing needs it any more; tells what had to be left. */
import type { Logger } from 'pino';
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Result } from '../../kube/controller.ts';
import { isConflict } from '../../kube/errors.ts';
import type { EventRecorder } from '../../kube/events.ts';
import { JOBS } from '../../kube/job.ts';
import type { OperatorConfig } from '../config/config.ts';
import { FIELD_MANAGER } from '../objects/resources.ts';
import { cachedNeeds, currentNeeds, observeRemovals, type RemovalSources } from './observe.ts';
import { isNeeded, placeKey } from './needs.ts';
import { planRemovals, type Removal, type RemovalPlan } from './plan.ts';
import { contentOwner } from '../image/removalrecord.ts';

/** All removals are looked at together: what is needed is asked once for all. */
export const REMOVALS_KEY = 'storage';

export interface RemovalControllerOptions extends RemovalSources {
  readonly client: KubeClient;
  readonly config: OperatorConfig;
  readonly recorder: EventRecorder<SaidReason>;
  readonly consistency: Consistency;
  readonly clock: () => number;
}

export class RemovalReconciler {
  readonly #options: RemovalControllerOptions;
  /** Begins anew with each process, so that what an earlier one was doing has come to its end as well. */
  #unneededSince: RemovalPlan['unneededSince'] = new Map();
  /** Uids of Jobs whose end was told, and that the cache still shows. */
  #told: ReadonlySet<string> = new Set();

  constructor(options: RemovalControllerOptions) {
    this.#options = options;
  }

  async reconcile({ logger }: { logger: Logger }): Promise<Result> {
    const { config, clock } = this.#options;
    const removals = observeRemovals(this.#options);
    if (removals.length === 0) {
      return undefined;
    }
    const plan = planRemovals({
      removals,
      needs: cachedNeeds(this.#options),
      unneededSince: this.#unneededSince,
      // Without a storage nothing is removed from any.
      keepMilliseconds: (config.imageStorage?.keepSeconds ?? Number.POSITIVE_INFINITY) * 1000,
      now: clock(),
    });
    this.#unneededSince = plan.unneededSince;
    await this.#finish(plan, logger);
    await this.#begin(plan.due, logger);
    const { wakeMilliseconds } = plan;
    return wakeMilliseconds === undefined ? undefined : { requeueAfterMilliseconds: wakeMilliseconds };
  }

  async #begin(due: readonly Removal[], logger: Logger): Promise<void> {
    if (due.length === 0) {
      return;
    }
    const { client, consistency, jobs } = this.#options;
    const needs = await currentNeeds(client, this.#options);
    for (const { job, place } of due.filter((one) => !isNeeded(one.place, needs))) {
      const { name, namespace = '', uid, resourceVersion } = job.metadata;
      const patch = { metadata: { uid, resourceVersion }, spec: { suspend: false } };
      const options = { fieldManager: FIELD_MANAGER };
      const saved = await client.mergePatch(JOBS, { namespace, name }, patch, options);
      consistency.wrote(REMOVALS_KEY, jobs, saved.metadata.resourceVersion ?? '');
      logger.info({ job: name, place: placeKey(place) }, 'content that nothing needs any more is removed');
    }
  }

  /** Told first: a crash in between tells it twice. */
  async #finish({ ended }: RemovalPlan, logger: Logger): Promise<void> {
    const uidOf = ({ job }: Removal): string => job.metadata.uid ?? '';
    const told = new Set(ended.map(uidOf).filter((uid) => this.#told.has(uid)));
    for (const removal of ended.filter((one) => !told.has(uidOf(one)))) {
      this.#tell(removal, removal.end.kept, logger);
      await this.#delete(removal);
      told.add(uidOf(removal));
    }
    this.#told = told;
  }

  #tell({ job, place }: Removal, kept: string | undefined, logger: Logger): void {
    const lost = placeKey(place);
    if (kept === undefined) {
      logger.info({ place: lost }, 'content was removed from the image storage');
      return;
    }
    logger.warn({ place: lost, kept }, 'content stays in the image storage');
    this.#options.recorder.event(contentOwner(job), keptEvent(lost, kept));
  }

  async #delete({ job }: Removal): Promise<void> {
    const { name, namespace = '', uid } = job.metadata;
    try {
      await this.#options.client.delete(JOBS, { namespace, name }, { uid, propagationPolicy: 'Background' });
    } catch (error) {
      // Another Job has the name by now: this one is gone.
      if (!isConflict(error)) {
        throw error;
      }
    }
  }
}

/** What is left in the storage, where, and why. */
export function keptEvent(place: string, why: string) {
  const message = `no image needs ${place} any more, but it is not removed: ${why}`;
  return { type: 'Warning', reason: 'StorageKeepsContent', action: 'Remove', message } as const;
}
