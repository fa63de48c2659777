/**
 * Runs tasks. A task is the work of a Job's Pod, for example the import of an image. The number of tasks that run at once is limited, for
 * the host and for each namespace. If the agent ends during a task, the agent starts the task again after the restart. That is safe,
 * because all tasks can be repeated without harm. The status of the Pod shows the state of its task.
 */
import { appendFileSync, existsSync, mkdirSync, readdirSync, rmSync } from 'node:fs';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import type { Logger } from 'pino';
import type { Task, TaskReport } from '../../api/v1alpha1/task.ts';
import { type Reason, reasonIn, retryAfterOf, waitAsked } from '../../api/v1alpha1/reasons.ts';
import type { ContainerState, Pod, PodStatus } from '../../kube/core.ts';
import { type ConsoleLog, ConsoleStore } from '../console/store.ts';
import { TASK_LOG } from '../console/input.ts';
import { messageWithoutPaths } from '../../base/errors.ts';
import { FairQueue } from '../disks/fairqueue.ts';
import { timestamp } from '../../base/time.ts';
import { TASK_CONDITION } from '../../api/v1alpha1/names.ts';
import { condition, emptyContainer, frame, truncateStart, stamp, waiting } from '../../kube/podstatus.ts';

/** Shortest time between two reports of progress, because every report causes a request to the API server. */
const PROGRESS_MILLISECONDS = 2_000;

/** State of a task. Times are milliseconds since the epoch. */
export type TaskState =
  /** The task waits for other tasks to end, because the host runs a limited number at once. */
  | { kind: 'waiting'; message: string }
  | { kind: 'running'; startedAt: number; report: TaskReport }
  | { kind: 'succeeded'; startedAt: number; finishedAt: number; report: TaskReport }
  | {
      kind: 'failed';
      startedAt: number;
      finishedAt: number;
      reason: Reason;
      message: string;
      /** What the operator must know for the next attempt. */
      report: Pick<TaskReport, 'retryAfterSeconds'>;
    };

export interface TaskContext {
  /** Uid of the task's Pod. The names of the task's folder and processes contain this uid. */
  uid: string;
  pod: Readonly<Pod>;
  /** Folder for the log and the temporary files of this task alone. The agent removes the folder when the Pod is deleted. */
  folder: string;
  signal: AbortSignal;
  /** Writes one line for `kubectl logs`. */
  log: (line: string) => void;
  progress: (percent: number) => void;
  /**
   * Sets the function `take`, which gets the connection of each caller that attaches to the Pod. `take` returns false to refuse a caller.
   * Until a task calls `takeCallers`, all callers are refused. A task must call `takeCallers` before its first `await`, because callers
   * attach as soon as the task runs.
   */
  takeCallers: (take: (caller: Socket) => boolean) => void;
}

/** Returns the namespace whose share the task uses. */
export function tenantOf({ pod }: Pick<TaskContext, 'pod'>): string {
  return pod.metadata.namespace ?? '';
}

/** Returns whether the task has ended. */
export function isOver({ kind }: TaskState): boolean {
  return kind === 'succeeded' || kind === 'failed';
}

/**
 * Function that does the work of a task. If the function fails, the task's Pod shows the reason and the message of the error in its status.
 */
export type TaskWork = (task: Task, context: TaskContext) => Promise<TaskReport>;

interface Running {
  state: TaskState;
  readonly key: string;
  readonly abort: AbortController;
  /** An abort of this controller removes the task from the queue. After the task has begun, such an abort has no effect. */
  readonly leave: AbortController;
  readonly console: ConsoleStore;
  /**
   * Passes the connection of a caller to the task. Returns false if the task refuses the caller. A task that has failed can still accept a
   * caller, and send the reason of the failure.
   */
  take: (caller: Socket) => boolean;
}

interface TaskRunnerOptions {
  /** Path of the folder `<data directory>/tasks`. It contains one folder for each task, with the log of the task. */
  directory: string;
  /** Largest number of tasks that run at once. The other tasks wait. */
  atOnce: number;
  work: TaskWork;
  logger: Logger;
  /** Called with the Pod's key whenever the state of its task has changed. */
  changed: (key: string) => void;
}

export class TaskRunner {
  readonly #options: TaskRunnerOptions;
  readonly #running = new Map<string, Running>();
  readonly #queue: FairQueue;

  constructor(options: TaskRunnerOptions) {
    this.#options = options;
    this.#queue = new FairQueue({
      atOnce: options.atOnce,
      work: { one: 'task', many: 'tasks' },
      setting: 'tasksAtOnce',
    });
  }

  state(uid: string): TaskState | undefined {
    return this.#running.get(uid)?.state;
  }

  /** Returns the log of a task, or undefined if no task has this uid. */
  log(uid: string): ConsoleLog | undefined {
    return this.#running.get(uid)?.console ?? this.#formerLog(uid);
  }

  /** Returns the log of a task that ended before the agent restarted. Its folder stays until its Pod is deleted. */
  #formerLog(uid: string): ConsoleLog | undefined {
    const { directory, logger } = this.#options;
    const folder = join(directory, uid);
    if (!existsSync(folder)) {
      return undefined;
    }
    const console = new ConsoleStore(folder, { of: 'task', logger });
    console.close();
    return console;
  }

  /** Passes the connection of a caller to a task. Returns false if no task has this uid, or the task refuses the caller. */
  connect(uid: string, caller: Socket): boolean {
    return this.#running.get(uid)?.take(caller) ?? false;
  }

  start(pod: Readonly<Pod>, key: string, task: Task): void {
    const { uid = '', namespace = '' } = pod.metadata;
    const { directory, logger, changed } = this.#options;
    const folder = join(directory, uid);
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const running: Running = {
      state: { kind: 'waiting', message: 'The task begins' },
      key,
      abort: new AbortController(),
      leave: new AbortController(),
      console: new ConsoleStore(folder, { of: 'task', logger }),
      take: () => false,
    };
    const log = (line: string): void => {
      try {
        appendFileSync(join(folder, TASK_LOG), `${line}\n`, { mode: 0o600 });
      } catch (error) {
        // The line cannot be written, for example because the disk is full. The task continues, because it does not need the log: its
        // result is in the status of its Pod.
        logger.warn({ err: error, pod: key }, 'The agent could not write a line to the log of a task');
      }
    };
    running.console.start();
    this.#running.set(uid, running);
    const onWait = (message: string): void => {
      running.state = { kind: 'waiting', message };
      log(`The task ${task.type} is waiting. ${message}`);
      changed(key);
    };
    const progress = throttled(running, () => changed(key));
    const { signal } = running.abort;
    const takeCallers: TaskContext['takeCallers'] = (take) => {
      running.take = take;
    };
    const context = { uid, pod, folder, signal, log, progress, takeCallers };
    this.#queue
      .take({ namespace, signal: running.leave.signal, onWait }, () => this.#run(running, task, context))
      .catch((error: unknown) => this.#failed(running, { task, context, startedAt: Date.now() }, error));
  }

  /** Requests the end of a task and returns at once. Later the task's state shows that it has ended. */
  abort(uid: string): void {
    const running = this.#running.get(uid);
    const reason = new Error('The Pod of the task was deleted');
    // Only a task that has not begun leaves the queue. A task that has begun counts towards the limit of tasks at once until it has really
    // ended.
    if (running?.state.kind === 'waiting') {
      running.leave.abort(reason);
    }
    running?.abort.abort(reason);
  }

  /** Forgets the task of a deleted Pod. Removes the folder of the task, even if an earlier run of the agent made it. */
  forget(uid: string): void {
    this.abort(uid);
    this.#running.get(uid)?.console.close();
    this.#running.delete(uid);
    rmSync(join(this.#options.directory, uid), { recursive: true, force: true });
  }

  /**
   * Removes the folders of tasks whose Pods are no longer on this host. Earlier runs of the agent can leave such folders. `uids` are the
   * uids of all Pods on this host.
   */
  sweep(uids: ReadonlySet<string>): void {
    mkdirSync(this.#options.directory, { recursive: true, mode: 0o700 });
    for (const name of readdirSync(this.#options.directory)) {
      if (!uids.has(name)) {
        rmSync(join(this.#options.directory, name), { recursive: true, force: true });
      }
    }
  }

  async #run(running: Running, task: Task, context: TaskContext): Promise<void> {
    const startedAt = Date.now();
    running.state = { kind: 'running', startedAt, report: {} };
    context.log(`The task ${task.type} begins`);
    this.#options.changed(running.key);
    try {
      const report = await this.#options.work(task, context);
      context.log(`The task ${task.type} is done`);
      this.#end(running, { kind: 'succeeded', startedAt, finishedAt: Date.now(), report });
    } catch (error) {
      this.#failed(running, { task, context, startedAt }, error);
    }
  }

  #failed(
    running: Running,
    { task, context, startedAt }: { task: Task; context: TaskContext; startedAt: number },
    error: unknown,
  ): void {
    const reason = reasonIn(error) ?? 'TaskFailed';
    const message = messageWithoutPaths(error);
    this.#options.logger.warn({ err: error, pod: running.key, task: task.type }, 'A task failed');
    if (this.#running.has(context.uid)) {
      context.log(`The task ${task.type} failed: ${reason}: ${message}`);
    }
    const asked = retryAfterOf(error);
    const report = asked === undefined ? {} : { retryAfterSeconds: Math.ceil(waitAsked(0, asked) / 1000) };
    this.#end(running, { kind: 'failed', startedAt, finishedAt: Date.now(), reason, message, report });
  }

  #end(running: Running, state: TaskState): void {
    running.state = state;
    running.console.close();
    this.#options.changed(running.key);
  }
}

/** Returns a function that reports a task's progress in whole percents, at most once every 2 s. */
function throttled(running: Running, changed: () => void): (percent: number) => void {
  let reportedAt = 0;
  return (percent) => {
    if (running.state.kind !== 'running') {
      return;
    }
    running.state.report.progressPercent = Math.min(100, Math.floor(percent));
    if (performance.now() - reportedAt >= PROGRESS_MILLISECONDS) {
      reportedAt = performance.now();
      changed();
    }
  };
}

export function taskStatus(pod: Pod, state: TaskState, hostAddress: string, now: string): PodStatus {
  const running = state.kind === 'running';
  const notReady: Reason | undefined = running ? undefined : isOver(state) ? 'PodCompleted' : QUEUED;
  return {
    ...frame(pod, phaseOf(pod, state), hostAddress, now),
    ...(state.kind === 'failed' && { reason: state.reason, message: truncateStart(state.message) }),
    podIP: hostAddress,
    podIPs: [{ ip: hostAddress }],
    conditions: stamp(
      pod,
      [
        condition('Initialized', true),
        condition('Ready', running, notReady),
        condition('ContainersReady', running, notReady),
        condition<Reason>(TASK_CONDITION, running, state.kind, JSON.stringify(reportOf(state))),
      ],
      now,
    ),
    containerStatuses: pod.spec.containers.map((container) => ({
      ...emptyContainer(container),
      ready: running,
      started: running,
      containerID: `berth://${pod.metadata.uid}`,
      state: containerState(state),
    })),
  };
}

/** Returns the report in the condition. The report of a success is in the container's termination message instead. */
function reportOf(state: TaskState): TaskReport {
  return state.kind === 'running' || state.kind === 'failed' ? state.report : {};
}

/** Reason in the Pod's status while the task waits. */
const QUEUED: Reason = 'TaskQueued';
const PHASES = { waiting: 'Pending', running: 'Running', succeeded: 'Succeeded', failed: 'Failed' } as const;

/** Returns the Pod's phase. A Pod that has run never returns to Pending, even if its task waits again after a restart of the agent. */
function phaseOf(pod: Pod, { kind }: TaskState): NonNullable<PodStatus['phase']> {
  return kind === 'waiting' && pod.status?.phase === 'Running' ? 'Running' : PHASES[kind];
}

function containerState(state: TaskState): ContainerState {
  if (state.kind === 'waiting') {
    return waiting(QUEUED, state.message);
  }
  const startedAt = timestamp(state.startedAt);
  switch (state.kind) {
    case 'running':
      return { running: { startedAt } };
    case 'succeeded': {
      const finishedAt = timestamp(state.finishedAt);
      const message = JSON.stringify(state.report);
      return { terminated: { exitCode: 0, reason: 'Completed', message, startedAt, finishedAt } };
    }
    default: {
      const { reason, message, finishedAt } = state;
      const ended = { startedAt, finishedAt: timestamp(finishedAt) };
      return { terminated: { exitCode: 1, reason, message: truncateStart(message), ...ended } };
    }
  }
}
