/**
 * Records Events about objects. Repeated Events are counted in one Event. For each object, the rate of Events is limited. Events never
 * delay other work.
 */
import { randomInt } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import PQueue from 'p-queue';
import type { Logger } from 'pino';
import type { KubeClient } from './client.ts';
import { type Event, EVENTS, type ObjectReference } from './core.ts';
import { isNamespaceTerminating, isNotFound } from './errors.ts';
import type { KubeObject, Ref } from './objects.ts';
import { microTime } from '../base/time.ts';

/**
 * Largest number of Events that are stored to find repetitions. It is also the largest number of objects whose rate limits are stored.
 * client-go's correlator has the same number.
 */
const REMEMBERED = 4096;
/** Rate limit of Events about one object: 25 without a pause, and after that one in five minutes. client-go has the same limit. */
const BURST = 25;
const REFILL_MILLISECONDS = 300_000;
/** If an Event repeats within this time in milliseconds, only the count of the first Event increases. client-go has the same time. */
const SERIES_WINDOW_MILLISECONDS = 600_000;
/**
 * Largest number of Events that wait to be sent. If this number is reached, for example because the API server is unreachable, further
 * Events are dropped and counted. For comparison, 1,000 new objects cause about 2,000 Events, and an Event has about 1 KB.
 */
const WAITING = 4_000;
/** Longest part of an object's name in the name of its Event. With the dot and 16 digits, the name stays below its limit of 253. */
const OBJECT_NAME_LENGTH = 210;
/** Limits of the API server: the length of an Event's note in bytes, and the length of `reportingInstance` in characters. */
const NOTE_LENGTH = 1024;
const INSTANCE_LENGTH = 128;

/** Content of an Event. The type parameter `Reason` is the type of the allowed reasons. */
export interface EventText<Reason extends string> {
  type: 'Normal' | 'Warning';
  /** Reason in CamelCase, for programs. */
  reason: Reason;
  /** Action that was done or failed, in CamelCase. */
  action: string;
  /** Message for people, cut to 1 KiB. */
  message: string;
  /**
   * Whether an Event of the same reason about the object within {@link SERIES_WINDOW_MILLISECONDS} is enough, whatever its message is. It is for
   * a state that comes and goes many times, which the status of the object shows.
   */
  isOnce?: boolean;
}

export interface EventRecorderOptions {
  /** Name of the controller, for example `berth.dev/operator`. */
  reportingController: string;
  /** Name of the process that runs the controller. */
  reportingInstance: string;
  logger: Logger;
  /** Returns the current time in milliseconds since 1970. */
  clock?: () => number;
}

interface Recorded {
  /** Resolves with the Event's reference when the Event was created, or with undefined when it could not be created. */
  ref: Promise<Ref | undefined>;
  count: number;
  lastObserved: number;
  /** True while a patch with the new count of this Event waits to be sent. */
  patching: boolean;
}

interface Bucket {
  tokens: number;
  filled: number;
}

/** Records Events. Errors are never thrown: they are logged and counted in `berth_events_total`. */
export class EventRecorder<Reason extends string> {
  readonly #client: KubeClient;
  readonly #options: EventRecorderOptions;
  readonly #clock: () => number;
  readonly #recorded = new LRUCache<string, Recorded>({ max: REMEMBERED });
  readonly #buckets = new LRUCache<string, Bucket>({ max: REMEMBERED });
  /** Sends the Events one at a time. If many wait, some are sent late. The changes that the Events describe are not delayed. */
  readonly #sender = new PQueue({ concurrency: 1 });
  /** Time of the newest Event in milliseconds, and the number of Events that had this time before. */
  #newest = { at: 0, before: 0 };

  constructor(client: KubeClient, options: EventRecorderOptions) {
    this.#client = client;
    this.#options = { ...options, reportingInstance: options.reportingInstance.slice(0, INSTANCE_LENGTH) };
    this.#clock = options.clock ?? Date.now;
  }

  event(regarding: KubeObject, text: EventText<Reason>): void {
    const { uid = '', namespace = '', name } = regarding.metadata;
    const object = `${regarding.kind}/${namespace}/${name}/${uid}`;
    // The key must be short, because it stays in memory. A host can report a message of a megabyte.
    const shown = { ...text, message: cut(text.message, NOTE_LENGTH) };
    const isOnce = text.isOnce === true;
    const key = JSON.stringify([object, isOnce ? text.reason : shown]);
    const now = this.#clock();
    const known = this.#recorded.get(key);
    const isRepeated = known !== undefined && now - known.lastObserved < SERIES_WINDOW_MILLISECONDS;
    if (isRepeated && isOnce) {
      return;
    }
    if (!this.#allowed(object)) {
      this.#count('limited');
    } else if (isRepeated) {
      known.count += 1;
      known.lastObserved = now;
      this.#patchSeries(key, known);
    } else {
      this.#create(key, regarding, shown);
    }
  }

  /**
   * Resolves when all Events were sent, or after `milliseconds`. Events that still wait after this time are dropped and counted. A process
   * calls this function before it ends.
   */
  async flush(milliseconds: number): Promise<void> {
    const { promise: late, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, milliseconds);
    await Promise.race([this.#sender.onIdle(), late]);
    clearTimeout(timer);
    const { size: dropped } = this.#sender;
    this.#sender.clear();
    if (dropped > 0) {
      this.#count('dropped', dropped);
      this.#options.logger.warn({ dropped, milliseconds }, 'the process ended before these Events were sent');
    }
  }

  /**
   * Returns whether the rate limit of the object allows another Event. Each object has a token bucket that fills slowly, so that an object
   * that changes all the time cannot fill etcd.
   */
  #allowed(object: string): boolean {
    const now = this.#clock();
    const bucket = this.#buckets.get(object) ?? { tokens: BURST, filled: now };
    // If the clock was set back, the bucket is not refilled. A negative refill would refuse Events for hours.
    const refilled = bucket.tokens + Math.max(0, now - bucket.filled) / REFILL_MILLISECONDS;
    const tokens = Math.min(BURST, refilled);
    this.#buckets.set(object, { tokens: tokens >= 1 ? tokens - 1 : tokens, filled: now });
    return tokens >= 1;
  }

  #create(key: string, regarding: KubeObject, text: EventText<Reason>): void {
    const now = this.#clock();
    const { promise: ref, resolve } = Promise.withResolvers<Ref | undefined>();
    this.#recorded.set(key, { ref, count: 1, lastObserved: now, patching: false });
    // The request's body is built now, not when the request is sent. Otherwise the whole object would stay in memory until then.
    const body = this.#body(regarding, text, now);
    const sent = this.#send(async () => {
      try {
        await this.#client.create<Event>(EVENTS, body);
        this.#count('created');
        resolve(body.metadata);
      } catch (error) {
        this.#forget(key, error);
        resolve(undefined);
      }
    });
    if (!sent) {
      this.#recorded.delete(key);
      resolve(undefined);
    }
  }

  /** Sends a patch with the count. If the Event repeats before the patch is sent, the same patch contains the higher count. */
  #patchSeries(key: string, known: Recorded): void {
    if (known.patching) {
      return;
    }
    known.patching = this.#send(async () => {
      const ref = await known.ref;
      known.patching = false;
      if (ref === undefined) {
        return;
      }
      const series = { count: known.count, lastObservedTime: microTime(known.lastObserved) };
      try {
        await this.#client.mergePatch(EVENTS, ref, { series });
        this.#count('patched');
      } catch (error) {
        this.#forget(key, error);
      }
    });
  }

  #body(regarding: KubeObject, text: EventText<Reason>, now: number): Event {
    const { name, namespace } = regarding.metadata;
    return {
      apiVersion: EVENTS.apiVersion,
      kind: EVENTS.kind,
      metadata: {
        name: `${name.slice(0, OBJECT_NAME_LENGTH)}.${this.#suffix(now)}`,
        namespace: namespace ?? 'default',
      },
      eventTime: microTime(now),
      reportingController: this.#options.reportingController,
      reportingInstance: this.#options.reportingInstance,
      action: text.action,
      reason: text.reason,
      type: text.type,
      note: text.message,
      regarding: referenceTo(regarding),
    };
  }

  /**
   * Returns the end of the name of a new Event: the time in nanoseconds, in hexadecimal digits. kubectl shows Events of one second in the
   * order of their names, so later Events have larger names. Below the millisecond, the number of the Event keeps the order, and random
   * digits keep two recorders apart.
   */
  #suffix(now: number): string {
    const { at, before } = this.#newest;
    this.#newest = { at: now, before: at === now ? before + 1 : 0 };
    const below = Math.min(99, this.#newest.before) * 10_000 + randomInt(10_000);
    return (BigInt(now) * 1_000_000n + BigInt(below)).toString(16);
  }

  #forget(key: string, error: unknown): void {
    this.#recorded.delete(key);
    this.#count('failed');
    // The request is expected to fail if the Event has expired, or if its namespace is being deleted or no longer exists. Therefore such a
    // failure is not logged as a warning.
    const level = isNotFound(error) || isNamespaceTerminating(error) ? 'debug' : 'warn';
    this.#options.logger[level]({ err: error }, 'event not recorded');
  }

  /** Queues a job (a request that writes an Event). Returns false when too many jobs wait already. */
  #send(job: () => Promise<void>): boolean {
    if (this.#sender.size >= WAITING) {
      this.#count('dropped');
      return false;
    }
    void this.#sender.add(job);
    return true;
  }

  #count(result: 'created' | 'patched' | 'limited' | 'dropped' | 'failed', number = 1): void {
    this.#client.transport.metrics.eventsSent.inc({ result }, number);
  }
}

function referenceTo(object: KubeObject): ObjectReference {
  const { namespace, name, uid, resourceVersion } = object.metadata;
  return {
    apiVersion: object.apiVersion,
    kind: object.kind,
    name,
    ...(namespace === undefined ? {} : { namespace }),
    ...(uid === undefined ? {} : { uid }),
    ...(resourceVersion === undefined ? {} : { resourceVersion }),
  };
}

/** Cuts a text to a limit in bytes. It does not cut a character in half. */
function cut(text: string, limitBytes: number): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= limitBytes) {
    return text;
  }
  return bytes
    .subarray(0, limitBytes - 4)
    .toString('utf8')
    .replace(/\uFFFD+$/, '')
    .concat('…');
}
