/**
 * Reconciles Emulators in this order: observe, plan (pure), execute one request, compute the whole status, store the changes of the status.
 */
import type { Logger } from 'pino';
import { emulatorStatusSchema, type Emulator, type EmulatorStatus } from '../../api/v1alpha1/emulator.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import { soonest } from '../../base/time.ts';
import type { Cache } from '../../kube/cache.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import type { ConfigMap, Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import type { Recorder } from '../objects/events.ts';
import { keyOf, type KubeObject } from '../../kube/objects.ts';
import { hostStateChanged, PODS_BY_NODE } from '../host/observe.ts';
import { onPowerChange } from '../host/power.ts';
import { changedHosts } from '../host/records.ts';
import { conditionIn } from '../objects/conditions.ts';
import { HeldStatus } from '../objects/heldstatus.ts';
import { recheckMilliseconds, Refusals, unlessBlocking } from '../objects/refusals.ts';
import { recordDeletion, recordTransition } from './events.ts';
import { isOverdue, untilNextDeadline } from './facts.ts';
import { systemImagesChanged } from './pairing.ts';
import {
  emulatorKeyOf,
  isPodOf,
  type Observed,
  observe,
  podKeyOf,
  type Sources,
  withCurrentVM,
} from './observe.ts';
import { type Blocked, endsWithVM, plan, type Write } from './plan.ts';
import { isMinorChange, summarize } from './status.ts';
import { blockedByRefusal, EmulatorWriter, type Executed } from './writes.ts';

/**
 * Longest delay in milliseconds of a status change, if nobody waits for this change. Because of the delay, one request can store several
 * changes.
 */
const FOLD_MILLISECONDS = 500;
/**
 * Reasons why a Pod could not be created: a quota, for example, or another Pod of the same name. With one of these reasons, the operator
 * tries again after {@link recheckMilliseconds}. With any other reason, a watch shows when the operator can try again.
 */
const RECHECKED: ReadonlySet<string> = new Set<Blocked['reason']>(['PodRefused', 'PodNameTaken']);

/** Index of Emulators by the key of their VM. */
export const EMULATORS_BY_VM = 'vm';

export interface EmulatorControllerOptions extends Sources {
  readonly consistency: Consistency;
  readonly recorder: Recorder;
}

/** Result of one request. `refused` is set if the API server refused a change of an existing object, or if its errors last. */
interface Run extends Pick<Executed, 'observed' | 'blocked'> {
  readonly write?: Write | undefined;
  readonly refused?: Error | undefined;
}

export class EmulatorReconciler {
  readonly #options: EmulatorControllerOptions;
  readonly #writer: EmulatorWriter;
  readonly #status: HeldStatus;
  readonly #refusals: Refusals;

  constructor(options: EmulatorControllerOptions) {
    this.#options = options;
    this.#writer = new EmulatorWriter(options);
    this.#status = new HeldStatus({ holdMilliseconds: FOLD_MILLISECONDS, clock: options.clock });
    this.#refusals = new Refusals({ ...options, dependent: 'Pod' });
  }

  /** Reconciles one Emulator once. `key` is `namespace/name`. */
  async reconcile(key: string, { logger }: { logger: Logger }): Promise<Result> {
    const { emulators, emulatorPods, consistency } = this.#options;
    const emulator = emulators.cache.get(key);
    const pod = emulatorPods.cache.get(podKeyOf(key));
    if (pod !== undefined && (emulator === undefined || !isPodOf(pod, emulator))) {
      await this.#endOrphan(key, pod, logger);
    }
    if (emulator === undefined) {
      this.#status.forget(key);
      this.#refusals.forget(key);
      consistency.forget(key);
      return undefined;
    }
    return await this.#reconcileEmulator(key, emulator);
  }

  async #reconcileEmulator(key: string, emulator: Emulator): Promise<Result> {
    const { observed, write, blocked, refused } = await this.#attempt(
      key,
      await observe(this.#options, emulator),
    );
    this.#refusals.record(emulator, unlessBlocking(refused, blocked));
    if (isGoing(write) && refused === undefined) {
      this.#tellDeletion(emulator, write);
      return undefined;
    }
    const status = boundStatus(emulatorStatusSchema, summarize(observed, blocked));
    const held = await this.#writeStatus(key, observed.emulator, status, refused);
    if (refused !== undefined) {
      throw refused;
    }
    const waitsSince = conditionIn(emulator.status, 'Ready')?.lastTransitionTime;
    const recheck =
      blocked && RECHECKED.has(blocked.reason) ? recheckMilliseconds(waitsSince, observed.now) : undefined;
    return { requeueAfterMilliseconds: soonest(held, untilNextDeadline(observed), recheck) };
  }

  /**
   * Plans and executes the next request. An error of the API server that lasts becomes the result `refused`. An Emulator that waits for its
   * Pod is then blocked, so that its status has the words of the API server.
   * @throws any error that does not last yet
   */
  async #attempt(key: string, known: Observed): Promise<Run> {
    try {
      const before = await this.#confirmed(known);
      const { write, blocked } = plan(before);
      const done: Executed =
        write === undefined ? { observed: before } : await this.#writer.execute(before, write);
      if (done.refused === undefined) {
        this.#refusals.succeeded(key);
      }
      return withRefusal({ ...done, write, blocked: done.blocked ?? blocked });
    } catch (error) {
      const refused = this.#refusals.judge(key, error);
      if (refused === undefined) {
        throw error;
      }
      return withRefusal({ observed: known, refused });
    }
  }

  /**
   * Replaces the parts of the observed state because of which this reconcile would end the emulator. An emulator that ends loses its data,
   * and a cache can lag, for example after an outage of the API server or in a new leader.
   */
  async #confirmed(known: Observed): Promise<Observed> {
    const { observed } = isLate(known) ? await this.#writer.readPod(known) : { observed: known };
    return endsWithVM(observed) ? await withCurrentVM(this.#options, observed) : observed;
  }

  #tellDeletion(emulator: Emulator, write: Write | undefined): void {
    if (write?.kind === 'deleteEmulator') {
      recordDeletion(this.#options.recorder, emulator);
    }
  }

  /**
   * Stores the status now, or leaves this to a later reconcile. In the second case, returns the milliseconds until that reconcile. The
   * result is undefined if the status was stored or did not change.
   */
  async #writeStatus(
    key: string,
    emulator: Emulator,
    status: EmulatorStatus,
    refused: Error | undefined,
  ): Promise<number | undefined> {
    const { status: last } = emulator;
    // After an error, the next reconcile can come too late to store a change that waits.
    const mayWait = () => refused === undefined && isMinorChange(last, status);
    const change = { before: last, after: status, mayWait };
    return await this.#status.write(key, change, async (patch) => {
      if (await this.#writer.writeStatus(emulator, patch)) {
        recordTransition(this.#options.recorder, emulator, status);
      }
    });
  }

  /** Deletes a Pod whose Emulator no longer exists. Such a Pod remains if somebody removed the finalizer of the Emulator by force. */
  async #endOrphan(key: string, pod: Pod, logger: Logger): Promise<void> {
    const isEnding = pod.metadata.deletionTimestamp !== undefined;
    if (!isEnding && (await this.#writer.emulatorIsGone(key, pod))) {
      logger.info({ pod: keyOf(pod) }, 'deleting a Pod whose Emulator is gone');
      await this.#writer.deletePod(pod, false);
    }
  }
}

/**
 * If the Emulator waits for its Pod, returns the run with the refusal as the reason why there is no Pod. Otherwise returns the run unchanged.
 */
function withRefusal(run: Run): Run {
  const { emulator, pod } = run.observed;
  const { metadata, status } = emulator;
  const waits =
    pod === undefined && status?.failure === undefined && metadata.deletionTimestamp === undefined;
  return waits && run.refused !== undefined
    ? { ...run, blocked: run.blocked ?? blockedByRefusal(emulator, run.refused) }
    : run;
}

/** Returns true if, according to the caches, this reconcile ends an emulator that was not Running in time. */
function isLate(observed: Observed): boolean {
  const { emulator, pod } = observed;
  const isEnding = emulator.status?.failure !== undefined || pod?.metadata.deletionTimestamp !== undefined;
  return !isEnding && isOverdue(observed);
}

/**
 * Returns true if the request deletes the Emulator or removes its finalizer. In both cases the status is not stored, because nobody reads
 * it any more.
 */
function isGoing(write: Write | undefined): boolean {
  return write?.kind === 'deleteEmulator' || write?.kind === 'removeFinalizer';
}

/** Enqueues an Emulator when it, its Pod, its VM, the VM's Pod, their host or its record has changed. */
export function enqueueEmulators(
  controller: Controller,
  sources: Sources & { readonly recordsMap: Informer<ConfigMap> },
): void {
  const { emulators, emulatorPods, vms, pods, nodes, servers, recordsMap } = sources;
  const ofVM = (vmKey: string) =>
    emulators.cache
      .byIndex(EMULATORS_BY_VM, vmKey)
      .forEach((emulator) => controller.enqueue(keyOf(emulator)));
  emulators.cache.onChange(({ object }) => controller.enqueue(keyOf(object)));
  emulatorPods.cache.onChange(({ object }) =>
    controller.enqueue(emulatorKeyOf(keyOf(object)), { urgent: true }),
  );
  vms.cache.onChange(({ object }) => ofVM(keyOf(object)));
  // The VM's Pod is watched in addition to the VM, because only the Pod reports every stop of the machine. The VM's status can miss a short
  // stop. A VM and its Pod have the same key, so the key of the Pod finds the Emulators of the VM.
  pods.cache.onChange(({ object }) => ofVM(keyOf(object)));
  const onHost = (name: string): void => {
    onNode(pods.cache, name).forEach((pod) => ofVM(keyOf(pod)));
    onNode(emulatorPods.cache, name).forEach((pod) => controller.enqueue(emulatorKeyOf(keyOf(pod))));
  };
  recordsMap.cache.onChange((change) => changedHosts(change).forEach(onHost));
  onPowerChange(servers, onHost);
  nodes.cache.onChange(({ type, object, previous }) => {
    if (type !== 'updated' || hostStateChanged(previous, object) || systemImagesChanged(previous, object)) {
      onHost(object.metadata.name);
    }
  });
}

function onNode<T extends KubeObject>(cache: Cache<T>, node: string): readonly Readonly<T>[] {
  return cache.byIndex(PODS_BY_NODE, node);
}
