/**
 * Reads the times of jobs from Prometheus. All queries are fixed, and differ only in the namespace. Whoever answers at the address of Prometheus
 * is not trusted: its answers have limits of bytes, values, series and time.
 */
import { readFile } from 'node:fs/promises';
import { LRUCache } from 'lru-cache';
import PQueue from 'p-queue';
import type { FastifyBaseLogger } from 'fastify';
import * as z from 'zod';
import type { JobTotals, PrometheusTimes, TimeTotal } from '../../api/http/consoletimes.ts';
import { JOB_TIMES_LIMIT, JOB_TIMES_MILLISECONDS } from '../../api/v1alpha1/jobtimelimits.ts';
import type { JobTimesEntry } from '../../api/v1alpha1/jobtimes.ts';
import { messageOf } from '../../base/errors.ts';
import { fetchWithLimits } from '../../base/fetch.ts';
import { type JsonLimits, parseJson } from '../../base/json.ts';
import { Proxies } from '../../base/proxy.ts';
import type { PrometheusConfig } from '../config.ts';

/** Histograms of the operator, with the times that they measure. */
const METRICS = { waited: 'berth_job_wait_seconds', ran: 'berth_job_run_seconds' } as const;
type Measure = keyof typeof METRICS;

const STEP_SECONDS = JOB_TIMES_MILLISECONDS / 1_000;
/** Number of entries of one hour. */
const HOUR_ENTRIES = 3_600 / STEP_SECONDS;
/** Share of the jobs whose time the page shows as the highest. A histogram does not know the longest time. */
const SHARE = 0.95;
/** Time limit in milliseconds of all queries about one scope. */
const ANSWER_MILLISECONDS = 10_000;
/** Time in milliseconds for which an answer is used again, also one that says that there is none. Pages read every 30 s. */
const KEEP_MILLISECONDS = 25_000;
/** Largest number of scopes whose answers are kept. */
const KEPT = 64;
/** Largest number of queries at the same time. */
const QUERIES = 4;
/** Largest number of series in an answer. The histograms have 16 buckets. */
const SERIES = 20;
/** Limits of an answer: 16 series of 288 points, each with a bracket and two commas. */
const LIMITS: JsonLimits = { bytes: 1024 * 1024, items: 16_384 };

const answerSchema = z.object({
  status: z.literal('success'),
  data: z.object({
    resultType: z.literal('matrix'),
    result: z
      .array(
        z.object({
          metric: z.object({ le: z.string().max(32).optional() }),
          values: z.array(z.tuple([z.number(), z.string().max(64)])).max(JOB_TIMES_LIMIT),
        }),
      )
      .max(SERIES),
  }),
});

/** Error whose message is for everybody who may see the times. It tells nothing about the network of the cluster. */
export class PrometheusRefusal extends Error {
  override readonly name = 'PrometheusRefusal';
}

/** What is read: one namespace, or all. */
export interface TimesScope {
  readonly namespace?: string;
  /** Time in milliseconds before which another namespace could have had the same name. */
  readonly since?: number;
}

/** Returns the text of an answer of Prometheus. */
export type AskPrometheus = (url: string, signal: AbortSignal) => Promise<string>;

export class PrometheusReader {
  readonly #config: PrometheusConfig;
  readonly #ask: AskPrometheus;
  readonly #clock: () => number;
  readonly #queue = new PQueue({ concurrency: QUERIES });
  readonly #kept = new LRUCache<string, Promise<PrometheusTimes>>({ max: KEPT, ttl: KEEP_MILLISECONDS });

  constructor(
    config: PrometheusConfig,
    { ask = askPrometheus(config), clock = Date.now }: { ask?: AskPrometheus; clock?: () => number } = {},
  ) {
    this.#config = config;
    this.#ask = ask;
    this.#clock = clock;
  }

  /** Returns the times of the last 24 hours. @throws PrometheusRefusal, which says what to do. */
  async read(scope: TimesScope, log: Pick<FastifyBaseLogger, 'warn'>): Promise<PrometheusTimes> {
    const key = `${scope.namespace ?? ''} ${scope.since ?? ''}`;
    const reading = this.#kept.get(key) ?? this.#start(scope, log);
    this.#kept.set(key, reading, { noUpdateTTL: true });
    return await reading;
  }

  async #start(scope: TimesScope, log: Pick<FastifyBaseLogger, 'warn'>): Promise<PrometheusTimes> {
    try {
      return await this.#read(scope);
    } catch (error) {
      const cause = error instanceof PrometheusRefusal ? (error.cause ?? error) : error;
      log.warn({ namespace: scope.namespace, err: cause }, 'Prometheus gives no times of jobs');
      throw error instanceof PrometheusRefusal ? error : noAnswer(error);
    }
  }

  async #read({ namespace, since = 0 }: TimesScope): Promise<PrometheusTimes> {
    const last = Math.floor(this.#clock() / JOB_TIMES_MILLISECONDS);
    // The five minutes in which the namespace began can have jobs of the earlier one.
    const first = Math.max(last - JOB_TIMES_LIMIT + 1, Math.ceil(since / JOB_TIMES_MILLISECONDS));
    const range = { first, count: last - first + 1 };
    if (range.count <= 0) {
      return timesOf(first, { waited: [], ran: [] });
    }
    const signal = AbortSignal.timeout(ANSWER_MILLISECONDS);
    const labels = { ...this.#config.labels, ...(namespace !== undefined && { vm_namespace: namespace }) };
    const selector = Object.entries(labels).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
    const increase = (metric: string) => `(increase(${metric}{${selector.join(',')}}[${STEP_SECONDS}s]))`;
    const query = async (text: string) => await this.#query(text, range, signal);
    const read = async (measure: Measure): Promise<Bars> => {
      const [buckets, sums] = await Promise.all([
        query(`sum by (le) ${increase(`${METRICS[measure]}_bucket`)}`),
        query(`sum ${increase(`${METRICS[measure]}_sum`)}`),
      ]);
      return barsOf(range, buckets, sums);
    };
    const [waited, ran] = await Promise.all([read('waited'), read('ran')]);
    if (waited === undefined || ran === undefined) {
      throw new PrometheusRefusal(
        `Prometheus has no times of jobs${namespace === undefined ? '' : ` of namespace ${namespace}`}. Once jobs have run for some minutes, an administrator must check that it scrapes the operator`,
      );
    }
    return timesOf(first, { waited, ran });
  }

  async #query(query: string, { first, count }: EntryRange, signal: AbortSignal): Promise<Series[]> {
    // An increase is about the five minutes before its time.
    const start = (first + 1) * STEP_SECONDS;
    const parameters = new URLSearchParams({
      query,
      start: String(start),
      end: String(start + (count - 1) * STEP_SECONDS),
      step: String(STEP_SECONDS),
      timeout: `${ANSWER_MILLISECONDS / 1_000}s`,
    });
    const url = `${this.#config.address.replace(/\/+$/, '')}/api/v1/query_range?${parameters.toString()}`;
    const text = await this.#queue.add(async () => await this.#ask(url, signal), { signal });
    try {
      return answerSchema.parse(parseJson(text, LIMITS)).data.result;
    } catch (cause) {
      throw new PrometheusRefusal(
        'The answer of Prometheus cannot be used. An administrator must check prometheus.address of the HTTP API',
        { cause },
      );
    }
  }
}

/** Five minutes, counted since 1970. */
interface EntryRange {
  readonly first: number;
  readonly count: number;
}

type Series = z.infer<typeof answerSchema>['data']['result'][number];

/** Jobs by the upper bounds of their times: as many as were within each bound. The last bound is infinite. */
type Buckets = readonly (readonly [bound: number, jobs: number])[];

interface BucketBar {
  readonly buckets: Buckets;
  readonly sum: number;
}

/** The five minutes of a range. They are undefined if Prometheus has no series. */
type Bars = readonly BucketBar[] | undefined;

function barsOf(range: EntryRange, buckets: readonly Series[], sums: readonly Series[]): Bars {
  const bounds = buckets
    .map(({ metric: { le = '' }, values }) => [boundOf(le), valuesOf(range, values)] as const)
    .filter(([bound]) => !Number.isNaN(bound))
    .toSorted(([one], [other]) => (one < other ? -1 : 1));
  if (bounds.length === 0) {
    return undefined;
  }
  const seconds = valuesOf(range, sums[0]?.values ?? []);
  return Array.from({ length: range.count }, (_, place) => ({
    buckets: bounds.map(([bound, values]) => [bound, values[place] ?? 0] as const),
    sum: seconds[place] ?? 0,
  }));
}

function boundOf(text: string): number {
  return text === '+Inf' ? Number.POSITIVE_INFINITY : text === '' ? Number.NaN : Number(text);
}

/** Returns the values by their places in the range. Those without a value are 0. */
function valuesOf({ first, count }: EntryRange, values: Series['values']): number[] {
  const found = Array.from({ length: count }, () => 0);
  for (const [seconds, text] of values) {
    const place = Math.round(seconds / STEP_SECONDS) - 1 - first;
    const value = Number(text);
    if (place in found && Number.isFinite(value) && value > 0) {
      found[place] = value;
    }
  }
  return found;
}

function timesOf(first: number, bars: Readonly<Record<Measure, readonly BucketBar[]>>): PrometheusTimes {
  const totals = (entries: number): JobTotals => ({
    waited: totalOf(bars.waited.slice(-entries)),
    ran: totalOf(bars.ran.slice(-entries)),
  });
  const entries = bars.waited.map((bar, place): JobTimesEntry => {
    const [waited, ran] = [totalOf([bar]), totalOf(bars.ran.slice(place, place + 1))];
    return [first + place, waited.count, waited.sum, waited.highest, ran.count, ran.sum, ran.highest];
  });
  const isUsed = ([, waits, , , runs]: JobTimesEntry) => waits > 0 || runs > 0;
  return { entries: entries.filter(isUsed), hour: totals(HOUR_ENTRIES), day: totals(JOB_TIMES_LIMIT) };
}

/** Adds the jobs of several five minutes. */
function totalOf(bars: readonly BucketBar[]): TimeTotal {
  const jobs = new Map<number, number>();
  for (const [bound, value] of bars.flatMap(({ buckets }) => buckets)) {
    jobs.set(bound, (jobs.get(bound) ?? 0) + value);
  }
  const buckets = [...jobs];
  return {
    count: buckets.at(-1)?.[1] ?? 0,
    sum: bars.reduce((sum, bar) => sum + bar.sum, 0),
    highest: quantile(buckets),
  };
}

/** Returns the time in seconds within which {@link SHARE} of the jobs were. Beyond the last finite bound, it is this bound. */
function quantile(buckets: Buckets): number {
  const wanted = SHARE * (buckets.at(-1)?.[1] ?? 0);
  if (wanted === 0) {
    return 0;
  }
  const index = buckets.findIndex(([, jobs]) => jobs >= wanted);
  const [low, below] = buckets[index - 1] ?? [0, 0];
  const [high, jobs] = buckets[index] ?? [Number.POSITIVE_INFINITY, 0];
  // At this bucket, more jobs are within the bound than before it.
  return Number.isFinite(high) ? low + (high - low) * ((wanted - below) / (jobs - below)) : low;
}

function noAnswer(cause: unknown): PrometheusRefusal {
  return new PrometheusRefusal(
    'The HTTP API gets no answer from Prometheus. An administrator finds the cause in the log of the HTTP API',
    { cause },
  );
}

/** Sends a request as the configuration says. The files are read each time, because their contents change. */
function askPrometheus({ caFile, tokenFile }: PrometheusConfig): AskPrometheus {
  return async (url, signal) => {
    const authority = caFile === undefined ? undefined : await readFile(caFile, 'utf8');
    const token = tokenFile === undefined ? undefined : (await readFile(tokenFile, 'utf8')).trim();
    const response = await fetchWithLimits(
      url,
      { headers: { accept: 'application/json', ...(token && { authorization: `Bearer ${token}` }) } },
      {
        ...(authority !== undefined && { ca: [authority] }),
        proxy: new Proxies(process.env).proxyFor(new URL(url)),
        signal,
      },
    );
    const { status } = response;
    if (status === 401 || status === 403) {
      throw new PrometheusRefusal(
        `Prometheus refuses the HTTP API with status ${status}. An administrator must check prometheus.tokenFile of the HTTP API`,
      );
    }
    if (status !== 200) {
      throw new PrometheusRefusal(
        `Prometheus answers with status ${status}. An administrator must check prometheus.address of the HTTP API`,
      );
    }
    return await response.text();
  };
}

/** Returns why there are no numbers, for the page. @throws the error if it has another cause */
export function refusalText(error: unknown): string {
  if (error instanceof PrometheusRefusal) {
    return messageOf(error);
  }
  throw error;
}
