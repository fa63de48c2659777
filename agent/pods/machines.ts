/** Drives machines: one look, one decision, one step at a time for each; long steps run beside and come back by `changed`. */
import { join } from 'node:path';
import { soonest } from '../../base/time.ts';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import type { Pod } from '../../kube/core.ts';
import { reasonOf } from '../../base/errors.ts';
import { ACTIONS } from './steps.ts';
import type { GuardedMachine } from './diskguard.ts';
import type { Host } from './host.ts';
import { type Observed, plan, type Step } from './plan.ts';
import { type MachineFailure, type MachineRecord, suspendedBytes } from './machine.ts';
import { newRuntime, newTask, type Runtime, type Task, type TaskKind } from './runtime.ts';
import type { MachinePhase } from './status.ts';
import { verdictOf } from './failure.ts';

/** Facts noted one after another before a step is found; more would be a planner that goes in circles. */
const ROUNDS = 8;
/** Checks in a row without repair until a machine that has not run yet is given up; one may fall into a repair. */
const FAULTY_CHECKS = 2;

const PHASES: Readonly<Record<TaskKind, MachinePhase>> = {
  create: 'Pulling',
  start: 'Starting',
  stop: 'Stopping',
  pause: 'Running',
  unpause: 'Running',
  suspend: 'Suspending',
  resume: 'Resuming',
  revert: 'Starting',
  release: 'Stopping',
  remove: 'Terminating',
};

/** During these a guest may still write, and no other step can be taken. */
const ENDING: ReadonlySet<TaskKind> = new Set(['stop', 'release']);

/** What is asked of one machine at one moment. */
export interface Request {
  record: MachineRecord;
  /** Undefined when it is gone. */
  pod: Readonly<Pod> | undefined;
  desired: Desired | undefined;
  deletion: { deadline: number } | undefined;
  activeDeadline: number | undefined;
  graceMilliseconds: number;
}

export interface Progress {
  runtime: Runtime;
  /** The step that was begun or is still to come; `settled` when all is as wanted. */
  step: Step;
  /** When to look again although nothing changes, in milliseconds since the epoch. */
  again: number | undefined;
}

export class Machines {
  readonly #host: Host;
  readonly #changed: (key: string) => void;
  readonly #runtimes = new Map<string, Runtime>();

  /** `changed` is called with a machine's key whenever it should be driven again. */
  constructor(host: Host, changed: (key: string) => void) {
    this.#host = host;
    this.#changed = changed;
  }

  runtime(record: Readonly<MachineRecord>): Runtime {
    const known = this.#runtimes.get(record.uid);
    if (known !== undefined) {
      return known;
    }
    const path = join(this.#host.machinesDirectory, record.uid);
    const made = newRuntime({ path, uid: record.uid }, record.running);
    this.#runtimes.set(record.uid, made);
    return made;
  }

  /** Nothing of the machine remains, and nobody asks for it any more. */
  forget(record: Readonly<MachineRecord>): void {
    this.#runtimes.delete(record.uid);
    this.#host.records.remove(record.uid);
    this.#host.images.release(`machine/${record.uid}`);
  }

  /** Those whose guests may write, or are paused. */
  guarded(): GuardedMachine[] {
    return [...this.#runtimes.values()].flatMap(({ folder: { uid }, state, task }) =>
      state.kind === 'running' && (task === undefined || ENDING.has(task.kind))
        ? [{ uid, paused: state.paused }]
        : [],
    );
  }

  async drive(request: Request): Promise<Progress> {
    const runtime = this.runtime(request.record);
    for (let round = 0; round < ROUNDS; round += 1) {
      if (runtime.task !== undefined) {
        return this.#underWay(request, runtime, runtime.task);
      }
      runtime.state = await this.#host.driver.inspect(runtime.folder);
      if (runtime.state.kind === 'running') {
        runtime.unseen = false;
      }
      const now = Date.now();
      const step = plan(this.#observe(request, runtime), request.desired, now);
      const progress = this.#take(request, runtime, step, now);
      if (progress !== undefined) {
        return progress;
      }
    }
    throw new Error(`machine ${request.record.uid}: no step found in ${ROUNDS} rounds`);
  }

  #observe(request: Request, runtime: Runtime): Observed {
    const { record, deletion, activeDeadline, graceMilliseconds } = request;
    const { monitor, network } = this.#host;
    const given = monitor.faultyChecks >= FAULTY_CHECKS && network.name === 'nat';
    return {
      state: runtime.state,
      record,
      deletion,
      fenced: this.#host.fenced(),
      unseen: runtime.unseen,
      activeDeadline,
      networkFault: given ? monitor.host?.message : undefined,
      graceMilliseconds,
      diskWish: this.#host.disk.wish(record.uid),
      noRoomToSuspend: this.#noRoomToSuspend(record),
    };
  }

  /** Memory of machines that are being suspended is on its way to the disk. */
  #noRoomToSuspend(record: Readonly<MachineRecord>): string | undefined {
    const suspending = [...this.#runtimes.values()].filter(({ task }) => task?.kind === 'suspend');
    const others = suspending
      .map(({ folder }) => this.#host.records.get(folder.uid))
      .filter((other) => other !== undefined);
    const promised = others.reduce((sum, other) => sum + suspendedBytes(other), 0);
    const needed = suspendedBytes(record);
    return needed <= this.#host.disk.roomBytes - promised
      ? undefined
      : `its memory takes ${needed} bytes, which the host's disk does not have beside what is to stay free (images.minimumFree)`;
  }

  /** Undefined: a fact was noted, look again. */
  #take(request: Request, runtime: Runtime, step: Step, now: number): Progress | undefined {
    const { record } = request;
    const activeDeadline = ahead(request, now);
    switch (step.kind) {
      case 'note':
        this.#host.records.update(record, step.change);
        this.#tellEnd(request, step.change);
        return undefined;
      case 'fail':
        this.#fail(request, step.failure);
        return undefined;
      case 'settled':
        runtime.trouble = undefined;
        return { runtime, step, again: activeDeadline };
      case 'wait':
        return { runtime, step, again: soonest(step.until, activeDeadline) };
      default:
        if (now < runtime.notBefore) {
          return { runtime, step, again: soonest(runtime.notBefore, activeDeadline) };
        }
        this.#begin(request, runtime, step);
        return { runtime, step, again: activeDeadline };
    }
  }

  /** Work that was asked for before may be of no use any more, or may have to be done sooner. */
  #underWay(request: Request, runtime: Runtime, task: Task): Progress {
    const activeDeadline = ahead(request, Date.now());
    const step = plan(this.#observe(request, runtime), request.desired, Date.now());
    if (task.kind === 'create' && step.kind !== 'create') {
      task.abort.abort(new Error('no longer wanted'));
    }
    const again = this.#hurry(request, task);
    return { runtime, step: { kind: 'wait', until: again }, again: soonest(again, activeDeadline) };
  }

  /** Ends the grace of a stop where it is over by now; when it will be, if that is sooner than the stop was begun with. */
  #hurry({ record, deletion }: Request, task: Task): number | undefined {
    const isFilling = ENDING.has(task.kind) && this.#host.disk.wish(record.uid) === 'pause';
    const isSooner =
      deletion !== undefined && task.deadline !== undefined && deletion.deadline < task.deadline;
    // A guest that fills the disk has no grace for it.
    if (isFilling || (isSooner && Date.now() >= deletion.deadline)) {
      task.hurry.abort();
    }
    return isSooner && !task.hurry.signal.aborted ? deletion.deadline : undefined;
  }

  #begin(request: Request, runtime: Runtime, step: Step & { kind: TaskKind }): void {
    const { record, pod, desired } = request;
    const task = newTask(step.kind, PHASES[step.kind]);
    runtime.task = task;
    const graceMilliseconds =
      'graceMilliseconds' in step ? step.graceMilliseconds : request.graceMilliseconds;
    const changed = (): void => this.#changed(record.key);
    const action = { host: this.#host, record, runtime, task, pod, desired, graceMilliseconds, changed };
    void ACTIONS[step.kind](action)
      .then(
        () => {
          runtime.attempts = 0;
          runtime.notBefore = 0;
          runtime.trouble = undefined;
        },
        (error: unknown) => this.#failed(request, runtime, task, error),
      )
      .catch((error: unknown) => {
        this.#host.logger.error({ err: error, uid: record.uid }, 'failure not written down');
      })
      .finally(() => {
        runtime.task = undefined;
        changed();
      });
  }

  #failed(request: Request, runtime: Runtime, task: Task, error: unknown): void {
    const { record, desired } = request;
    if (task.abort.signal.aborted) {
      return;
    }
    runtime.attempts += 1;
    const { attempts } = runtime;
    const now = Date.now();
    const verdict = verdictOf({ kind: task.kind, error, record, desired, attempts, now });
    this.#host.logger.warn(
      { err: error, uid: record.uid, pod: record.key, step: task.kind, verdict: verdict.kind },
      'step failed',
    );
    switch (verdict.kind) {
      case 'retry':
        runtime.notBefore = now + verdict.afterMilliseconds;
        runtime.trouble = { reason: reasonOf(error), message: verdict.message };
        return;
      case 'end':
        this.#host.records.update(record, { end: verdict.end, endsInARow: record.endsInARow + 1 });
        this.#tellEnd(request, { end: verdict.end });
        return;
      case 'fail':
        this.#fail(request, verdict.failure);
    }
  }

  #fail(request: Request, failure: MachineFailure): void {
    this.#host.records.update(request.record, { failure });
    this.#tell(request, 'Warning', failure.reason, failure.message);
  }

  #tellEnd(request: Request, { end }: Partial<MachineRecord>): void {
    if (end !== undefined) {
      this.#tell(request, end.how === 'GuestShutdown' ? 'Normal' : 'Warning', end.how, end.message);
    }
  }

  #tell({ pod }: Request, type: 'Normal' | 'Warning', reason: string, message: string): void {
    if (pod !== undefined) {
      this.#host.event(pod, { type, reason, action: 'Run', message });
    }
  }
}

/** The Pod's active deadline while it still means something. */
function ahead({ activeDeadline, record }: Request, now: number): number | undefined {
  const open = record.failure === undefined && activeDeadline !== undefined && activeDeadline > now;
  return open ? activeDeadline : undefined;
}
