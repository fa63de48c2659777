/**
 * A clock that a test moves forward in the operator and agents that it started. Node.js preloads this file into them. All that sleeps until
 * a time that has passed then wakes up. A test therefore needs no long wait to see what happens once a minute.
 *
 * Time limits of requests and programs do not notice it, because these take as long as before.
 */
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { dirname, join } from 'node:path';
import timers from 'node:timers/promises';
import { writeWholeSync } from '../../base/files.ts';
import { waitFor } from '../../hack/wait.ts';

/** Name of the variable with the path of the file in which a program confirms the time. */
const VARIABLE = 'BERTH_TEST_CLOCK';
/** Name of the file, beside the confirmations, with the milliseconds by which the clock is ahead. */
const AHEAD = 'ahead';
/** Interval at which programs read how far their clock is ahead. */
const LOOK_MILLISECONDS = 20;
const SHORTEST_MILLISECONDS = 200;
/** The modules whose `setTimeout` is a sleep. In all others it is a time limit. */
const SLEEPERS = ['/base/time.ts', '/kube/queue.ts'];

/** Moves the clock of programs forward. */
export class ForwardClock {
  readonly #folder: string;
  readonly #programs: string[] = [];
  #ahead = 0;

  /** `folder` is a folder for the files of this clock. It is made if it does not exist. */
  constructor(folder: string) {
    this.#folder = folder;
  }

  /** Returns the environment of a program that follows this clock. `name` is different for each program. */
  environment(name: string): Record<string, string> {
    this.#programs.push(name);
    return { NODE_OPTIONS: `--import=${import.meta.url}`, [VARIABLE]: join(this.#folder, name) };
  }

  /** Moves the clock forward. Resolves when all programs have woken up what was due. */
  async advance(milliseconds: number): Promise<void> {
    this.#ahead += milliseconds;
    mkdirSync(this.#folder, { recursive: true });
    writeWholeSync(join(this.#folder, AHEAD), String(this.#ahead));
    const confirmed = (program: string): boolean => readNumber(join(this.#folder, program)) === this.#ahead;
    await waitFor(`${this.#programs.join(' and ')} to follow the clock`, () =>
      this.#programs.every(confirmed),
    );
  }
}

/** Returns the number in a file; 0 if there is no such file. */
function readNumber(file: string): number {
  return existsSync(file) ? Number(readFileSync(file, 'utf8')) : 0;
}

interface Sleep {
  /** Time of the waking, in milliseconds of the monotonic clock that follows. */
  due: number;
  readonly wake: () => void;
}

/** Replaces the clocks and sleeps of this process by those that follow the file {@link AHEAD}. */
function follow(confirmation: string): void {
  const real = {
    setTimeout,
    setInterval,
    clearTimeout,
    date: Date.now.bind(Date),
    monotonic: performance.now.bind(performance),
    sleep: timers.setTimeout,
  };
  const sleeps = new Map<unknown, Sleep>();
  let ahead = 0;
  Date.now = () => real.date() + ahead;
  performance.now = () => real.monotonic() + ahead;

  function startTimeout(
    run: (...values: unknown[]) => void,
    milliseconds = 0,
    ...values: unknown[]
  ): unknown {
    if (!isSleep(milliseconds)) {
      return real.setTimeout(run, milliseconds, ...values);
    }
    const wake = (): void => {
      end(timer);
      run(...values);
    };
    const timer = real.setTimeout(wake, milliseconds);
    sleeps.set(timer, { due: performance.now() + milliseconds, wake });
    return timer;
  }

  function startInterval(run: () => void, milliseconds: number): unknown {
    const timer = real.setInterval(() => wake(), milliseconds);
    const sleep = { due: performance.now() + milliseconds, wake };
    function wake(): void {
      sleep.due = performance.now() + milliseconds;
      timer.refresh();
      run();
    }
    sleeps.set(timer, sleep);
    return timer;
  }

  function end(timer: NodeJS.Timeout | undefined): void {
    sleeps.delete(timer);
    real.clearTimeout(timer);
  }

  async function startSleep<T>(
    milliseconds: number,
    value: T,
    options: { signal?: AbortSignal } = {},
  ): Promise<T> {
    const woken = new AbortController();
    sleeps.set(woken, { due: performance.now() + milliseconds, wake: () => woken.abort() });
    const signals = [woken.signal, ...(options.signal === undefined ? [] : [options.signal])];
    try {
      return await real.sleep(milliseconds, value, { ...options, signal: AbortSignal.any(signals) });
    } catch (error) {
      if (options.signal?.aborted === true || !woken.signal.aborted) {
        throw error;
      }
      return value;
    } finally {
      sleeps.delete(woken);
    }
  }

  function look(): void {
    const wanted = readNumber(join(dirname(confirmation), AHEAD));
    if (wanted === ahead) {
      return;
    }
    ahead = wanted;
    const due = [...sleeps.values()].filter((sleep) => sleep.due <= performance.now());
    for (const sleep of due.toSorted((one, other) => one.due - other.due)) {
      sleep.wake();
    }
    writeWholeSync(confirmation, String(ahead));
  }

  Object.assign(globalThis, { setTimeout: startTimeout, setInterval: startInterval });
  Object.assign(globalThis, { clearTimeout: end, clearInterval: end });
  Object.assign(timers, { setTimeout: startSleep });
  syncBuiltinESMExports();
  real.setInterval(look, LOOK_MILLISECONDS).unref();
}

/** Reports whether the caller of `setTimeout` sleeps. Short sleeps keep their length. */
function isSleep(milliseconds: number): boolean {
  return (
    milliseconds >= SHORTEST_MILLISECONDS && SLEEPERS.some((module) => new Error().stack?.includes(module))
  );
}

const confirmation = process.env[VARIABLE];
if (confirmation !== undefined) {
  // Programs that this one starts have the real clock.
  delete process.env[VARIABLE];
  follow(confirmation);
}
