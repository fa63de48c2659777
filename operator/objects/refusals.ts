/**
 * Handles the refusals of the API server: of a new Pod, Secret or Job, and of a change. Decides which failed requests people are told about,
 * and how long the operator waits before it checks again whether an obstacle is gone, for example a quota. No watch shows this.
 */
import { ApiError, DeadlineError, isConflict, isObjectRefused, isRefusedByRule } from '../../kube/errors.ts';
import { keyOf, type KubeObject } from '../../kube/objects.ts';
import { type Recorder, warning } from './events.ts';

/** Pattern of the parts in which two errors with one cause can differ: ports, times and ids of requests. */
const CHANGING = /[\da-f]+/gi;

/**
 * Returns the message of the API server for the status. `before` is the message that the status already contains. If the cause is no rule
 * of admission, for example a webhook that cannot be called, the two messages can differ only in a port or a time. The result is then
 * `before`. Otherwise each attempt would change the status, and each change of the status would cause the next attempt at once.
 */
export function refusalMessage(error: Error, before: string | undefined): string {
  const shape = (message: string): string => message.replaceAll(CHANGING, '');
  const isSame = before !== undefined && !isRefusedByRule(error) && shape(before) === shape(error.message);
  return isSame ? before : error.message;
}

/**
 * Waits for a change of an existing object, and returns the observed state after it. If the API server refuses the change, the state stays
 * as it was, and `refused` is the error.
 *
 * @throws any error of the change that is not a refusal
 */
export async function unlessRefused<T>(
  observed: T,
  change: Promise<T>,
): Promise<{ observed: T; refused?: ApiError }> {
  try {
    return { observed: await change };
  } catch (error) {
    if (isObjectRefused(error)) {
      return { observed, refused: error };
    }
    throw error;
  }
}

/** Returns the refusal, unless it is the reason for which the object is blocked. In this case a condition has its words, and needs no Event. */
export function unlessBlocking(
  refused: Error | undefined,
  blocked: { readonly reason: string } | undefined,
): Error | undefined {
  return blocked?.reason === 'PodRefused' ? undefined : refused;
}

/** Shortest and longest wait in milliseconds. After a minute without a change, people do not expect a start within seconds. */
const SHORTEST_MILLISECONDS = 10_000;
const LONGEST_MILLISECONDS = 60_000;

/**
 * Returns the wait in milliseconds. It is as long as the object has waited so far, so the waits grow, and need no memory or status. At most
 * half of the wait is removed at random. Otherwise, all objects that one quota refuses would send their requests at the same time.
 *
 * @param since RFC 3339 time since which the object waits; undefined if it begins to wait now
 * @param now milliseconds since the epoch
 */
export function recheckMilliseconds(since: string | undefined, now: number): number {
  const age = since === undefined ? 0 : now - Date.parse(since);
  const wait = Math.min(Math.max(age, SHORTEST_MILLISECONDS), LONGEST_MILLISECONDS);
  return wait * (1 - Math.random() / 2);
}

/**
 * Time in milliseconds after which any error of the API server counts as a refusal. Some admission plug-ins refuse with the status 500 and
 * without a reason. A short fault of etcd looks the same, so such an error counts only if it lasts. The back-off of a controller tries
 * again 2.6 s after the first failure, so people see the error within 5 s.
 */
const LASTING_MILLISECONDS = 1_500;
/**
 * Time in milliseconds after which a refusal that lasts is recorded again. By default, the API server keeps an Event for an hour
 * (`--event-ttl`), so a new Event exists before the last one is gone.
 */
const REPEAT_MILLISECONDS = 30 * 60_000;

interface RefusalsOptions {
  readonly recorder: Recorder;
  /** Kind of the objects that the operator creates for the object. */
  readonly dependent: 'Pod' | 'Job' | 'VM';
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

/** Remembers the refusals of the objects of one controller. The key of an object is the key of its reconcile. */
export class Refusals {
  readonly #options: RefusalsOptions;
  /**
   * Last recorded message of each object whose last change was refused, and its time. An Event for each attempt would use up the rate limit
   * of the object, and other Events would be lost.
   */
  readonly #recorded = new Map<string, { readonly text: string; readonly at: number }>();
  /** Time of the first failure of each object whose last reconcile failed, in milliseconds since the epoch. */
  readonly #failingSince = new Map<string, number>();

  constructor(options: RefusalsOptions) {
    this.#options = options;
  }

  /**
   * Returns the error of a reconcile if people must be told about it: a refusal at once, and any other error of the API server once
   * reconciles of the object have failed for {@link LASTING_MILLISECONDS}. The result is undefined for a conflict, which the next attempt
   * resolves.
   */
  judge(key: string, error: unknown): Error | undefined {
    if (!(error instanceof ApiError || error instanceof DeadlineError) || isConflict(error)) {
      return undefined;
    }
    const now = this.#options.clock();
    const since = this.#failingSince.get(key) ?? now;
    this.#failingSince.set(key, since);
    return isObjectRefused(error) || now - since >= LASTING_MILLISECONDS ? error : undefined;
  }

  /** Records an Event if the refusal is new. `refused` is undefined if the last reconcile of the object had no refused change. */
  record(object: KubeObject, refused: Error | undefined): void {
    const key = keyOf(object);
    if (refused === undefined) {
      this.#recorded.delete(key);
      return;
    }
    const { recorder, dependent, clock } = this.#options;
    const last = this.#recorded.get(key);
    const text = refusalMessage(refused, last?.text);
    const at = clock();
    if (text !== last?.text || at - last.at >= REPEAT_MILLISECONDS) {
      this.#recorded.set(key, { text, at });
      const message = `The API server refused a change of the ${object.kind} or its ${dependent}: ${text}`;
      recorder.event(object, warning(`${dependent}Refused`, 'Changing', message));
    }
  }

  /**
   * Waits for a reconcile of the object that ends at the first failed request. Records an Event if people must be told about the failure,
   * and the Event is new. @throws the error of the reconcile.
   */
  async during<T>(object: KubeObject, reconcile: Promise<T>): Promise<T> {
    const key = keyOf(object);
    try {
      const result = await reconcile;
      this.forget(key);
      return result;
    } catch (error) {
      const refused = this.judge(key, error);
      if (refused !== undefined) {
        this.record(object, refused);
      }
      throw error;
    }
  }

  /** Ends the series of failures of an object, because a reconcile had no unknown error. */
  succeeded(key: string): void {
    this.#failingSince.delete(key);
  }

  /** Forgets the failures of an object, for example after the object was deleted. */
  forget(key: string): void {
    this.#recorded.delete(key);
    this.#failingSince.delete(key);
  }
}
