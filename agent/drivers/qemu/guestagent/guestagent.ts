/**
 * Gives access to the guest agent of one machine. QEMU serves one client at a time, and the guest agent executes commands one by one. So
 * all work with the guest agent is done in turn. Urgent work comes before all other work. A question whether the guest agent answers is
 * asked only when there is no other work.
 */
import { StreamRefused } from '../../driver.ts';
import { GuestConnection } from './connection.ts';

/**
 * Time after which urgent work interrupts running work. An honest guest answers most commands at once, and sends the longest output in 5 s.
 * Without this limit, a hostile guest could delay a stop or a copy of its VM by more than a minute with each command.
 */
const PATIENCE_MILLISECONDS = 5_000;
const INTERRUPTED =
  'The host no longer waits for the command, because a stop or copy of the VM began. Check in the guest whether the command still runs';

/** Work with a guest agent. The connection is undefined if no guest agent answers. */
type Work<T> = (connection: GuestConnection | undefined, signal: AbortSignal) => Promise<T>;

export interface UseOptions {
  signal?: AbortSignal | undefined;
  receiveLimitBytes?: number;
}

export class GuestAgent {
  readonly folder: string;
  readonly #end = new AbortController();
  /** Whether any work with the guest agent is under way. */
  #busy = false;
  /** Each function in this queue starts one piece of urgent work. The functions in `#waiting` start the other waiting work. */
  readonly #urgent: (() => void)[] = [];
  readonly #waiting: (() => void)[] = [];
  #question: AbortController | undefined;
  /**
   * Controller whose abort interrupts the work that is under way. Undefined if the work under way is urgent or a question, or if no work is
   * under way.
   */
  #interrupt: AbortController | undefined;

  constructor(folder: string) {
    this.folder = folder;
  }

  /**
   * Runs `work` as urgent work, before all waiting work that is not urgent. Earlier urgent work is done first. A question that is under way
   * is interrupted at once. Other work that is not urgent is interrupted after 5 s. `work` makes its own connections, so that it can
   * connect again if a connection is lost.
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
   * Runs `work` over one connection when all earlier work has ended.
   *
   * @throws the signal's reason when the signal aborted; StreamRefused when urgent work interrupts `work`, or after {@link close}.
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

  /**
   * Runs `work`, a short question to the guest agent, over one connection. Returns `busy` if other work is under way, or if `work` is
   * interrupted.
   */
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

  /** Ends all work except urgent work. This function is called when the agent ends or the machine's process has ended. */
  close(): void {
    this.#end.abort(new StreamRefused('The connection to the machine was closed'));
  }

  /** Waits in `queue` until no other work is under way, runs `work`, and then lets the next waiting work begin. Urgent work comes first. */
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
