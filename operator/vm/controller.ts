/**
 * Reconciles VMs in this order: finalizer, other steps, compute the whole status, store the changes of the status. A reconcile never waits.
 * If a VM needs another reconcile later, its key is enqueued again.
 */
import type { Logger } from 'pino';
import { soonest } from '../../base/time.ts';
import { VM_FINALIZER, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { type VMStatus, vmStatusSchema } from '../../api/v1alpha1/vmstatus.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { ReconcileContext, Result } from '../../kube/controller.ts';
import type { Pod } from '../../kube/core.ts';
import type { Recorder } from '../objects/events.ts';
import { SharedReads } from '../../kube/sharedreads.ts';
import { conditionIn } from '../objects/conditions.ts';
import { HeldStatus } from '../objects/heldstatus.ts';
import { recheckMilliseconds, Refusals, unlessBlocking } from '../objects/refusals.ts';
import { ignoredEntries } from '../objects/registries.ts';
import { isBetweenPods } from './adoption.ts';
import { goneVM, macAddressOf, NODES_BY_GIVEN_UP } from './abandoned.ts';
import { untilNextDeadline } from './deadlines.ts';
import { recordDoubledIdentity, recordTransition, recordUnanswered } from './events.ts';
import { gatherFacts, lostPlacement } from './facts.ts';
import { isDeploying, isOverdue, mayBeOutdated, readLive } from './live.ts';
import type { VMMetrics } from './metrics.ts';
import { type Observed, observe, type ResizeRefusal, type Sources } from './observe.ts';
import { standingRefusal } from './size.ts';
import { type Findings, isMinorChange, summarize } from './status.ts';
import { deleteMachine, type Outcome, stepsFor, type Write } from './steps.ts';
import { blockedByRefusal, type Executed, VMWriter } from './writes.ts';

/**
 * Longest delay in milliseconds of a status change, if nobody waits for this change. Because of the delay, one request can store several
 * changes.
 */
const FOLD_MILLISECONDS = 500;
export interface VMControllerOptions extends Sources {
  readonly consistency: Consistency;
  readonly recorder: Recorder;
  readonly metrics: VMMetrics;
}

/**
 * Result of the steps of one reconcile. `refused` is set if the API server refused a change of an existing object, or if its errors last.
 */
interface Run extends Pick<Executed, 'observed'> {
  readonly refused?: Error | undefined;
  readonly findings: Findings;
  readonly outcome: Outcome;
}

export class VMReconciler {
  readonly #options: VMControllerOptions;
  readonly #writer: VMWriter;
  readonly #status: HeldStatus;
  readonly #reads: SharedReads;
  readonly #refusals: Refusals;
  /**
   * Last refused resize of each VM that still requests the refused size. The map's key is the key of the VM. A new leader does not have
   * this map, so it requests each size once more.
   */
  readonly #resizeRefused = new Map<string, ResizeRefusal>();

  constructor(options: VMControllerOptions) {
    this.#options = options;
    this.#writer = new VMWriter(options);
    this.#reads = new SharedReads(options.client);
    this.#refusals = new Refusals({ ...options, dependent: 'Pod' });
    this.#status = new HeldStatus({ holdMilliseconds: FOLD_MILLISECONDS, clock: options.clock });
  }

  /** Reconciles one VM once. `key` is `namespace/name`. */
  async reconcile(key: string, context: ReconcileContext): Promise<Result> {
    const { vms, pods } = this.#options;
    const vm = vms.cache.get(key);
    const pod = pods.cache.get(key);
    const isOrphan = pod !== undefined && pod.metadata.labels?.[VM_UID_LABEL] !== vm?.metadata.uid;
    const orphanDue = isOrphan ? await this.#endOrphan(key, pod, context.logger) : undefined;
    if (vm === undefined) {
      this.#status.forget(key);
      this.#resizeRefused.delete(key);
      this.#refusals.forget(key);
      this.#options.consistency.forget(key);
      return { requeueAfterMilliseconds: orphanDue };
    }
    const result = await this.#reconcileVM(key, vm);
    return { requeueAfterMilliseconds: soonest(orphanDue, result?.requeueAfterMilliseconds) };
  }

  async #reconcileVM(key: string, vm: VM): Promise<Result> {
    const known = { ...(await observe(this.#options, vm)), resizeRefused: this.#resizeRefused.get(key) };
    if (mayBeOutdated(known) && !(await this.#writer.isCurrent(vm))) {
      return { requeueAfterMilliseconds: 0 };
    }
    const { observed, findings, outcome, refused } = await this.#attempt(key, known);
    this.#remember(key, observed);
    this.#refusals.record(vm, unlessBlocking(refused, findings.blocked));
    const { deletionTimestamp, finalizers } = observed.vm.metadata;
    const isReleased = deletionTimestamp !== undefined && finalizers?.includes(VM_FINALIZER) !== true;
    if (isReleased && refused === undefined) {
      return undefined;
    }
    const isHeld = isBetweenPods(observed) && (findings.blocked ?? refused) === undefined;
    return isHeld
      ? { requeueAfterMilliseconds: waitOf(outcome) }
      : await this.#report(key, { observed, findings, outcome, refused });
  }

  /** Stores the status after the steps. @throws the error of the API server that lasts */
  async #report(key: string, { observed, findings, outcome, refused }: Run): Promise<Result> {
    const facts = gatherFacts(observed);
    const status = boundStatus(vmStatusSchema, summarize(observed, facts, findings));
    const held = await this.#writeStatus(key, observed, status, refused);
    if (refused !== undefined) {
      throw refused;
    }
    const waitsSince = conditionIn(observed.vm.status, 'Ready')?.lastTransitionTime;
    const requeueAfterMilliseconds = soonest(
      held,
      untilNextDeadline(observed, facts),
      waitOf(outcome),
      findings.blocked && recheckMilliseconds(waitsSince, observed.now),
    );
    return { requeueAfterMilliseconds };
  }

  /**
   * Runs the steps. An error of the API server that lasts becomes the result `refused`. A VM that has no Pod yet is then blocked, so that its
   * status has the words of the API server.
   * @throws any error that does not last yet
   */
  async #attempt(key: string, known: Observed): Promise<Run> {
    try {
      const run = await this.#runSteps(await this.#confirmed(known));
      if (run.refused === undefined) {
        this.#refusals.succeeded(key);
      }
      return withRefusal(run);
    } catch (error) {
      const refused = this.#refusals.judge(key, error);
      if (refused === undefined) {
        throw error;
      }
      return withRefusal({ observed: known, findings: {}, outcome: { kind: 'done' }, refused });
    }
  }

  /** Replaces the parts of the observed state on which a final decision depends, because the caches can lag. */
  async #confirmed(known: Observed): Promise<Observed> {
    if (isDeploying(known)) {
      return await readLive(this.#reads, known);
    }
    return isOverdue(known) ? (await this.#writer.readPod(known)).observed : known;
  }

  #remember(key: string, observed: Observed): void {
    const refusal = standingRefusal(observed);
    if (refusal === undefined) {
      this.#resizeRefused.delete(key);
    } else {
      this.#resizeRefused.set(key, refusal);
    }
  }

  async #runSteps(start: Observed): Promise<Run> {
    let observed = start;
    let facts = gatherFacts(start);
    for (const step of stepsFor(start)) {
      const result = step(observed, facts);
      if (result.blocked !== undefined) {
        return { observed, findings: { blocked: result.blocked }, outcome: result.outcome };
      }
      for (const write of result.writes) {
        const { blocked, refused, ...executed } = await this.#writer.execute(observed, write);
        observed = executed.observed;
        if (blocked !== undefined || refused !== undefined) {
          return { observed, findings: { blocked }, outcome: result.outcome, refused };
        }
        this.#tell(observed, write);
      }
      if (result.outcome.kind !== 'done') {
        return { observed, findings: {}, outcome: result.outcome };
      }
      // The facts are gathered again only after a step with requests, because only requests change the observed state.
      facts = result.writes.length === 0 ? facts : gatherFacts(observed);
    }
    return { observed, findings: {}, outcome: { kind: 'done' } };
  }

  /** Updates metrics and records Events after a request whose result the status does not show. */
  #tell(observed: Observed, write: Write): void {
    if (write.kind === 'createPod') {
      this.#tellDoubledIdentity(observed);
      const ignored = ignoredEntries(write.ignoredEntries);
      if (ignored !== undefined) {
        this.#options.recorder.event(observed.vm, ignored);
      }
    } else if (write.kind === 'deleteVM' && write.unansweredSince !== undefined) {
      const { metrics, recorder } = this.#options;
      metrics.unanswered(observed.vm);
      recordUnanswered(recorder, observed.vm, write.unansweredSince);
    }
  }

  #tellDoubledIdentity({ vm, pod }: Observed): void {
    const { nodes, recorder } = this.#options;
    const macAddress = pod && macAddressOf(pod);
    const holders = macAddress === undefined ? [] : nodes.cache.byIndex(NODES_BY_GIVEN_UP, macAddress);
    if (macAddress !== undefined && holders.length > 0) {
      recordDoubledIdentity(
        recorder,
        vm,
        macAddress,
        holders.map(({ metadata }) => metadata.name),
      );
    }
  }

  /**
   * Stores the status now, or leaves this to a later reconcile. In the second case, returns the milliseconds until that reconcile. The
   * result is undefined if the status was stored or did not change.
   */
  async #writeStatus(
    key: string,
    observed: Observed,
    status: VMStatus,
    refused: Error | undefined,
  ): Promise<number | undefined> {
    const { vm, now } = observed;
    const { metrics, recorder } = this.#options;
    // After an error, the next reconcile can come too late to store a change that waits.
    const mayWait = () => refused === undefined && isMinorChange(vm.status, status);
    const change = { before: vm.status, after: status, mayWait };
    return await this.#status.write(key, change, async (patch) => {
      if (await this.#writer.writeStatus(vm, patch)) {
        metrics.observe(vm, vm.status, status, now);
        recordTransition(recorder, vm, status, lostPlacement(observed, status));
      }
    });
  }

  /**
   * Ends a Pod whose VM no longer exists. Such a Pod remains after a deletion with cascade=orphan, or after somebody removed the VM's
   * finalizer by force. Returns the milliseconds until the next deadline, for example until a silent host counts as lost. The result is
   * undefined if there is no deadline.
   */
  async #endOrphan(key: string, pod: Pod, logger: Logger): Promise<number | undefined> {
    const uid = pod.metadata.labels?.[VM_UID_LABEL];
    if (uid === undefined || !(await this.#writer.vmIsGone(key, uid))) {
      return undefined;
    }
    if (pod.metadata.deletionTimestamp === undefined) {
      logger.info({ pod: key, vmUid: uid }, 'deleting a Pod whose VM is gone');
    }
    const observed = await observe(this.#options, goneVM(pod, uid, this.#options.clock()));
    if (observed.pod === undefined) {
      return undefined;
    }
    for (const write of deleteMachine(observed).writes) {
      const { refused } = await this.#writer.execute(observed, write);
      if (refused !== undefined) {
        throw refused;
      }
    }
    return untilNextDeadline(observed, gatherFacts(observed));
  }
}

/** If the VM waits for its Pod, returns the run with the refusal as the reason why there is no Pod. Otherwise returns the run unchanged. */
function withRefusal(run: Run): Run {
  const { observed, findings, refused } = run;
  const { vm, pod } = observed;
  const waits =
    pod === undefined && vm.status?.failure === undefined && vm.metadata.deletionTimestamp === undefined;
  return waits && refused !== undefined
    ? { ...run, findings: { blocked: findings.blocked ?? blockedByRefusal(observed, refused) } }
    : run;
}

function waitOf(outcome: Outcome): number | undefined {
  return outcome.kind === 'requeueAfter' ? outcome.milliseconds : undefined;
}
