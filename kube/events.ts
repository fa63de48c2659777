/** Events about objects: aggregated, rate-limited, bounded, and never in anybody's way. */
import { randomUUID } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import type { Logger } from 'pino';
import type { KubeClient } from './client.ts';
import { type Event, EVENTS, type ObjectReference } from './core.ts';
import { isNamespaceTerminating, isNotFound } from './errors.ts';
import type { KubeObject, Ref } from './objects.ts';
import { microTime } from '../base/time.ts';

/** client-go's correlator keeps as many. */
const REMEMBERED = 4096;
/** client-go's limit of Events about one object: 25 at once, then one in five minutes. */
const BURST = 25;
const REFILL_MILLISECONDS = 300_000;
/** client-go's window: the same Event again within ten minutes makes the first a series. */
const SERIES_WINDOW_MILLISECONDS = 600_000;
/**
 * Events that wait to be sent, some 1 KB each: twice what a burst of 1,000 new objects tells. When the API server is away, the
 * newest are dropped and counted.
 */
const WAITING = 4_000;
/** The API server's limits of a note and of a reporting instance. */
const NOTE_LENGTH = 1024;
const INSTANCE_LENGTH = 128;

/** `Reason`: the words that may be said. */
export interface EventText<Reason extends string> {
  type: 'Normal' | 'Warning';
  /** Why, in CamelCase, for machines. */
  reason: Reason;
  /** What was done or failed, in CamelCase. */
  action: string;
  /** For people; cut to 1 KiB. */
  message: string;
}

export interface EventRecorderOptions {
  /** Such as `berth.dev/operator`. */
  reportingController: string;
  /** Which of its processes. */
  reportingInstance: string;
  logger: Logger;
  /** Milliseconds since 1970. */
  clock?: () => number;
}

interface Recorded {
  /** Settled once the Event was made, or given up. */
  ref: Promise<Ref | undefined>;
  count: number;
  lastObserved: number;
  /** A patch with the count is on its way or waits. */
  patching: boolean;
}

interface Bucket {
  tokens: number;
  filled: number;
}

/** Errors are logged and counted (`berth_events_total`), never thrown. */
export class EventRecorder<Reason extends string> {
  readonly #client: KubeClient;
  readonly #options: EventRecorderOptions;
  readonly #clock: () => number;
  readonly #recorded = new LRUCache<string, Recorded>({ max: REMEMBERED });
  readonly #buckets = new LRUCache<string, Bucket>({ max: REMEMBERED });
  readonly #waiting: (() => Promise<void>)[] = [];
  /** Sends what waits, one after another. */
  #sender: Promise<void> = Promise.resolve();
  #isSending = false;

  constructor(client: KubeClient, options: EventRecorderOptions) {
    this.#client = client;
    this.#options = { ...options, reportingInstance: options.reportingInstance.slice(0, INSTANCE_LENGTH) };
    this.#clock = options.clock ?? Date.now;
  }

  event(regarding: KubeObject, text: EventText<Reason>): void {
    const { uid = '', namespace = '', name } = regarding.metadata;
    const object = `${regarding.kind}/${namespace}/${name}/${uid}`;
    if (!this.#allowed(object)) {
      this.#count('limited');
      return;
    }
    const key = JSON.stringify([object, text]);
    const now = this.#clock();
    const known = this.#recorded.get(key);
    if (known !== undefined && now - known.lastObserved < SERIES_WINDOW_MILLISECONDS) {
      known.count += 1;
      known.lastObserved = now;
      this.#patchSeries(key, known);
    } else {
      this.#create(key, regarding, text);
    }
  }

  /** For a process that ends: resolves once all are sent, at the latest after `milliseconds`. What waits then is dropped and counted. */
  async flush(milliseconds: number): Promise<void> {
    const { promise: late, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, milliseconds);
    await Promise.race([this.#sender, late]);
    clearTimeout(timer);
    const { length: dropped } = this.#waiting.splice(0);
    if (dropped > 0) {
      this.#count('dropped', dropped);
      this.#options.logger.warn({ dropped, milliseconds }, 'events not sent before the end');
    }
  }

  /** One for each, from a bucket that fills slowly: an object that flaps must not fill etcd. */
  #allowed(object: string): boolean {
    const now = this.#clock();
    const bucket = this.#buckets.get(object) ?? { tokens: BURST, filled: now };
    const refilled = bucket.tokens + (now - bucket.filled) / REFILL_MILLISECONDS;
    const tokens = Math.min(BURST, refilled);
    this.#buckets.set(object, { tokens: tokens >= 1 ? tokens - 1 : tokens, filled: now });
    return tokens >= 1;
  }

  #create(key: string, regarding: KubeObject, text: EventText<Reason>): void {
    const now = this.#clock();
    const { promise: ref, resolve } = Promise.withResolvers<Ref | undefined>();
    this.#recorded.set(key, { ref, count: 1, lastObserved: now, patching: false });
    // Made now: what waits must not hold on to the whole object.
    const body = this.#body(regarding, text, now);
    const sent = this.#send(async () => {
      try {
        const made = await this.#client.create<Event>(EVENTS, body);
        this.#count('created');
        resolve(made.metadata);
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

  /** However often it happened meanwhile, one patch tells the count at the time it is sent. */
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
        // Names of objects are at most 253 characters, and so is this one.
        name: `${name.slice(0, 210)}.${randomUUID()}`,
        namespace: namespace ?? 'default',
      },
      eventTime: microTime(now),
      reportingController: this.#options.reportingController,
      reportingInstance: this.#options.reportingInstance,
      action: text.action,
      reason: text.reason,
      type: text.type,
      note: cut(text.message, NOTE_LENGTH),
      regarding: referenceTo(regarding),
    };
  }

  #forget(key: string, error: unknown): void {
    this.#recorded.delete(key);
    this.#count('failed');
    // An Event that has expired, or whose namespace is gone or going, is nobody's concern.
    const level = isNotFound(error) || isNamespaceTerminating(error) ? 'debug' : 'warn';
    this.#options.logger[level]({ err: error }, 'event not recorded');
  }

  /** False when too many wait already. */
  #send(job: () => Promise<void>): boolean {
    if (this.#waiting.length >= WAITING) {
      this.#count('dropped');
      return false;
    }
    this.#waiting.push(job);
    if (!this.#isSending) {
      this.#sender = this.#drain();
    }
    return true;
  }

  /** One at a time: in a burst Events trail behind the writes that they tell of, instead of taking the API server's time from them. */
  async #drain(): Promise<void> {
    this.#isSending = true;
    for (let job = this.#waiting.shift(); job !== undefined; job = this.#waiting.shift()) {
      await job();
    }
    this.#isSending = false;
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

/** The limit is in bytes; a cut character is left out whole. */
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
