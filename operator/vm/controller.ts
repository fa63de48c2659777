/**
 * Reconciles VMs: finalizer → steps in their order → the whole status computed in one place → only what differs is written.
 * Nothing here waits for anything; what must be looked at later comes back by its key.
 */
import type { Logger } from 'pino';
import { soonest } from '../../base/time.ts';
import { POD_FINALIZER, VM_FINALIZER, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import { vmStatusSchema } from '../../api/v1alpha1/vmstatus.ts';
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Result } from '../../kube/controller.ts';
import type { Pod } from '../../kube/core.ts';
import { isNotFound } from '../../kube/errors.ts';
import type { EventRecorder } from '../../kube/events.ts';
import { refOf } from '../../kube/objects.ts';
import { mergeDiff } from '../objects/mergepatch.ts';
import type { VMMetrics } from './metrics.ts';
import { recordDoubledIdentity, recordTransition } from './events.ts';
import { Executor } from './writes.ts';
import { gatherFacts, lostPlacement, terminated } from './facts.ts';
import { macAddressOf, NODES_BY_GIVEN_UP } from './abandoned.ts';
import { isDeploying, readLive } from './live.ts';
import { observe, type Sources } from './observe.ts';
import type { Observed } from './observed.ts';
import { type ResizeRefusal, standingRefusal } from './size.ts';
import { type Findings, isMinorChange, summarize } from './status.ts';
import { stepsFor } from './steps/index.ts';
import type { Outcome } from './steps/step.ts';
import { nextWake } from './deadlines.ts';

/** How long a change that nobody waits for is held back, to be folded into the next write. */
const FOLD_MILLISECONDS = 500;
/** After a refusal by quota, Pod Security or a taken name: no watch tells when the reason goes away. */
const BLOCKED_RECHECK_MILLISECONDS = 10_000;

export interface VMControllerOptions extends Sources {
  readonly consistency: Consistency;
  readonly recorder: EventRecorder<SaidReason>;
  readonly metrics: VMMetrics;
}

export class VMReconciler {
  readonly #options: VMControllerOptions;
  readonly #executor: Executor;
  /** Since when a minor change of a VM's status has been held back, in milliseconds. */
  readonly #heldSince = new Map<string, number>();
  /** By key, for the VMs whose Pods may not have the size that is asked for. A new leader asks once more. */
  readonly #resizeRefused = new Map<string, ResizeRefusal>();

  constructor(options: VMControllerOptions) {
    this.#options = options;
    this.#executor = new Executor(options);
  }

  /** One look at one VM. `key` is `namespace/name`. */
  async reconcile(key: string, { logger }: { logger: Logger }): Promise<Result> {
    const { vms, pods } = this.#options;
    const vm = vms.cache.get(key);
    const pod = pods.cache.get(key);
    if (pod !== undefined && pod.metadata.labels?.[VM_UID_LABEL] !== vm?.metadata.uid) {
      await this.#endOrphan(key, pod, logger);
    }
    if (vm === undefined) {
      this.#heldSince.delete(key);
      this.#resizeRefused.delete(key);
      this.#options.consistency.forget(key);
      return undefined;
    }
    return await this.#reconcileVM(key, vm);
  }

  async #reconcileVM(key: string, vm: VM): Promise<Result> {
    const known = { ...(await observe(this.#options, vm)), resizeRefused: this.#resizeRefused.get(key) };
    const start = isDeploying(known) ? await readLive(this.#options.client, known) : known;
    const { observed, findings, outcome } = await this.#runSteps(start);
    this.#remember(key, observed);
    const { deletionTimestamp, finalizers } = observed.vm.metadata;
    if (deletionTimestamp !== undefined && finalizers?.includes(VM_FINALIZER) !== true) {
      return undefined;
    }
    const facts = gatherFacts(observed);
    const status = boundStatus(vmStatusSchema, summarize(observed, facts, findings));
    const held = await this.#writeStatus(key, observed, status);
    const requeueAfterMilliseconds = soonest(
      held,
      nextWake(observed, facts),
      waitOf(outcome),
      findings.blocked && BLOCKED_RECHECK_MILLISECONDS,
    );
    return { requeueAfterMilliseconds };
  }

  #remember(key: string, observed: Observed): void {
    const refusal = standingRefusal(observed);
    if (refusal === undefined) {
      this.#resizeRefused.delete(key);
    } else {
      this.#resizeRefused.set(key, refusal);
    }
  }

  async #runSteps(start: Observed): Promise<{ observed: Observed; findings: Findings; outcome: Outcome }> {
    let observed = start;
    for (const step of stepsFor(start)) {
      const result = step(observed, gatherFacts(observed));
      if (result.blocked !== undefined) {
        return { observed, findings: { blocked: result.blocked }, outcome: result.outcome };
      }
      for (const write of result.writes) {
        const executed = await this.#executor.execute(observed, write);
        observed = executed.observed;
        if (write.kind === 'createPod' && executed.blocked === undefined) {
          this.#tellDoubledIdentity(observed);
        }
        if (executed.blocked !== undefined) {
          return { observed, findings: { blocked: executed.blocked }, outcome: result.outcome };
        }
      }
      if (result.outcome.kind !== 'done') {
        return { observed, findings: {}, outcome: result.outcome };
      }
    }
    return { observed, findings: {}, outcome: { kind: 'done' } };
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

  /** Returns for how long the write is held back, undefined when it was done or there is none. */
  async #writeStatus(key: string, observed: Observed, status: VMStatus): Promise<number | undefined> {
    const { vm } = observed;
    const patch = mergeDiff(vm.status, status);
    if (patch === undefined) {
      this.#heldSince.delete(key);
      return undefined;
    }
    const remaining = this.#remainingHold(key, vm, status);
    if (remaining > 0) {
      return remaining;
    }
    this.#heldSince.delete(key);
    await this.#save(observed, status, patch);
    return undefined;
  }

  async #save(observed: Observed, status: VMStatus, patch: object): Promise<void> {
    const { vm, now } = observed;
    try {
      await this.#executor.writeStatus(vm, patch);
    } catch (error) {
      if (isNotFound(error)) {
        return;
      }
      throw error;
    }
    this.#options.metrics.observe(vm, vm.status, status, now);
    recordTransition(this.#options.recorder, vm, status, lostPlacement(observed, status));
  }

  #remainingHold(key: string, vm: VM, status: VMStatus): number {
    if (!isMinorChange(vm.status, status)) {
      return 0;
    }
    const now = this.#options.clock();
    const since = this.#heldSince.get(key) ?? now;
    this.#heldSince.set(key, since);
    return since + FOLD_MILLISECONDS - now;
  }

  /** A Pod of a VM that no longer exists (cascade=orphan, a finalizer taken away by force) is deleted and let go likewise. */
  async #endOrphan(key: string, pod: Pod, logger: Logger): Promise<void> {
    const uid = pod.metadata.labels?.[VM_UID_LABEL];
    if (uid === undefined || !(await this.#executor.vmIsGone(refOf(key), uid))) {
      return;
    }
    if (pod.metadata.deletionTimestamp === undefined) {
      logger.info({ pod: key, vmUid: uid }, 'deleting a Pod whose VM is gone');
      await this.#executor.deletePod(pod, false);
      return;
    }
    if (this.#hasEndedFor(pod) && pod.metadata.finalizers?.includes(POD_FINALIZER) === true) {
      await this.#executor.releaseOrphan(pod);
    }
  }

  #hasEndedFor(pod: Pod): boolean {
    const { nodeName } = pod.spec;
    return (
      terminated(pod) !== undefined ||
      nodeName === undefined ||
      this.#options.nodes.cache.get(nodeName) === undefined
    );
  }
}

function waitOf(outcome: Outcome): number | undefined {
  return outcome.kind === 'requeueAfter' ? outcome.milliseconds : undefined;
}
