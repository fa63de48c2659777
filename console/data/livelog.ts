/** The log of a VM, which is followed while the page is shown. */
import { Backoff } from '../../base/backoff.ts';
import { lineOfLog, type LogLine } from '../model/log.ts';
import { type Api, RefusedRequestError } from './api.ts';
import { type Freshness, freshnessAfter } from './follow.ts';
import { Views } from './views.ts';
import type { VMRef } from './vmstream.ts';
import { onHidden, pauseFor, whenShown } from './waits.ts';

/** Number of lines that stay. */
const LINES = 2_000;
/** Longest line in characters that is kept. */
const LINE_CHARACTERS = 8_192;
/** Waits between attempts. A VM that starts has no log yet. */
const BACKOFF = { firstMilliseconds: 1_000, capMilliseconds: 30_000, jitter: 0.5 } as const;
const BETWEEN_MILLISECONDS = 1_000;

export class LiveLog {
  readonly views = new Views();
  lines: readonly LogLine[] = [];
  freshness: Freshness = { state: 'loading' };
  readonly #api: Api;
  readonly #path: string;
  readonly #end = new AbortController();

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
      try {
        await whenShown(signal);
        await this.#read(signal);
        backoff.reset();
        await pauseFor(BETWEEN_MILLISECONDS, signal);
      } catch (error) {
        if (signal.aborted) {
          return;
        }
        this.#change(freshnessAfter(error));
        if (isFinal(error)) {
          return;
        }
        await pauseFor(backoff.next(), signal);
      }
    }
  }

  /** Reads the log from the last known line on, until it ends or the page is hidden. */
  async #read(signal: AbortSignal): Promise<void> {
    const hidden = new AbortController();
    const stop = onHidden(() => hidden.abort());
    const last = this.lines.at(-1)?.time;
    // The API server takes only whole seconds. So the lines of the last second come again, and are left out below.
    const query = last === undefined ? '' : `?sinceTime=${last.slice(0, 19)}Z`;
    let rest = '';
    try {
      for await (const text of this.#api.texts(
        this.#path + query,
        AbortSignal.any([signal, hidden.signal]),
      )) {
        const lines = (rest + text).split('\n');
        rest = (lines.pop() ?? '').slice(0, LINE_CHARACTERS);
        this.#add(lines, last);
      }
    } catch (error) {
      if (!hidden.signal.aborted) {
        throw error;
      }
    } finally {
      stop();
    }
  }

  #add(lines: readonly string[], last: string | undefined): void {
    const added = lines
      .map((line) => lineOfLog(line.slice(0, LINE_CHARACTERS)))
      .filter((line) => line !== undefined && (last === undefined || line.time > last));
    this.lines = [...this.lines, ...(added as LogLine[])].slice(-LINES);
    this.#change({ state: 'live' });
  }

  #change(freshness: Freshness): void {
    this.freshness = freshness;
    this.views.changed();
  }
}

/** Returns whether no later attempt changes the refusal. A VM that starts has no Pod and no log yet. */
function isFinal(error: unknown): boolean {
  return error instanceof RefusedRequestError && [401, 403].includes(error.status);
}
