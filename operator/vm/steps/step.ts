/**
 * Types of a VM's steps. A step is a pure function of the observed state. It returns the requests to the API server, and how the reconcile
 * continues.
 */
import type { Pod, Secret } from '../../../kube/core.ts';
import type { Unsaved } from '../../../kube/objects.ts';
import type { Facts } from '../facts.ts';
import type { Observed, Size } from '../observe.ts';
import type { Findings } from '../status.ts';

export type Write =
  | { readonly kind: 'addFinalizer' }
  | { readonly kind: 'removeFinalizer' }
  /**
   * `ignoredEntries` contains messages about registry entries that were ignored because of mistakes. The Pod might lack the credentials of
   * such an entry.
   */
  | { readonly kind: 'createPod'; readonly pod: Unsaved<Pod>; readonly ignoredEntries: readonly string[] }
  /**
   * A CREATE of the VNC Secret. If a Secret of this name already exists, the request also counts as a success. The operator cannot check
   * that Secret, because it has no right to read Secrets.
   */
  | { readonly kind: 'createSecret'; readonly secret: Unsaved<Secret> }
  /** A PATCH of `pods/resize`. A refusal is stored in {@link Observed.resizeRefused}. */
  | { readonly kind: 'resizePod'; readonly size: Size }
  | { readonly kind: 'patchDesired'; readonly text: string }
  | { readonly kind: 'deletePod'; readonly force: boolean }
  | { readonly kind: 'releasePod' }
  /** Stores the Pod that will continue the machine of the present Pod, as `successorOf` makes it. */
  | { readonly kind: 'saveSuccessor' }
  /** Tells the host to keep the VM's machine while it has no Pod, and keeps other VMs from the host meanwhile. */
  | { readonly kind: 'awaitPod' }
  /** Stores MAC addresses of abandoned machines on the Pod's Node. */
  | { readonly kind: 'rememberGivenUp'; readonly macAddresses: readonly string[] }
  /**
   * A DELETE that fails if the VM has changed since it was read. `unansweredSince` is set if the client that deployed the VM did not get
   * the answer in time. Its value is the time until which the client waited, in milliseconds since the epoch.
   */
  | { readonly kind: 'deleteVM'; readonly unansweredSince?: number };

export type Outcome =
  /** The reconcile continues with the next step. */
  | { readonly kind: 'done' }
  /** The reconcile ends, because the operator must wait for a change. `for` describes this change. */
  | { readonly kind: 'wait'; readonly for: string }
  | { readonly kind: 'requeueAfter'; readonly milliseconds: number };

export interface StepResult {
  readonly writes: readonly Write[];
  readonly outcome: Outcome;
  readonly blocked?: NonNullable<Findings['blocked']>;
}

export type Step = (observed: Observed, facts: Facts) => StepResult;

export const NOTHING: StepResult = { writes: [], outcome: { kind: 'done' } };

export function waitFor(what: string, ...writes: Write[]): StepResult {
  return { writes, outcome: { kind: 'wait', for: what } };
}

export function requeueAfter(milliseconds: number, ...writes: Write[]): StepResult {
  return { writes, outcome: { kind: 'requeueAfter', milliseconds: Math.max(milliseconds, 0) } };
}
