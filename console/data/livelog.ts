/** The log of a VM, which is followed while the page is shown. */
import { Backoff } from '../../base/backoff.ts';
import { lineOfLog, type LogLine } from '../model/log.ts';
import type { Api } from './api.ts';
import { RefusedRequestError } from './refusal.ts';
import { type Freshness, freshnessAfter } from './follow.ts';
import { Views } from './views.ts';
import type { VMRef } from './vmstream.ts';
import { onHidden, pauseFor, whenShown } from './waits.ts';

/** Number of lines that stay. */
const LINES = 2_000;
/** Longest line in characters that is kept. */
const LINE_CHARACTERS = 8_192;
/** Waits between attempts. A VM that starts has no log yet, and the log of one that has ended ends at once. */
const BACKOFF = { firstMilliseconds: 1_000, capMilliseconds: 30_000, jitter: 0.5 } as const;

/** The lines with the last time. The host gives many lines the same time. */
interface LastLines {
  readonly time: string;
  readonly count: number;
}

export class LiveLog {
  readonly views = new Views();
  lines: readonly LogLine[] = [];
  freshness: Freshness = { state: 'loading' };
  readonly #api: Api;
  readonly #path: string;
  readonly #end = new AbortController();
  #last: LastLines | undefined;

  constructor(api: Api, { namespace, name }: VMRef) {
    this.#api = api;
    this.#path = `/console/logs/namespaces/${encodeURIComponent(namespace)}/vms/${encodeURIComponent(name)}`;
  }

  start(): void {
    void this.#follow();
  }

  stop(): void {
    this.#end.abort();
  }

  async #follow(): Promise<void> {
    const { signal } = this.#end;
    const backoff = new Backoff(BACKOFF);
    while (!signal.aborted) {
      await whenShown(signal);
      const began = performance.now();
      try {
        await this.#read(signal);
      } catch (error) {
        if (signal.aborted) {
          return;
        }
        this.#change(freshnessAfter(error));
        if (isFinal(error)) {
          return;
        }
      }
      if (performance.now() - began >= BACKOFF.capMilliseconds) {
        backoff.reset();
      }
      await pauseFor(backoff.next(), signal);
    }
  }

  /** Reads the log from the last known line on, until it ends or the page is hidden. */
  async #read(signal: AbortSignal): Promise<void> {
    const hidden = new AbortController();
    const stop = onHidden(() => hidden.abort());
    // The API server takes only whole seconds. So the lines of the last second come again, and are left out below.
    const query = this.#last === undefined ? '' : `?sinceTime=${this.#last.time.slice(0, 19)}Z`;
    const isRepeated = repeats(this.#last);
    let rest = '';
    try {
      for await (const text of this.#api.texts(
        this.#path + query,
        AbortSignal.any([signal, hidden.signal]),
      )) {
        const lines = (rest + text).split('\n');
        rest = (lines.pop() ?? '').slice(0, LINE_CHARACTERS);
        this.#add(lines, isRepeated);
      }
    } catch (error) {
      if (!hidden.signal.aborted) {
        throw error;
      }
    } finally {
      stop();
    }
  }

  #add(lines: readonly string[], isRepeated: (line: LogLine) => boolean): void {
    const added = lines
      .map((line) => lineOfLog(line.slice(0, LINE_CHARACTERS)))
      .filter((line) => line !== undefined)
      .filter((line) => !isRepeated(line));
    for (const { time } of added) {
      this.#last = { time, count: this.#last?.time === time ? this.#last.count + 1 : 1 };
    }
    this.lines = [...this.lines, ...added].slice(-LINES);
    this.#change({ state: 'live' });
  }

  #change(freshness: Freshness): void {
    this.freshness = freshness;
    this.views.changed();
  }
}

/** Returns a function that recognises the lines of a new answer that were shown before: those until the last time, and as many of that time. */
function repeats(last: LastLines | undefined): (line: LogLine) => boolean {
  let left = last?.count ?? 0;
  return ({ time }) => {
    if (last === undefined || time > last.time) {
      return false;
    }
    if (time < last.time) {
      return true;
    }
    left -= 1;
    return left >= 0;
  };
}

/** Returns whether no later attempt changes the refusal. A VM that starts has no Pod and no log yet. */
function isFinal(error: unknown): boolean {
  return error instanceof RefusedRequestError && [401, 403].includes(error.status);
}
