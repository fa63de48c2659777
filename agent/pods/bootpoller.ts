/** Asks running emulators over ADB whether Android has booted. After the boot, the poller continues to ask whether Android answers. */
import { isDeepStrictEqual } from 'node:util';
import { ADB_PORT } from '../../api/v1alpha1/names.ts';
import { rest } from '../../base/time.ts';
import type { Pod } from '../../kube/core.ts';
import type { askBooted, BootAnswer } from '../drivers/emulator/adb.ts';
import { GuestLoops, type LoopOptions } from './loops.ts';
import type { MachineRecord, Runtime } from './machine.ts';

/** Time between two requests to ADB while Android boots or does not answer. Each request is a short connection. */
const BOOTING_MILLISECONDS = 2_000;
/** Time between two requests to ADB while Android answers. By default, a kubelet's readiness probe has the same period. */
const BOOTED_MILLISECONDS = 10_000;
/**
 * Number of failed requests in a row after which a booted Android counts as not ready. By default, a kubelet's readiness probe allows the
 * same number.
 */
const FAILURES = 3;
/**
 * Largest value of the factor `patience`. A booted Android counts as not ready after {@link FAILURES} × patience failed requests in a row.
 * The factor doubles each time that failed requests change the readiness. With a constant factor, an Android that repeatedly stops
 * answering would change the status of its Pod every few seconds. With the largest factor, the agent needs two minutes to notice that
 * Android no longer answers.
 */
const MOST_PATIENCE = 20;
/** If failed requests do not change the readiness for this time, the patience (see {@link MOST_PATIENCE}) is 1 again. */
const STEADY_MILLISECONDS = 10 * 60_000;

/**
 * Messages for users about an emulator whose Android has not booted or does not answer. The messages contain no text from the guest,
 * because the guest can choose any text.
 */
const BOOTING: Readonly<Record<Exclude<BootAnswer['kind'], 'booted'>, string>> = {
  silent: 'Android is booting; ADB does not answer yet',
  booting: 'Android is booting; ADB answers, and the boot is not complete yet',
  wantsKey:
    'ADB requires a key, so the host cannot see whether Android has booted; use a system image whose ADB does not require a key',
  wrong: `Android is booting; port ${ADB_PORT} answers, but not as ADB`,
};
const LOST: typeof BOOTING = {
  silent: 'Android has booted, but ADB no longer answers',
  booting: 'Android is booting again; ADB answers, and the boot is not complete yet',
  wantsKey: 'Android has booted, but ADB now requires a key',
  wrong: `Android has booted, but port ${ADB_PORT} no longer answers as ADB`,
};

export interface BootPollerOptions extends LoopOptions {
  ask: typeof askBooted;
  /** Saves in the record that Android has booted in this run. */
  booted: (record: MachineRecord) => void;
}

export class BootPoller extends GuestLoops {
  readonly #options: BootPollerOptions;

  constructor(options: BootPollerOptions) {
    super();
    this.#options = options;
  }

  /**
   * If the Pod's emulator runs, starts the regular requests to the emulator. Otherwise ends these requests. If Android had booted before a
   * restart of the agent, the readiness comes from the Pod's condition `Ready` until the first answer.
   */
  follow(pod: Readonly<Pod>, runtime: Runtime): void {
    const { uid } = runtime.folder;
    if (runtime.state.kind !== 'running') {
      this.forget(uid);
      runtime.readiness = undefined;
      return;
    }
    if (!this.has(uid)) {
      runtime.readiness = firstReadiness(pod, runtime.record);
      this.start(uid, async (signal) => await this.#run(runtime, signal));
    }
  }

  async #run(runtime: Runtime, signal: AbortSignal): Promise<void> {
    const { onError, wait = rest } = this.#options;
    const answers = new Answers();
    while (!signal.aborted) {
      try {
        // A paused guest is not asked, because it cannot answer even if Android works.
        const answer = isPaused(runtime) ? undefined : await this.#ask(runtime, signal);
        if (answer !== undefined && !signal.aborted) {
          this.#take(runtime, answer, answers);
        }
      } catch (error) {
        onError(runtime.folder.uid, error);
      }
      const isFine = runtime.record.booted === true && answers.failures === 0;
      await wait(isFine ? BOOTED_MILLISECONDS : BOOTING_MILLISECONDS, signal);
    }
  }

  async #ask({ address }: Readonly<Runtime>, signal: AbortSignal): Promise<BootAnswer> {
    return address === undefined
      ? { kind: 'silent', message: 'The emulator has no address' }
      : await this.#options.ask({ host: address, port: ADB_PORT }, signal);
  }

  #take(runtime: Runtime, answer: BootAnswer, answers: Answers): void {
    const { record, readiness: before } = runtime;
    const isFirst = answer.kind === 'booted' && record.booted !== true;
    if (isFirst) {
      this.#options.booted(record);
    }
    runtime.readiness = answers.take(answer, readinessOf(answer, record), before);
    if (isFirst || !isDeepStrictEqual(runtime.readiness, before)) {
      this.#options.changed(runtime.folder.uid);
    }
  }
}

type Readiness = NonNullable<Runtime['readiness']>;

/** The answers of one emulator in one run. */
class Answers {
  /** Number of answers in a row that were not `booted`. */
  failures = 0;
  /** Number of answers in a row that have the same kind as the last answer. */
  #same = 0;
  #last: BootAnswer['kind'] | undefined;
  /** A ready Android counts as not ready after {@link FAILURES} times this number of failed requests in a row. */
  #patience = 1;
  /** Time at which failed requests last changed the readiness, in milliseconds since the start of this process. */
  #changedAt = 0;

  /**
   * Returns the readiness after an answer. `before` is the present readiness, and `next` is the readiness that fits this answer. If Android
   * has booted and answers, the result is `next` at once. Otherwise the result is `next` after enough failed requests in a row, and
   * `before` until then.
   */
  take({ kind }: BootAnswer, next: Readiness, before: Readiness | undefined): Readiness {
    this.failures = kind === 'booted' ? 0 : this.failures + 1;
    this.#same = kind === this.#last ? this.#same + 1 : 1;
    this.#last = kind;
    if (before === undefined || kind === 'booted' || isDeepStrictEqual(next, before)) {
      return next;
    }
    const now = performance.now();
    const patience = now - this.#changedAt > STEADY_MILLISECONDS ? 1 : this.#patience;
    const isEnough = before.ready ? this.failures >= FAILURES * patience : this.#same >= patience;
    if (!isEnough) {
      return before;
    }
    this.#changedAt = now;
    this.#patience = Math.min(2 * patience, MOST_PATIENCE);
    return next;
  }
}

function isPaused({ state }: Readonly<Runtime>): boolean {
  return state.kind === 'running' && state.paused;
}

function readinessOf({ kind }: Pick<BootAnswer, 'kind'>, { booted }: Readonly<MachineRecord>): Readiness {
  if (kind === 'booted') {
    return { ready: true, message: 'Android has booted, and ADB answers' };
  }
  return { ready: false, message: (booted === true ? LOST : BOOTING)[kind] };
}

function firstReadiness(pod: Readonly<Pod>, record: Readonly<MachineRecord>): Runtime['readiness'] {
  if (record.booted !== true) {
    return readinessOf({ kind: 'silent' }, record);
  }
  const said = pod.status?.conditions?.find(({ type }) => type === 'Ready');
  return { ready: said?.status === 'True', message: said?.message ?? '' };
}
