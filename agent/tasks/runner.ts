/** Runs the work of task Pods, one piece for each Pod. What was under way when the agent ended is begun again: all work may be repeated. */
import { appendFileSync, mkdirSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { Logger } from 'pino';
import type { Task, TaskReport } from '../../api/v1alpha1/task.ts';
import type { Pod } from '../../kube/core.ts';
import { type ConsoleLog, ConsoleStore } from '../machines/console.ts';
import { FILES } from '../machines/folder.ts';
import { messageOf, reasonOf } from '../errors.ts';

/** Progress is told this often at most: every telling is a write to the API server. */
const PROGRESS_MILLISECONDS = 2_000;

/** Times are milliseconds since the epoch. */
export type TaskState =
  | { kind: 'running'; startedAt: number; report: TaskReport }
  | { kind: 'succeeded'; startedAt: number; finishedAt: number; report: TaskReport }
  | { kind: 'failed'; startedAt: number; finishedAt: number; reason: string; message: string };

export interface TaskContext {
  /** Its Pods' uid names what belongs to the task. */
  uid: string;
  pod: Readonly<Pod>;
  /** Its own, for its log and what it needs on the way; removed with the Pod. */
  folder: string;
  signal: AbortSignal;
  /** One line for `kubectl logs`. */
  log: (line: string) => void;
  progress: (percent: number) => void;
}

/** Does a task; what it throws is told in the Pod with its `reason` and message. */
export type TaskWork = (task: Task, context: TaskContext) => Promise<TaskReport>;

interface Running {
  state: TaskState;
  readonly key: string;
  readonly abort: AbortController;
  readonly console: ConsoleStore;
}

export interface TaskRunnerOptions {
  /** `<data directory>/tasks`: a folder with the log of each task. */
  directory: string;
  work: TaskWork;
  logger: Logger;
  /** Called with the Pod's key whenever its task's state has changed. */
  changed: (key: string) => void;
}

export class TaskRunner {
  readonly #options: TaskRunnerOptions;
  readonly #running = new Map<string, Running>();

  constructor(options: TaskRunnerOptions) {
    this.#options = options;
  }

  state(uid: string): TaskState | undefined {
    return this.#running.get(uid)?.state;
  }

  /** What the task has said; undefined when there is none of that uid. */
  log(uid: string): ConsoleLog | undefined {
    return this.#running.get(uid)?.console;
  }

  start(pod: Readonly<Pod>, key: string, task: Task): void {
    const { uid = '' } = pod.metadata;
    const { directory, logger, changed } = this.#options;
    const folder = join(directory, uid);
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const running: Running = {
      state: { kind: 'running', startedAt: Date.now(), report: {} },
      key,
      abort: new AbortController(),
      console: new ConsoleStore(folder, { logger }),
    };
    const log = (line: string): void =>
      appendFileSync(join(folder, FILES.serial), `${line}\n`, { mode: 0o600 });
    log(`${task.type} begins`);
    running.console.start();
    this.#running.set(uid, running);
    const progress = throttled(running, () => changed(key));
    const context = { uid, pod, folder, signal: running.abort.signal, log, progress };
    void this.#run(running, task, context);
  }

  /** Asks the task to end; its state tells when it has. */
  abort(uid: string): void {
    this.#running.get(uid)?.abort.abort(new Error('the Pod was deleted'));
  }

  /** The Pod is gone: what it left is removed. */
  forget(uid: string): void {
    const running = this.#running.get(uid);
    if (running === undefined) {
      return;
    }
    this.abort(uid);
    running.console.close();
    this.#running.delete(uid);
    rmSync(join(this.#options.directory, uid), { recursive: true, force: true });
  }

  /** Removes what tasks of earlier lives of this agent left; `uids` are those of the Pods that are here. */
  sweep(uids: ReadonlySet<string>): void {
    mkdirSync(this.#options.directory, { recursive: true, mode: 0o700 });
    for (const name of readdirSync(this.#options.directory)) {
      if (!uids.has(name)) {
        rmSync(join(this.#options.directory, name), { recursive: true, force: true });
      }
    }
  }

  async #run(running: Running, task: Task, context: TaskContext): Promise<void> {
    const { startedAt } = running.state;
    try {
      const report = await this.#options.work(task, context);
      context.log(`${task.type} done`);
      running.state = { kind: 'succeeded', startedAt, finishedAt: Date.now(), report };
    } catch (error) {
      const reason = reasonOf(error) ?? 'TaskFailed';
      const message = messageOf(error);
      this.#options.logger.warn({ err: error, pod: running.key, task: task.type }, 'task failed');
      if (this.#running.has(context.uid)) {
        context.log(`${task.type} failed: ${reason}: ${message}`);
      }
      running.state = { kind: 'failed', startedAt, finishedAt: Date.now(), reason, message };
    }
    running.console.close();
    this.#options.changed(running.key);
  }
}

/** Whole per cents, and not too often. */
function throttled(running: Running, changed: () => void): (percent: number) => void {
  let toldAt = 0;
  return (percent) => {
    if (running.state.kind !== 'running') {
      return;
    }
    running.state.report.progressPercent = Math.min(100, Math.floor(percent));
    if (performance.now() - toldAt >= PROGRESS_MILLISECONDS) {
      toldAt = performance.now();
      changed();
    }
  };
}
