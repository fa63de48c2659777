/** Types of the kinds whose machine is a Pod, VM and Emulator: their steps, and what else makes one kind different from the other. */
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import type { Condition, KubeObject, Resource } from '../../kube/objects.ts';
import type { PodObserved } from './observe.ts';

/** Object whose machine is a Pod. */
export interface PodBacked extends KubeObject {
  status?: PodBackedStatus;
}

/** The part of the status that decides whether people wait for a change. */
export interface PodBackedStatus {
  phase?: string | undefined;
  attempt?: number | undefined;
  observedGeneration?: number | undefined;
  conditions?: Condition[] | undefined;
  failure?: object | undefined;
}

/** Reason why an object has no Pod, and the condition that tells it. */
export interface Blocked {
  readonly condition: 'Scheduled' | 'ImageReady' | 'Stalled';
  readonly reason: Reason;
  readonly message: string;
}

export type Outcome =
  /** The reconcile continues with the next step. */
  | { readonly kind: 'done' }
  /** The reconcile ends, because the operator must wait for a change. `for` describes this change. */
  | { readonly kind: 'wait'; readonly for: string }
  | { readonly kind: 'requeueAfter'; readonly milliseconds: number }
  /** The object goes, so the reconcile ends without a status, which nobody reads any more. */
  | { readonly kind: 'gone' };

export interface StepResult<Write> {
  /** Requests to the API server, in their order. */
  readonly writes: readonly Write[];
  readonly outcome: Outcome;
  /** Set if the object cannot get its Pod at the moment. The reconcile then ends after the writes. */
  readonly blocked?: Blocked | undefined;
}

/** A pure function that returns the next requests for an object. */
export type PlanStep<Observed, Facts, Write> = (observed: Observed, facts: Facts) => StepResult<Write>;

/** Result of the steps of one reconcile. */
export interface Run<Observed> {
  readonly observed: Observed;
  readonly outcome: Outcome;
  readonly blocked?: Blocked | undefined;
  /** Set if the API server refused a change of an existing object, or if its errors last. */
  readonly refused?: Error | undefined;
}

/** How a kind and its Pods are named. */
export interface Naming<T extends PodBacked, Observed> {
  readonly resource: Resource<T>;
  /** Label of a Pod with the uid of its object. It decides, because an orphaned Pod has no owner reference. */
  readonly uidLabel: string;
  /** Returns the key of the Pod from the key of its object. Both keys are `namespace/name`. */
  readonly podKeyOf: (key: string) => string;
  readonly objectOf: (observed: Observed) => T;
  /** Returns the message about another Pod that has the name of the object's Pod. */
  readonly nameTaken: (object: T, other: Pod) => string;
}

/** What makes one kind different from the other. All functions are pure. */
export interface PodBackedKind<T extends PodBacked, Observed extends PodObserved, Facts, Write>
  extends Naming<T, Observed> {
  /**
   * Returns a substitute for an object that no longer exists, although its Pod still exists. The substitute has a deletion time, so the Pod
   * ends under the same conditions as the Pod of an object that is being deleted. `now` is in milliseconds since the epoch.
   */
  readonly substitute: (pod: Pod, uid: string, now: number) => T;
  /** Returns the facts in the status together with the facts that this reconcile finds. */
  readonly gatherFacts: (observed: Observed) => Facts;
  /** Returns the steps in their order. The first step whose outcome is not `done` ends the reconcile. */
  readonly stepsFor: (observed: Observed) => readonly PlanStep<Observed, Facts, Write>[];
  /** Computes the whole status. The result is undefined while the status stays as it is. */
  readonly summarize: (run: Run<Observed>, facts: Facts) => NonNullable<T['status']> | undefined;
  /** Phases in which an object is being deployed. A change between them can be stored later. */
  readonly deployment: ReadonlySet<string>;
  /** Returns the milliseconds until the next deadline. The result is undefined if there is none. */
  readonly untilNextDeadline: (observed: Observed, facts: Facts) => number | undefined;
  /** Returns true if no watch shows when the obstacle is gone, so that the operator must look again. */
  readonly isRechecked: (blocked: Blocked) => boolean;
}
