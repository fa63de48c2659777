/** Limits how much work of one kind a host does at the same time, and how much of it for one namespace. */
import PQueue from 'p-queue';

interface QueuedWork {
  readonly namespace: string;
  /** Signal that aborts when the work must leave the queue. The abort has no effect after the work has begun. */
  readonly signal: AbortSignal;
  /** Called with the reason when the work must wait. */
  readonly onWait: (reason: string) => void;
}

interface FairQueueOptions {
  /** Number of places. */
  readonly atOnce: number;
  /** Words for one piece of the work and for several, in messages. */
  readonly work: { readonly one: string; readonly many: string };
  /** Name of the setting that sets the number of places. Undefined if the number is fixed. */
  readonly setting?: string;
}

/**
 * Lets work begin in the order of its arrival. A host has a fixed number of places, and each running piece of work occupies one. The work of
 * one namespace can occupy all places except one. So if the work of one namespace reads from slow sources for hours, work of other
 * namespaces can still run. If the host has only one place, work of any namespace can occupy it. Each piece of work belongs to a Pod of the
 * host, so the number of Pods of a host limits the length of the queues.
 */
export class FairQueue {
  readonly #options: FairQueueOptions;
  /** Largest number of pieces of work of one namespace that run at the same time. */
  readonly #share: number;
  readonly #host: PQueue;
  /**
   * Queues of the namespaces. Work first waits in the queue of its namespace until the namespace may do one more piece. Then the work waits
   * for a place of the host.
   */
  readonly #namespaces = new Map<string, PQueue>();

  constructor(options: FairQueueOptions) {
    this.#options = options;
    this.#share = Math.max(1, options.atOnce - 1);
    this.#host = new PQueue({ concurrency: options.atOnce });
  }

  /** Waits for a place, and then runs `work`. @throws the error of `work`; the signal's reason when the signal aborts. */
  async take<T>({ namespace, signal, onWait }: QueuedWork, work: () => Promise<T>): Promise<T> {
    const { atOnce, setting } = this.#options;
    const queue = this.#namespaces.get(namespace) ?? this.#queueFor(namespace);
    if (queue.pending >= this.#share) {
      onWait(
        `The host already has ${this.#describeCount(this.#share)} of namespace ${namespace}, which is the limit for one namespace`,
      );
    }
    // p-queue would also free the place of running work when its signal aborts. So its signal no longer aborts when the work begins.
    const waiting = new AbortController();
    const leave = (): void => waiting.abort(signal.reason);
    signal.throwIfAborted();
    signal.addEventListener('abort', leave, { once: true });
    const begin = async (): Promise<T> => {
      signal.removeEventListener('abort', leave);
      return await work();
    };
    const waitForHost = async (): Promise<T> => {
      if (this.#host.pending >= atOnce) {
        const limit = setting === undefined ? 'its limit' : `its limit (${setting})`;
        onWait(`The host is already doing ${this.#describeCount(atOnce)}, which is ${limit}`);
      }
      return await this.#host.add(begin, { signal: waiting.signal });
    };
    return await queue.add(waitForHost, { signal: waiting.signal });
  }

  /** Makes a queue for the namespace. The queue is removed when all work of the namespace has ended. */
  #queueFor(namespace: string): PQueue {
    const queue = new PQueue({ concurrency: this.#share });
    queue.addEventListener('idle', () => this.#namespaces.delete(namespace));
    this.#namespaces.set(namespace, queue);
    return queue;
  }

  #describeCount(count: number): string {
    const { one, many } = this.#options.work;
    return `${count} ${count === 1 ? one : many}`;
  }
}
