/** Starts the thread that compares passwords, and starts it again if it has ended. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import type { Logger } from 'pino';
import type { Comparison } from './passwordworker.ts';

/** The module of the thread. In a bundle, the thread is a file beside the program, with the same name and the extension of the program. */
const MODULE = new URL(`./passwordworker${/\.\w+$/.exec(import.meta.url)?.[0]}`, import.meta.url);
/** Memory of the thread in megabytes. It needs far less. */
const MEMORY_MEGABYTES = 32;

export class PasswordThread {
  readonly #logger: Logger;
  #worker: Worker | undefined;

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  /** Reports whether the hash belongs to the password. Call this function again only after the answer. @throws Error when the thread ends. */
  async compare(comparison: Comparison): Promise<boolean> {
    const worker = (this.#worker ??= this.#start());
    const done = new AbortController();
    const { signal } = done;
    try {
      const answer = once(worker, 'message', { signal });
      const ended = once(worker, 'exit', { signal }).then(() => {
        throw new Error('the thread that checks passwords ended');
      });
      // After the answer, the wait for the end is aborted.
      ended.catch(() => undefined);
      worker.postMessage(comparison, []);
      const [isSame] = await Promise.race([answer, ended]);
      return isSame === true;
    } finally {
      done.abort();
    }
  }

  async stop(): Promise<void> {
    await this.#worker?.terminate();
  }

  #start(): Worker {
    const worker = new Worker(MODULE, { resourceLimits: { maxOldGenerationSizeMb: MEMORY_MEGABYTES } });
    // The thread must not keep a program alive that has nothing else to do.
    worker.unref();
    worker.on('error', (error) =>
      this.#logger.error({ err: error }, 'the thread that checks passwords failed'),
    );
    worker.on('exit', () => {
      if (this.#worker === worker) {
        this.#worker = undefined;
      }
    });
    return worker;
  }
}
