/**
 * Gives each answer of QEMU to the call that waits for it, and limits what QEMU sends without a call. QMP and the D-Bus display use it. The
 * limit is needed, because a hostile guest can control its QEMU.
 */

/**
 * Largest number of characters or bytes that QEMU may send without a call within {@link UNASKED_MILLISECONDS}. A working QEMU sends less:
 * it limits the rate of frequent events, and sends a few hundred bytes for each change of the screen's size.
 */
const UNASKED_LIMIT = 1024 * 1024;
const UNASKED_MILLISECONDS = 10_000;

interface Waiting<Answer> {
  resolve: (answer: Answer) => void;
  reject: (error: Error) => void;
  timer: NodeJS.Timeout;
}

export class Calls<Answer> {
  readonly #waiting = new Map<number, Waiting<Answer>>();
  readonly #error: new (
    message: string,
  ) => Error;
  readonly #flood: string;
  #last = 0;
  #unasked = { size: 0, until: 0 };

  /** `error` is the class of the errors of this protocol. `flood` is the message of the error if QEMU sends too much without a call. */
  constructor(error: new (message: string) => Error, flood: string) {
    this.#error = error;
    this.#flood = flood;
  }

  /** Calls `send` with the number of the call, and returns QEMU's answer. @throws Error when no answer comes in time. */
  async make(name: string, timeoutMilliseconds: number, send: (id: number) => void): Promise<Answer> {
    this.#last += 1;
    const id = this.#last;
    const { promise, resolve, reject } = Promise.withResolvers<Answer>();
    const timer = setTimeout(() => {
      this.#waiting.delete(id);
      reject(new this.#error(`QEMU did not answer ${name} within ${timeoutMilliseconds} ms`));
    }, timeoutMilliseconds);
    this.#waiting.set(id, { resolve, reject, timer });
    send(id);
    return await promise;
  }

  /**
   * Returns the call with the number `id`, which a message of this size answers. The call no longer waits afterwards. The result is
   * undefined if no call waits for the message.
   *
   * @throws Error when QEMU sends too many messages for which no call waits.
   */
  answered(id: number | undefined, size: number): Pick<Waiting<Answer>, 'resolve' | 'reject'> | undefined {
    const call = this.#waiting.get(id ?? 0);
    if (call === undefined) {
      this.#countUnasked(size);
      return undefined;
    }
    this.#waiting.delete(id ?? 0);
    clearTimeout(call.timer);
    return call;
  }

  /** Fails all calls that still wait for an answer. */
  end(why: string): void {
    for (const { timer, reject } of this.#waiting.values()) {
      clearTimeout(timer);
      reject(new this.#error(why));
    }
    this.#waiting.clear();
  }

  #countUnasked(size: number): void {
    const now = performance.now();
    if (now >= this.#unasked.until) {
      this.#unasked = { size: 0, until: now + UNASKED_MILLISECONDS };
    }
    this.#unasked.size += size;
    if (this.#unasked.size > UNASKED_LIMIT) {
      throw new this.#error(this.#flood);
    }
  }
}
