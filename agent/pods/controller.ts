/** Makes a machine or a task (a Job's work) from each Pod bound to this host. If that is not possible, the Pod's status shows why. */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { ADOPTS_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { soonest, timestamp } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { Controller, type Result } from '../../kube/controller.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';
import { parkedStatus, type PodRefusal, refusedStatus, STOPPED_EXIT_CODE } from '../../kube/podstatus.ts';
import { acceleratorOf, allDrivers, chooseDriver } from '../drivers/hostdrivers.ts';
import { isOver, type TaskRunner, type TaskState, taskStatus } from '../tasks/runner.ts';
import { admitPod, allocate, type Claimants } from './admission.ts';
import { ENDED_FROM_OUTSIDE, hasMachine, MACHINE_LOST } from './failure.ts';
import { GuestChecks } from './guestchecks.ts';
import type { PodHost } from './host.ts';
import { type MachineRecord, newRecord, type Runtimes } from './machine.ts';
import { Machines } from './machines.ts';
import {
  claimOf,
  documentOf,
  isEnded,
  type PodRole,
  refusalOf,
  roleOf,
  wantedOf,
  wantedWithoutPod,
} from './pod.ts';
import { podUidOf } from './records.ts';
import { adoptDamaged } from './recover.ts';
import { machineStatus, type MachineView, phaseOf } from './status.ts';
import { StatusWriter } from './statuswriter.ts';
import { exportSnapshotBytes } from './snapshots.ts';

/** Number of Pods reconciled at once. Four suffice: long steps run in the background, and one reconciliation takes milliseconds. */
const WORKERS = 4;
/** Time between two admission checks of a waiting Pod. Such checks are necessary, because some resources become free without an event. */
const ADMISSION_LOOK_MILLISECONDS = 1_000;
/** Time between two reconciliations of all machines. Like a kubelet, the agent does not rely on events alone. */
const RELIST_MILLISECONDS = 30_000;

/** Host whose Pods are wanted. If `namespace` is set, the host sees no Pods of other namespaces. */
interface PodScope {
  nodeName: string;
  namespace?: string | undefined;
}

export interface PodControllerOptions {
  client: KubeClient;
  scope: PodScope;
  host: PodHost;
  tasks: TaskRunner;
  logger: Logger;
  metrics: Registry;
}

export class PodController {
  readonly informer: Informer<Pod>;
  readonly machines: Machines;
  readonly #options: PodControllerOptions;
  readonly #host: PodHost;
  readonly #writer: StatusWriter;
  readonly #guests: GuestChecks;
  readonly #controller: Controller;
  readonly #tasks: TaskRunner;
  #synced = false;

  constructor(options: PodControllerOptions) {
    const { client, logger, metrics, host } = options;
    this.#options = options;
    this.#host = host;
    this.informer = new Informer(client, PODS, { ...boundTo(options.scope), logger });
    this.#writer = new StatusWriter({
      client,
      podOf: (key) => this.informer.cache.get(key),
      logger,
      metrics,
    });
    this.#controller = new Controller({
      name: 'pod',
      workers: WORKERS,
      reconcile: (key) => this.#reconcile(key),
      logger,
      metrics,
    });
    this.#guests = new GuestChecks(host, (uid) => this.touch(uid));
    this.machines = new Machines(host, (key) => this.#controller.enqueue(key));
    exportSnapshotBytes(metrics, host.records);
    this.#tasks = options.tasks;
  }

  /** Reconciles Pods. Until the Pods and the Node are known, only `#fence` runs, because other steps remove machines of unknown Pods. */
  async start(signal: AbortSignal, nodeKnown: Promise<void>): Promise<void> {
    this.#controller.start(signal);
    this.informer.start(signal);
    await Promise.all([this.informer.synced, nodeKnown]);
    await adoptDamaged(this.#host, this.informer.cache.list());
    this.#synced = true;
    this.#tasks.sweep(new Set(this.informer.cache.list().map(({ metadata }) => metadata.uid ?? '')));
    this.#writer.start(signal);
    this.informer.cache.onChange(({ type, object }) => {
      if (type === 'deleted' && object.metadata.uid !== undefined) {
        this.#writer.forget(object);
        this.#tasks.forget(object.metadata.uid);
      }
      this.#controller.enqueue(keyOf(object));
    });
    allDrivers(this.#host).forEach((driver) => driver.onChange((uid) => this.touch(uid)));
    this.touchAll();
    const relist = setInterval(() => this.touchAll(), RELIST_MILLISECONDS);
    const end = (): void => {
      clearInterval(relist);
      this.#guests.close();
    };
    signal.addEventListener('abort', end, { once: true });
  }

  /** Returns whether every Pod in the cache still exists. The function reads the Pods from the API server, because the watch can lag. */
  async isUpToDate(signal: AbortSignal): Promise<boolean> {
    const { client, scope } = this.#options;
    return await existAll(this.informer.cache.list(), client, scope, signal);
  }

  /** Requests a reconciliation because something about the Pod with this key has changed. */
  touchPod(key: string): void {
    this.#controller.enqueue(key);
  }

  /** Requests a reconciliation because something about the machine with this uid has changed. */
  touch(uid: string): void {
    const record = this.#host.records.get(uid);
    if (record !== undefined) {
      this.#controller.enqueue(record.key);
    }
  }

  touchAll(): void {
    for (const { key } of this.#host.records.list()) {
      this.#controller.enqueue(key);
    }
  }

  async drained(): Promise<void> {
    await Promise.all([this.#controller.drained(), this.#writer.drained()]);
  }

  async #reconcile(key: string): Promise<Result> {
    if (!this.#synced) {
      return await this.#fence(key);
    }
    const pod = this.informer.cache.get(key);
    const again: (number | undefined)[] = [];
    for (const record of this.#host.records.ofKey(key)) {
      if (podUidOf(record) !== pod?.metadata.uid && !takeOver(this.#host, this.machines, pod, record)) {
        again.push(await this.#dismiss(record));
      }
    }
    if (pod !== undefined) {
      again.push(await this.#serve(this.#writer.newest(pod)));
    }
    const next = soonest(...again);
    return next === undefined ? undefined : { requeueAfterMilliseconds: Math.max(1, next - Date.now()) };
  }

  /** If the host's Lease has expired, ends machines that the API server does not show as running. Works before the Pods are listed. */
  async #fence(key: string): Promise<undefined> {
    for (const record of this.#host.records.ofKey(key)) {
      if (this.#host.fenced() && !record.acknowledged) {
        await this.machines.drive(this.machines.runtime(record), wantedWithoutPod(undefined));
      }
    }
  }

  /** Removes a machine without a Pod, with its disk and without a grace period. A machine that will get another Pod stays. */
  async #dismiss(record: MachineRecord): Promise<number | undefined> {
    if (mustStay(this.#host, record)) {
      await this.machines.drive(this.machines.runtime(record), wantedWithoutPod(undefined));
      return Date.now() + ADMISSION_LOOK_MILLISECONDS;
    }
    this.#guests.forget(record.uid);
    const wanted = wantedWithoutPod({ deadline: Date.now() });
    const progress = await this.machines.drive(this.machines.runtime(record), wanted);
    if (progress.step.kind === 'reached') {
      this.machines.forget(record);
      this.touchAll();
    }
    return progress.again;
  }

  async #serve(pod: Readonly<Pod>): Promise<number | undefined> {
    const { uid = '' } = pod.metadata;
    const task = this.#tasks.state(uid);
    if (task !== undefined) {
      return this.#serveTask(pod, task);
    }
    const role = roleOf(pod);
    const record = this.#host.records.ofPod(uid);
    return record === undefined ? await this.#receive(pod, role) : await this.#drive(pod, record, role);
  }

  /** Handles a Pod that has no machine and no task on this host yet. */
  #receive(pod: Readonly<Pod>, role: PodRole): Promise<number | undefined> | number | undefined {
    if (pod.metadata.deletionTimestamp !== undefined) {
      return this.#end(pod, {
        reason: 'Terminated',
        message: 'The Pod was deleted before it ran on this host',
        exitCode: STOPPED_EXIT_CODE,
        isDisruption: role.kind === 'foreign',
      });
    }
    if (isEnded(pod)) {
      return undefined;
    }
    switch (role.kind) {
      case 'foreign':
        return this.#park(pod, {
          reason: 'HostRunsOnlyMachines',
          message: 'This host runs VMs, emulators and tasks of Berth, and nothing else',
        });
      case 'tooNew':
      case 'invalid':
        return this.#end(pod, refusalOf(role));
      default:
        return hasMachine(pod, role) || adopts(pod) ? this.#end(pod, MACHINE_LOST) : this.#admit(pod, role);
    }
  }

  #admit(
    pod: Readonly<Pod>,
    role: PodRole & { kind: 'machine' | 'task' },
  ): Promise<number | undefined> | number | undefined {
    const admission = admitPod(pod, this.#claimants());
    if (admission.kind === 'refused') {
      return this.#end(pod, { ...admission, exitCode: 1 });
    }
    if (admission.kind === 'wait') {
      this.#park(pod, { reason: 'Starting', ...admission });
      return Date.now() + ADMISSION_LOOK_MILLISECONDS;
    }
    // There must be no `await` between the admission of a Pod and the use of its slot. Otherwise two Pods could get the last slot.
    if (role.kind === 'task') {
      this.#tasks.start(pod, keyOf(pod), role.task);
      return this.#serve(pod);
    }
    const document = documentOf(role);
    const from = { uid: pod.metadata.uid ?? '', key: keyOf(pod), ...document, claim: claimOf(pod) };
    const record = {
      ...newRecord({ ...from, driver: chooseDriver(this.#host, document) }),
      // Earlier requests to restart or revert count as done, because a new machine has nothing to restart or revert.
      restartedAt: role.desired.restartRequestedAt,
      revertedAt: role.desired.revertRequestedAt,
    };
    this.#host.records.save(record);
    return this.#drive(pod, record, role);
  }

  #claimants(): Claimants {
    return { host: this.#host, pods: this.informer.cache.list(), tasks: this.#tasks };
  }

  async #drive(pod: Readonly<Pod>, record: MachineRecord, role: PodRole): Promise<number | undefined> {
    const runtime = this.machines.runtime(record);
    const wanted = wantedOf(pod, role, runtime, Date.now());
    if (isEnded(pod) && record.failure === undefined) {
      this.#host.records.update(record, { failure: ENDED_FROM_OUTSIDE });
    }
    const pendingResize = allocate(pod, record, this.#claimants());
    const { step, again } = await this.machines.drive(runtime, wanted);
    this.#guests.follow(pod, runtime);
    const accelerator = acceleratorOf(this.#host, record, runtime.state);
    this.#tell(pod, { runtime, step, wanted, accelerator, pendingResize });
    return again;
  }

  #tell(pod: Readonly<Pod>, view: MachineView): void {
    const { uid } = view.runtime.record;
    const isRunning = phaseOf(view) === 'Running';
    const status = machineStatus(pod, view, this.#host, timestamp(Date.now()));
    this.#writer.show(pod, status, {
      finish: view.wanted.deletion !== undefined && view.step.kind === 'reached',
      onTaken: () => {
        const record = this.#host.records.get(uid);
        if (isRunning && record?.acknowledged === false) {
          this.#host.records.update(record, { acknowledged: true });
        }
      },
    });
  }

  /** Shows the state of a task in its Pod. If the Pod is being deleted, aborts the task, and deletes the Pod when the task has ended. */
  #serveTask(pod: Readonly<Pod>, state: TaskState): undefined {
    const { uid = '', deletionTimestamp } = pod.metadata;
    if (deletionTimestamp !== undefined) {
      this.#tasks.abort(uid);
    }
    const status = taskStatus(pod, state, this.#host.address, timestamp(Date.now()));
    this.#writer.show(pod, status, { finish: deletionTimestamp !== undefined && isOver(state) });
  }

  #park(pod: Readonly<Pod>, why: { reason: Reason; message: string }): undefined {
    this.#writer.show(pod, parkedStatus(pod, why, this.#host.address, timestamp(Date.now())));
  }

  /** Ends a Pod that has no machine and no task. The Pod's status shows the reason. If the Pod is being deleted, completes the deletion. */
  #end(pod: Readonly<Pod>, why: PodRefusal & { reason: Reason }): undefined {
    const status = refusedStatus(pod, why, this.#host.address, timestamp(Date.now()));
    this.#writer.show(pod, status, { finish: pod.metadata.deletionTimestamp !== undefined });
  }
}

/** Returns the options with which the Pods bound to a host are listed and watched. */
function boundTo({ nodeName, namespace }: PodScope): { fieldSelector: string; namespace?: string } {
  return { fieldSelector: `spec.nodeName=${nodeName}`, ...(namespace !== undefined && { namespace }) };
}

/** Returns whether every one of these Pods still exists. The function reads the Pods from the API server. @throws ApiError */
async function existAll(
  pods: readonly Readonly<Pod>[],
  client: KubeClient,
  scope: PodScope,
  signal: AbortSignal,
): Promise<boolean> {
  const { items } = await client.list(PODS, { ...boundTo(scope), signal });
  const there = new Set(items.map(({ metadata }) => metadata.uid));
  return pods.every(({ metadata }) => there.has(metadata.uid));
}

/** Returns whether the Pod continues the machine of an earlier Pod. The host must never create a new machine for it. */
function adopts({ metadata }: Readonly<Pod>): boolean {
  return metadata.annotations?.[ADOPTS_ANNOTATION] !== undefined;
}

/** Returns whether the Pod continues this machine. */
function isSuccessor(pod: Readonly<Pod>, { machine, created }: Readonly<MachineRecord>): boolean {
  const role = roleOf(pod);
  const vm = role.kind === 'machine' ? role.machine?.vm : undefined;
  return adopts(pod) && created && vm !== undefined && vm.uid === machine?.vm.uid;
}

/** Gives the machine to the Pod if this Pod continues it. Returns false if it does not. */
function takeOver(
  { records }: Pick<PodHost, 'records'>,
  machines: Runtimes,
  pod: Readonly<Pod> | undefined,
  record: MachineRecord,
): boolean {
  if (pod === undefined || !isSuccessor(pod, record)) {
    return false;
  }
  records.update(record, { podUid: pod.metadata.uid ?? '' });
  machines.runtime(record).leaving = undefined;
  return true;
}

/**
 * Returns whether a machine without a Pod must stay. The operator lists the machines that get another Pod on the Node. While the operator has
 * not set up the Node, for example because the Node is new, every machine stays.
 */
function mustStay(host: Pick<PodHost, 'capacity' | 'isAwaited'>, record: Readonly<MachineRecord>): boolean {
  return host.capacity().slots === undefined || host.isAwaited(record);
}
