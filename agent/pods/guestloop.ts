/** The loop that asks a running guest regularly, with all periods and limits of the checks of guests. */
import type { rest } from '../../base/time.ts';

/** Milliseconds between two questions to a guest. */
export const PERIODS = {
  /** The guest answers as it should. By default, a kubelet's readiness probe has the same period. */
  fine: 10_000,
  /** An SSH server answers. The time is long, because an SSH server writes each question into its log. */
  fineSSH: 60_000,
  /** Android boots or does not answer. Each question is a short connection to ADB. */
  booting: 2_000,
  /** A guest agent or a port does not answer. The time is short, because users wait for the guest. */
  silent: 1_000,
  /**
   * Longest time between two questions to a guest agent that has never answered, and for which nobody waits. The time doubles with each
   * question. So a guest agent is found soon after a boot, and a guest without a guest agent costs nearly nothing.
   */
  longestSilent: 60_000,
  /**
   * Time between two requests for facts. The time is long, because facts change seldom, and each change causes a request to the API server.
   * Until the guest has an address, each question asks for facts, because a guest agent starts before the guest's network.
   */
  facts: 60_000,
} as const;
/**
 * Number of questions without an answer in a row after which a guest that answered counts as lost. By default, a kubelet's readiness probe
 * allows the same number.
 */
export const FAILURES = 3;
/**
 * Largest factor of {@link GuestPatience}. With this factor, the agent needs one minute to notice that a guest agent no longer answers, and two
 * minutes to notice the same of Android.
 */
const MOST_PATIENCE = 20;
/** If failures do not change the state of the guest for this time in milliseconds, the factor of {@link GuestPatience} is 1 again. */
const STEADY_MILLISECONDS = 10 * 60_000;

/**
 * Factor by which more failures in a row are needed before they change the state of a guest. The factor doubles each time that they change the
 * state. With a constant factor, a guest that repeatedly stops answering would cause a request to the API server every few seconds.
 */
export class GuestPatience {
  #factor = 1;
  /** Time at which failures last changed the state, in milliseconds since the start of this process. */
  #changedAt = 0;

  get factor(): number {
    if (performance.now() - this.#changedAt > STEADY_MILLISECONDS) {
      this.#factor = 1;
    }
    return this.#factor;
  }

  /** Records that failures have changed the state of the guest. */
  grow(): void {
    this.#factor = Math.min(2 * this.factor, MOST_PATIENCE);
    this.#changedAt = performance.now();
  }
}

/** Regular question to the guest of one machine, in one run of the machine. */
export interface GuestCheck<Answer> {
  /** Milliseconds until the next question. */
  readonly pauseMilliseconds: number;
  /** Asks the guest once. The result is undefined if the guest cannot be asked now. */
  ask(signal: AbortSignal): Promise<Answer | undefined>;
  /** Takes an answer, and returns whether the state of the guest has changed. */
  take(answer: Answer): boolean;
  /** Frees the resources of the check, after its last question. Never rejects. */
  end?(): Promise<void>;
}

/** Options of a class that sends regular requests to guests. */
export interface LoopOptions {
  /** Called with a machine's uid when the state of its guest has changed. */
  changed: (uid: string) => void;
  /** Called when an answer could not be processed. */
  onError: (uid: string, error: unknown) => void;
  /** Waits between two questions. The function takes the time in milliseconds. */
  wait: typeof rest;
}

/** Runs the checks of guests. Each machine has at most one check. */
export class GuestLoops<Check extends GuestCheck<unknown>> {
  readonly #options: LoopOptions;
  readonly #loops = new Map<string, { check: Check; end: AbortController }>();

  constructor(options: LoopOptions) {
    this.#options = options;
  }

  /** Returns the check of the machine with this uid. Undefined if the machine has none. */
  check(uid: string): Check | undefined {
    return this.#loops.get(uid)?.check;
  }

  /** Starts the check of a machine, in place of an earlier check of the machine. */
  start(uid: string, check: Check): void {
    this.forget(uid);
    const end = new AbortController();
    this.#loops.set(uid, { check, end });
    void this.#run(uid, check, end.signal);
  }

  /** Ends the check of the machine with this uid. */
  forget(uid: string): void {
    this.#loops.get(uid)?.end.abort();
    this.#loops.delete(uid);
  }

  close(): void {
    for (const uid of this.#loops.keys()) {
      this.forget(uid);
    }
  }

  async #run(uid: string, check: Check, signal: AbortSignal): Promise<void> {
    const { changed, onError, wait } = this.#options;
    while (!signal.aborted) {
      try {
        const answer = await check.ask(signal);
        if (answer !== undefined && !signal.aborted && check.take(answer)) {
          changed(uid);
        }
      } catch (error) {
        onError(uid, error);
      }
      await wait(check.pauseMilliseconds, signal);
    }
    await check.end?.();
  }
}
