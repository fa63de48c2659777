/** Limits the number of tasks that a host runs at the same time. */
import PQueue from 'p-queue';

interface Turn {
  readonly namespace: string;
  /** Signal that aborts when the task must leave the queue. The abort has no effect after the task has begun. */
  readonly signal: AbortSignal;
  /** Called with the reason when the task must wait. */
  readonly onWait: (reason: string) => void;
}

/**
 * Lets tasks begin in the order of their arrival. A host has a fixed number of places, and each running task occupies one. The tasks of one
 * namespace can occupy all places except one. So if tasks of one namespace read from slow sources for hours, tasks of other namespaces can
 * still run. If the host has only one place, a task of any namespace can occupy it.
 */
export class TaskTurns {
  readonly #atOnce: number;
  /** Largest number of tasks of one namespace that run at the same time. */
  readonly #share: number;
  readonly #host: PQueue;
  /**
   * Queues of the namespaces. A task first waits in the queue of its namespace until the namespace may run one more task. Then the task
   * waits for a place of the host.
   */
  readonly #namespaces = new Map<string, PQueue>();

  constructor(atOnce: number) {
    this.#atOnce = atOnce;
    this.#share = Math.max(1, atOnce - 1);
    this.#host = new PQueue({ concurrency: atOnce });
  }

  /** Waits for a place, and then runs `work`. @throws the error of `work`; the signal's reason when the signal aborts. */
  async take({ namespace, signal, onWait }: Turn, work: () => Promise<void>): Promise<void> {
    const queue = this.#namespaces.get(namespace) ?? this.#queueFor(namespace);
    if (queue.pending >= this.#share) {
      onWait(
        `The host already has ${tasks(this.#share)} of namespace ${namespace}, which is the limit for one namespace`,
      );
    }
    const waitForHost = async (): Promise<void> => {
      if (this.#host.pending >= this.#atOnce) {
        onWait(`The host is already doing ${tasks(this.#atOnce)}, which is its limit (tasksAtOnce)`);
      }
      await this.#host.add(work, { signal });
    };
    await queue.add(waitForHost, { signal });
  }

  /** Makes a queue for the namespace. The queue is removed when all tasks of the namespace have ended. */
  #queueFor(namespace: string): PQueue {
    const queue = new PQueue({ concurrency: this.#share });
    queue.addEventListener('idle', () => this.#namespaces.delete(namespace));
    this.#namespaces.set(namespace, queue);
    return queue;
  }
}

function tasks(count: number): string {
  return count === 1 ? '1 task' : `${count} tasks`;
}
