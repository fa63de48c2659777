/**
 * Access to the guest agent of one machine. QEMU serves one client at a time, and the guest agent executes commands one by one, so
 * each use waits for the earlier ones. Regular questions give way to all other uses.
 */
import { Serial } from '../../../../base/serial.ts';
import { StreamRefused } from '../../driver.ts';
import { GuestConnection } from './connection.ts';

/** Work with a guest agent. The connection is undefined if no guest agent answers. */
type Work<T> = (connection: GuestConnection | undefined, signal: AbortSignal) => Promise<T>;

export interface UseOptions {
  signal?: AbortSignal | undefined;
  receiveLimitBytes?: number;
}

export class GuestAgent {
  readonly folder: string;
  readonly #serial = new Serial();
  readonly #end = new AbortController();
  /** Number of uses that run or wait. */
  #users = 0;
  #question: AbortController | undefined;

  constructor(folder: string) {
    this.folder = folder;
  }

  /**
   * Does `work` when all earlier uses have ended, and interrupts a question. `work` makes its own connections, so that it can make
   * another one if the first is lost.
   */
  async urgently<T>(work: () => Promise<T>): Promise<T> {
    this.#question?.abort();
    return await this.#inTurn(work);
  }

  /** Does `work` over one connection when all earlier uses have ended. @throws the signal's reason when it aborted. */
  async use<T>({ signal, receiveLimitBytes }: UseOptions, work: Work<T>): Promise<T> {
    const either = signal === undefined ? this.#end.signal : AbortSignal.any([signal, this.#end.signal]);
    return await this.#inTurn(async () => await this.#connected(either, work, receiveLimitBytes));
  }

  /** Does `work` over one connection if nobody else uses the guest agent. Returns `busy` if there is a use or a use interrupts it. */
  async ask<T>(signal: AbortSignal, work: Work<T>): Promise<T | 'busy'> {
    if (this.#users > 0) {
      return 'busy';
    }
    const question = new AbortController();
    this.#question = question;
    const any = AbortSignal.any([signal, question.signal, this.#end.signal]);
    try {
      return await this.#inTurn(async () => await this.#connected(any, work));
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

  async #inTurn<T>(work: () => Promise<T>): Promise<T> {
    this.#users += 1;
    try {
      return await this.#serial.run(work);
    } finally {
      this.#users -= 1;
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
