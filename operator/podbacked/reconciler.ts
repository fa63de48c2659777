/**
 * Reconciles the objects whose machine is a Pod: VMs and Emulators. A reconcile has this order: observe, run the steps, compute the whole
 * status, store the changes of the status. It never waits. If an object needs another reconcile later, its key is enqueued again.
 */
import type { Logger } from 'pino';
import { soonest } from '../../base/time.ts';
import type { Result } from '../../kube/controller.ts';
import type { Pod } from '../../kube/core.ts';
import { equal } from '../../kube/mergepatch.ts';
import { conditionIn } from '../objects/conditions.ts';
import type { Recorder } from '../objects/events.ts';
import { HeldStatus } from '../objects/heldstatus.ts';
import { recheckMilliseconds, Refusals, unlessBlocking } from '../objects/refusals.ts';
import type { PodBackedKind, PodBacked, PodBackedStatus, Run } from './kind.ts';
import type { PodObserved } from './observe.ts';
import type { PodBackedSources, PodBackedWriter } from './writer.ts';

/**
 * Longest delay in milliseconds of a status change, if nobody waits for this change. Because of the delay, one request can store several
 * changes.
 */
const FOLD_MILLISECONDS = 500;

export interface PodBackedOptions<T extends PodBacked> extends PodBackedSources<T> {
  readonly recorder: Recorder;
}

export abstract class PodBackedReconciler<T extends PodBacked, Observed extends PodObserved, Facts, Write> {
  readonly #options: PodBackedOptions<T>;
  readonly #kind: PodBackedKind<T, Observed, Facts, Write>;
  readonly #writer: PodBackedWriter<T, Observed, Write>;
  readonly #status: HeldStatus;
  readonly #refusals: Refusals;

  constructor(
    options: PodBackedOptions<T>,
    kind: PodBackedKind<T, Observed, Facts, Write>,
    writer: PodBackedWriter<T, Observed, Write>,
  ) {
    this.#options = options;
    this.#kind = kind;
    this.#writer = writer;
    this.#status = new HeldStatus({ holdMilliseconds: FOLD_MILLISECONDS, clock: options.clock });
    this.#refusals = new Refusals({ ...options, dependent: 'Pod' });
  }

  /**
   * Reads the state that one reconcile needs. The result is undefined if the object in the cache lacks a change that the reconcile needs. The
   * next reconcile then waits until the cache has it.
   * @throws ApiError
   */
  protected abstract observe(object: T): Promise<Observed | undefined>;

  /** Replaces the parts of the observed state on which a final decision depends, because the caches can lag. @throws ApiError */
  protected abstract confirm(known: Observed): Promise<Observed>;

  /** Updates metrics and records Events after a request whose result the status does not show. */
  protected abstract tellWrite(observed: Observed, write: Write): void;

  /** Updates metrics and records Events after the status was stored. */
  protected abstract tellStatus(observed: Observed, status: NonNullable<T['status']>): void;

  /** Forgets an object that no longer exists. */
  protected forget(key: string): void {
    this.#status.forget(key);
    this.#refusals.forget(key);
    this.#options.consistency.forget(key);
  }

  /** Reconciles one object once. `key` is `namespace/name`. */
  async reconcile(key: string, { logger }: { readonly logger: Logger }): Promise<Result> {
    const { objects, objectPods } = this.#options;
    const object = objects.cache.get(key);
    const pod = objectPods.cache.get(this.#kind.podKeyOf(key));
    const uid = pod?.metadata.labels?.[this.#kind.uidLabel];
    const isOrphan = pod !== undefined && uid !== object?.metadata.uid;
    const orphanDue = isOrphan ? await this.#endOrphan(key, pod, logger) : undefined;
    if (object === undefined) {
      this.forget(key);
      return { requeueAfterMilliseconds: orphanDue };
    }
    return { requeueAfterMilliseconds: soonest(orphanDue, await this.#reconcileObject(key, object)) };
  }

  /** Returns the milliseconds until the next reconcile. */
  async #reconcileObject(key: string, object: T): Promise<number | undefined> {
    const known = await this.observe(object);
    if (known === undefined) {
      return 0;
    }
    const run = await this.#attempt(key, known);
    this.#refusals.record(object, unlessBlocking(run.refused, run.blocked));
    const isOver = run.outcome.kind === 'gone' && run.refused === undefined;
    return isOver ? undefined : await this.#report(key, run);
  }

  /**
   * Runs the steps. An error of the API server that lasts becomes the result `refused`. An object that has no Pod yet is then blocked, so that
   * its status has the words of the API server.
   * @throws any error that does not last yet
   */
  async #attempt(key: string, known: Observed): Promise<Run<Observed>> {
    try {
      const run = await this.#runSteps(await this.confirm(known));
      if (run.refused === undefined) {
        this.#refusals.succeeded(key);
      }
      return this.#withRefusal(run);
    } catch (error) {
      const refused = this.#refusals.judge(key, error);
      if (refused === undefined) {
        throw error;
      }
      return this.#withRefusal({ observed: known, outcome: { kind: 'done' }, refused });
    }
  }

  /** If the object waits for its Pod, returns the run with the refusal as the reason why there is no Pod. */
  #withRefusal(run: Run<Observed>): Run<Observed> {
    const { observed, blocked, refused } = run;
    const { status, metadata } = this.#kind.objectOf(observed);
    const isOver = status?.failure !== undefined || metadata.deletionTimestamp !== undefined;
    return observed.pod === undefined && !isOver && refused !== undefined
      ? { ...run, blocked: blocked ?? this.#writer.blockedByRefusal(observed, refused) }
      : run;
  }

  async #runSteps(start: Observed): Promise<Run<Observed>> {
    const { gatherFacts, stepsFor } = this.#kind;
    let observed = start;
    let facts = gatherFacts(start);
    for (const step of stepsFor(start)) {
      const { writes, outcome, blocked } = step(observed, facts);
      for (const write of writes) {
        const executed = await this.#writer.execute(observed, write);
        observed = executed.observed;
        if (executed.blocked !== undefined || executed.refused !== undefined) {
          return { ...executed, blocked: executed.blocked ?? blocked, outcome };
        }
        this.tellWrite(observed, write);
      }
      if (blocked !== undefined || outcome.kind !== 'done') {
        return { observed, blocked, outcome };
      }
      // The facts are gathered again only after a step with requests, because only requests change the observed state.
      facts = writes.length === 0 ? facts : gatherFacts(observed);
    }
    return { observed, outcome: { kind: 'done' } };
  }

  /**
   * Stores the status after the steps. Returns the milliseconds until the next reconcile.
   * @throws the error of the API server that lasts
   */
  async #report(key: string, run: Run<Observed>): Promise<number | undefined> {
    const { observed, blocked, outcome, refused } = run;
    const { objectOf, gatherFacts, summarize, untilNextDeadline, isRechecked } = this.#kind;
    const facts = gatherFacts(observed);
    const wait = outcome.kind === 'requeueAfter' ? outcome.milliseconds : undefined;
    const status = summarize(run, facts);
    if (status === undefined) {
      return wait;
    }
    const held = await this.#writeStatus(key, run, status);
    if (refused !== undefined) {
      throw refused;
    }
    const waitsSince = conditionIn(objectOf(observed).status, 'Ready')?.lastTransitionTime;
    const recheck =
      blocked && isRechecked(blocked) ? recheckMilliseconds(waitsSince, observed.now) : undefined;
    return soonest(held, untilNextDeadline(observed, facts), wait, recheck);
  }

  /**
   * Stores the status now, or leaves this to a later reconcile. In the second case, returns the milliseconds until that reconcile. The
   * result is undefined if the status was stored or did not change.
   */
  async #writeStatus(
    key: string,
    { observed, refused }: Run<Observed>,
    status: NonNullable<T['status']>,
  ): Promise<number | undefined> {
    const { objectOf, deployment } = this.#kind;
    const object = objectOf(observed);
    // After an error, the next reconcile can come too late to store a change that waits.
    const mayWait = () => refused === undefined && isMinorChange(deployment, object.status, status);
    const change = { before: object.status, after: status, mayWait };
    return await this.#status.write(key, change, async (patch) => {
      if (await this.#writer.writeStatus(object, patch)) {
        this.tellStatus(observed, status);
      }
    });
  }

  /**
   * Ends a Pod whose object no longer exists. Such a Pod remains after a deletion with cascade=orphan, or after somebody removed the
   * object's finalizer by force. Returns the milliseconds until the next deadline, for example until a silent host counts as lost. The
   * result is undefined if there is no deadline.
   */
  async #endOrphan(key: string, pod: Pod, logger: Logger): Promise<number | undefined> {
    const { resource, uidLabel, substitute, gatherFacts, untilNextDeadline } = this.#kind;
    const uid = pod.metadata.labels?.[uidLabel];
    if (uid === undefined || !(await this.#writer.isGone(key, uid))) {
      return undefined;
    }
    if (pod.metadata.deletionTimestamp === undefined) {
      logger.info({ pod: key, uid }, `deleting a Pod whose ${resource.kind} is gone`);
    }
    const observed = await this.observe(substitute(pod, uid, this.#options.clock()));
    if (observed?.pod === undefined) {
      return undefined;
    }
    const { refused } = await this.#runSteps(observed);
    if (refused !== undefined) {
      throw refused;
    }
    return untilNextDeadline(observed, gatherFacts(observed));
  }
}

/**
 * Returns true if the new status can be stored later, because nobody waits for the changed fields. The first status can also be stored
 * later. If the object runs before that, its status never contains Pending. `deployment` are the phases in which an object is being deployed.
 */
export function isMinorChange(
  deployment: ReadonlySet<string>,
  last: PodBackedStatus | undefined,
  next: PodBackedStatus,
): boolean {
  const { observedGeneration } = next;
  const before: PodBackedStatus = last?.phase === undefined ? { phase: 'Pending', observedGeneration } : last;
  return (
    [before, next].every(({ phase = '' }) => deployment.has(phase)) &&
    equal(awaitedPart(before), awaitedPart(next))
  );
}

/** Returns the part of a status for which people wait. */
function awaitedPart(status: PodBackedStatus): unknown[] {
  const { attempt = 1, observedGeneration, failure } = status;
  return [attempt, observedGeneration, failure, conditionIn(status, 'Stalled')?.status];
}
