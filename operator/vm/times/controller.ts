/** Measures how long jobs wait and run, and stores the times of the last 24 hours for the HTTP API. Only the leader measures. */
import type { Logger } from 'pino';
import { JOB_TIMES } from '../../../api/v1alpha1/names.ts';
import type { VM } from '../../../api/v1alpha1/vm.ts';
import type { ObjectChange } from '../../../kube/cache.ts';
import type { KubeClient } from '../../../kube/client.ts';
import { readData, writeData } from '../../../kube/configmapdata.ts';
import type { Controller, Result } from '../../../kube/controller.ts';
import type { Namespace } from '../../../kube/core.ts';
import type { Informer } from '../../../kube/informer.ts';
import type { OperatorConfig } from '../../config/config.ts';
import type { JobTimeMetrics } from './metrics.ts';
import { timesIn } from './observe.ts';
import { JobTimesRing, type Measure } from './ring.ts';

/** The only key of this controller. */
const TIMES_KEY = 'jobtimes';
/** Time in milliseconds from the first new time until it is stored. More jobs often end in it. */
const DELAY_MILLISECONDS = 5_000;
/** Shortest time in milliseconds between two writes. A busy fleet ends jobs all the time. */
const PAUSE_MILLISECONDS = 60_000;

interface JobTimesOptions {
  readonly client: KubeClient;
  readonly config: Pick<OperatorConfig, 'namespaces'>;
  readonly namespaces: Pick<Informer<Namespace>, 'cache'>;
  readonly logger: Logger;
  readonly metrics: JobTimeMetrics;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
  readonly isLeader: () => boolean;
}

export class JobTimesReconciler {
  readonly #options: JobTimesOptions;
  readonly #ring = new JobTimesRing();
  #writtenAt = Number.NEGATIVE_INFINITY;
  #isFull = false;
  #isRestored = false;
  /** Called after a new time. */
  onTime: () => void = () => undefined;

  constructor(options: JobTimesOptions) {
    this.#options = options;
  }

  /** Keeps the time of a job in seconds. */
  add(namespace: string, measure: Measure, seconds: number): void {
    const { clock, isLeader, logger, metrics } = this.#options;
    // The last change of a VM can come after that of its namespace.
    const uid = this.#uidOf(namespace);
    if (!isLeader() || uid === undefined) {
      return;
    }
    metrics.observe(namespace, measure, seconds);
    const isKept = this.#ring.add({ name: namespace, uid }, measure, seconds, clock());
    if (!isKept && !this.#isFull) {
      this.#isFull = true;
      logger.warn(
        { namespace },
        'the times of jobs are not kept for this namespace, because there are too many',
      );
    }
    this.onTime();
  }

  /** Measures the VM of the change. */
  observe(change: ObjectChange<VM>): void {
    const { namespace = '' } = change.object.metadata;
    if (this.#uidOf(namespace) !== undefined) {
      this.#options.metrics.expect(namespace);
    }
    timesIn(change, this.#options.clock()).forEach(({ measure, seconds }) =>
      this.add(namespace, measure, seconds),
    );
  }

  /** Forgets a deleted namespace. */
  forget(namespace: string): void {
    this.#ring.forget(namespace);
    this.#options.metrics.forget(namespace);
    this.#isFull = false;
    this.onTime();
  }

  /**
   * Stores the documents that have changed, the first time together with those of an earlier process.
   *
   * @throws ApiError, and the documents are stored at the next attempt.
   */
  async reconcile(): Promise<Result> {
    const { client, config, clock } = this.#options;
    const ref = { namespace: config.namespaces.system, name: JOB_TIMES };
    if (!this.#isRestored) {
      const documents = await readData(client, ref);
      this.#ring.restore(documents, clock(), (namespace) => this.#uidOf(namespace));
      this.#isRestored = true;
    }
    if (!this.#ring.hasChanges) {
      return undefined;
    }
    const now = clock();
    // The clock can be set back. A write must not wait for that.
    const wait = Math.min(this.#writtenAt + PAUSE_MILLISECONDS - now, PAUSE_MILLISECONDS);
    if (wait > 0) {
      return { requeueAfterMilliseconds: wait };
    }
    await this.#ring.storeChanges(now, async (documents) => await writeData(client, ref, documents));
    this.#writtenAt = now;
    return undefined;
  }

  #uidOf(namespace: string): string | undefined {
    return this.#options.namespaces.cache.get(namespace)?.metadata.uid;
  }
}

/** Makes the controller store at its start that this process measures now, and new times a little later. */
export function enqueueJobTimes(controller: Controller, reconciler: JobTimesReconciler): void {
  controller.enqueue(TIMES_KEY);
  reconciler.onTime = () => controller.enqueueAfter(TIMES_KEY, DELAY_MILLISECONDS);
}
