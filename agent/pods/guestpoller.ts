/** Checks regularly whether the guest agents of running machines answer, and asks them for facts about their guests. */
import { isDeepStrictEqual } from 'node:util';
import type { GuestFacts } from '../../api/v1alpha1/machine.ts';
import { rest } from '../../base/time.ts';
import type { Pod } from '../../kube/core.ts';
import type { GuestAnswer, GuestQuestion } from '../drivers/driver.ts';
import { GuestLoops, type LoopOptions } from './loops.ts';
import type { Runtime } from './machine.ts';
import { lastReport } from './pod.ts';

/** Time between two requests to a guest agent that answers. By default, a kubelet's readiness probe has the same period. */
const CONNECTED_MILLISECONDS = 10_000;
/**
 * Time between two requests to a guest agent that does not answer. If the VM's readiness depends on the guest agent, this time stays the
 * same, because users wait for the VM. Otherwise the time doubles with each request. So a guest agent is found soon after a boot, and a
 * guest without a guest agent costs nearly nothing.
 */
const SILENT_MILLISECONDS = 1_000;
const LONGEST_SILENT_MILLISECONDS = 60_000;
/**
 * Number of unanswered requests in a row after which a guest agent counts as not connected. By default, a kubelet's readiness probe allows
 * the same number.
 */
const FAILURES = 3;
/**
 * Upper limit for the number of unanswered requests in a row after which a guest agent counts as not connected. The number starts at
 * `FAILURES` and doubles with each loss of the connection. Otherwise a guest agent that repeatedly stops answering would cause a request to
 * the API server every few seconds. At the upper limit, the agent notices after a minute that a guest agent no longer answers.
 */
const MOST_FAILURES = 60;
/** If the connection is not lost for this time in milliseconds, {@link FAILURES} unanswered requests suffice again. */
const STEADY_MILLISECONDS = 10 * 60_000;
/**
 * Time between two requests for facts. The time is long, because facts change seldom, and each change causes a request to the API server.
 * Until the guest has an address, each request asks for facts, because a guest agent starts before the guest's network.
 */
const FACTS_MILLISECONDS = 60_000;

export interface GuestPollerOptions extends LoopOptions {
  ask: (runtime: Readonly<Runtime>, question: GuestQuestion) => Promise<GuestAnswer>;
}

export class GuestPoller extends GuestLoops {
  readonly #options: GuestPollerOptions;

  constructor(options: GuestPollerOptions) {
    super();
    this.#options = options;
  }

  /**
   * If the Pod's machine runs, starts the regular requests to its guest agent. Otherwise ends these requests. Until the first answer, the
   * state of the guest comes from the Pod's last report.
   */
  follow(pod: Readonly<Pod>, runtime: Runtime): void {
    const { uid } = runtime.folder;
    if (runtime.state.kind !== 'running') {
      this.forget(uid);
      runtime.guest = undefined;
      return;
    }
    if (!this.has(uid)) {
      runtime.guest = reportedGuest(pod);
      this.start(uid, async (signal) => await this.#run(runtime, signal));
    }
  }

  async #run(runtime: Runtime, signal: AbortSignal): Promise<void> {
    const { wait = rest } = this.#options;
    const poll = new Poll(runtime.record.machine?.readiness.type === 'GuestAgent');
    while (!signal.aborted) {
      const facts = poll.needsFacts(runtime.guest);
      const answer = await this.#ask(runtime, { facts, signal });
      if (!signal.aborted) {
        this.#tell(runtime, poll.take(answer, runtime.guest));
        await wait(poll.pauseMilliseconds, signal);
      }
    }
  }

  async #ask(runtime: Runtime, question: GuestQuestion): Promise<GuestAnswer> {
    try {
      return await this.#options.ask(runtime, question);
    } catch (error) {
      this.#options.onError(runtime.folder.uid, error);
      return { kind: 'silent' };
    }
  }

  #tell(runtime: Runtime, guest: Runtime['guest']): void {
    if (!isDeepStrictEqual(runtime.guest, guest)) {
      runtime.guest = guest;
      this.#options.changed(runtime.folder.uid);
    }
  }
}

/** State of the requests to one guest agent in one run of its machine. */
class Poll {
  /** Time until the next request. */
  pauseMilliseconds = SILENT_MILLISECONDS;
  /** Whether users wait for the guest agent, because the readiness of the VM depends on the guest agent. */
  readonly #isAwaited: boolean;
  #failures = 0;
  /** Number of unanswered requests in a row after which the connection counts as lost. */
  #neededFailures = FAILURES;
  /** Time of the last loss of the connection, in milliseconds since the start of this process. */
  #lastLoss = 0;
  #nextSilentMilliseconds = SILENT_MILLISECONDS;
  /** Time of the next request for facts, in milliseconds since the start of this process. */
  #nextFacts = 0;

  constructor(isAwaited: boolean) {
    this.#isAwaited = isAwaited;
  }

  needsFacts(guest: Runtime['guest']): boolean {
    return performance.now() >= this.#nextFacts || (guest?.facts?.addresses ?? []).length === 0;
  }

  /** Returns the new state of the guest, which follows from the guest agent's answer and the previous state. */
  take(answer: GuestAnswer, guest: Runtime['guest']): Runtime['guest'] {
    this.pauseMilliseconds = SILENT_MILLISECONDS;
    switch (answer.kind) {
      case 'answers':
        return this.#answered(answer.facts, guest);
      case 'silent':
        return this.#silent(guest);
      default:
        return guest;
    }
  }

  #answered(facts: GuestFacts | undefined, guest: Runtime['guest']): Runtime['guest'] {
    this.pauseMilliseconds = CONNECTED_MILLISECONDS;
    this.#failures = 0;
    this.#nextSilentMilliseconds = SILENT_MILLISECONDS;
    if (facts !== undefined) {
      this.#nextFacts = performance.now() + FACTS_MILLISECONDS;
    }
    return { connected: true, facts: facts ?? guest?.facts };
  }

  /**
   * Returns the state of the guest after a request without an answer. The result is undefined if the guest agent has never answered, and
   * users do not wait for the guest agent.
   */
  #silent(guest: Runtime['guest']): Runtime['guest'] {
    this.#failures += 1;
    if (guest?.connected === true) {
      return this.#failures < this.#needed() ? guest : this.#lose(guest);
    }
    if (this.#isAwaited) {
      return guest ?? { connected: false, facts: undefined };
    }
    this.pauseMilliseconds = this.#nextSilentMilliseconds;
    this.#nextSilentMilliseconds = Math.min(2 * this.pauseMilliseconds, LONGEST_SILENT_MILLISECONDS);
    return guest;
  }

  #needed(): number {
    if (performance.now() - this.#lastLoss > STEADY_MILLISECONDS) {
      this.#neededFailures = FAILURES;
    }
    return this.#neededFailures;
  }

  #lose(guest: NonNullable<Runtime['guest']>): Runtime['guest'] {
    this.#lastLoss = performance.now();
    this.#neededFailures = Math.min(2 * this.#neededFailures, MOST_FAILURES);
    return { ...guest, connected: false };
  }
}

/** Returns the state of the guest from the Pod's last report. The agent might have written this report before its restart. */
function reportedGuest(pod: Readonly<Pod>): Runtime['guest'] {
  const { guestAgentConnected: connected, guest: facts } = lastReport(pod);
  return connected === undefined ? undefined : { connected, facts };
}
