/**
 * Access to the guest agent of one machine. QEMU serves one client at a time, and the guest agent executes commands one by one, so
 * each use waits for the earlier ones. Urgent uses come before all others. Regular questions give way to all other uses.
 */
import { StreamRefused } from '../../driver.ts';
import { GuestConnection } from './connection.ts';

/**
 * Time in which a use may end before an urgent use interrupts it. An honest guest answers most commands at once, and sends the longest
 * output in 5 s. A hostile guest could hold up a stop or a copy of its VM for more than a minute with each command.
 */
const PATIENCE_MILLISECONDS = 5_000;
const INTERRUPTED =
  'A stop or copy of the VM interrupted the command, which may still run; check in the guest';

/** Work with a guest agent. The connection is undefined if no guest agent answers. */
type Work<T> = (connection: GuestConnection | undefined, signal: AbortSignal) => Promise<T>;

export interface UseOptions {
  signal?: AbortSignal | undefined;
  receiveLimitBytes?: number;
}

export class GuestAgent {
  readonly folder: string;
  readonly #end = new AbortController();
  /** Whether a use runs. */
  #busy = false;
  /** Functions that begin the waiting uses. */
  readonly #urgent: (() => void)[] = [];
  readonly #waiting: (() => void)[] = [];
  #question: AbortController | undefined;
  /** Interrupts the use that runs. Undefined if no use runs, or the use is an urgent one or a question. */
  #interrupt: AbortController | undefined;

  constructor(folder: string) {
    this.folder = folder;
  }

  /**
   * Does `work` before all uses that wait, except earlier urgent ones. Interrupts a question at once, and another use after 5 s. `work`
   * makes its own connections, so that it can make another one if the first is lost.
   */
  async urgently<T>(work: () => Promise<T>): Promise<T> {
    this.#question?.abort();
    const timer = setTimeout(
      () => this.#interrupt?.abort(new StreamRefused(INTERRUPTED)),
      PATIENCE_MILLISECONDS,
    );
    return await this.#inTurn(this.#urgent, async () => {
      clearTimeout(timer);
      return await work();
    });
  }

  /**
   * Does `work` over one connection when all earlier uses have ended.
   *
   * @throws the signal's reason when it aborted; StreamRefused when an urgent use interrupts this one, or after {@link close}.
   */
  async use<T>({ signal, receiveLimitBytes }: UseOptions, work: Work<T>): Promise<T> {
    return await this.#inTurn(this.#waiting, async () => {
      const interrupt = new AbortController();
      this.#interrupt = interrupt;
      const signals = [interrupt.signal, this.#end.signal, ...(signal === undefined ? [] : [signal])];
      try {
        return await this.#connected(AbortSignal.any(signals), work, receiveLimitBytes);
      } finally {
        this.#interrupt = undefined;
      }
    });
  }

  /** Does `work` over one connection if nobody else uses the guest agent. Returns `busy` if there is a use or a use interrupts it. */
  async ask<T>(signal: AbortSignal, work: Work<T>): Promise<T | 'busy'> {
    if (this.#busy) {
      return 'busy';
    }
    const question = new AbortController();
    this.#question = question;
    const any = AbortSignal.any([signal, question.signal, this.#end.signal]);
    try {
      return await this.#inTurn(this.#waiting, async () => await this.#connected(any, work));
    } catch (error) {
      if (any.aborted) {
        return 'busy';
      }
      throw error;
    } finally {
      this.#question = undefined;
    }
  }

  /** Ends all uses except urgent ones, because the agent ends or the machine's process has ended. */
  close(): void {
    this.#end.abort(new StreamRefused('The connection to the machine was closed'));
  }

  /** Does `work` when no other use runs, and then begins the next one. `queue` is the place where `work` waits for its turn. */
  async #inTurn<T>(queue: (() => void)[], work: () => Promise<T>): Promise<T> {
    if (this.#busy) {
      await new Promise<void>((resolve) => queue.push(resolve));
    }
    this.#busy = true;
    try {
      return await work();
    } finally {
      const next = this.#urgent.shift() ?? this.#waiting.shift();
      if (next === undefined) {
        this.#busy = false;
      } else {
        next();
      }
    }
  }

  async #connected<T>(signal: AbortSignal, work: Work<T>, receiveLimitBytes?: number): Promise<T> {
    const limit = receiveLimitBytes === undefined ? {} : { receiveLimitBytes };
    const connection = await GuestConnection.open(this.folder, { signal, ...limit });
    try {
      return await work(connection, signal);
    } finally {
      connection?.close();
    }
  }
}
