import { expect, it, vi } from 'vitest';
import { configSchema, type PrometheusConfig } from '../config.ts';
import { PrometheusReader, type PrometheusRefusal } from './prometheus.ts';

const NOW = Date.parse('2026-12-01T12:07:00Z');
const INDEX = Math.floor(NOW / 300_000);
const CONFIG: PrometheusConfig = { address: 'http://127.0.0.1:9090/base/', labels: { cluster: 'a"b' } };
const silent = { warn: vi.fn<() => void>() };

type Values = [number, string][];

/** Returns a value at the end of the five minutes with this index. */
function at(index: number, value: number): [number, string] {
  return [(index + 1) * 300, String(value)];
}

function answer(series: readonly { le?: string; values: Values }[]): string {
  const result = series.map(({ values, ...metric }) => ({ metric, values }));
  return JSON.stringify({ status: 'success', data: { resultType: 'matrix', result } });
}

/** A Prometheus that answers queries by their names. Returns its reader, and the parameters of the queries. */
function prometheus(answers: Readonly<Record<string, string>>, config = CONFIG) {
  const asked: URL[] = [];
  const ask = async (address: string) => {
    const url = new URL(address);
    asked.push(url);
    const query = url.searchParams.get('query') ?? '';
    const name = Object.keys(answers).find((one) => query.includes(one));
    return await Promise.resolve(name === undefined ? answer([]) : (answers[name] ?? ''));
  };
  return { reader: new PrometheusReader(config, { ask, clock: () => NOW }), asked };
}

const JOBS = {
  wait_seconds_bucket: answer([
    { le: '+Inf', values: [at(INDEX - 20, 2), at(INDEX, 10)] },
    { le: '10', values: [at(INDEX - 20, 2), at(INDEX, 9)] },
    { le: '5.0', values: [at(INDEX - 20, 0), at(INDEX, 8)] },
  ]),
  wait_seconds_sum: answer([{ values: [at(INDEX - 20, 14), at(INDEX, 45)] }]),
  run_seconds_bucket: answer([{ le: '+Inf', values: [] }]),
};

it('asks fixed queries about one namespace, and shows what Prometheus has of the last 24 hours', async () => {
  const { reader, asked } = prometheus(JOBS);
  const times = await reader.read({ namespace: 'shop' }, silent);
  expect(times.entries).toEqual([
    [INDEX - 20, 2, 14, 9.75, 0, 0, 0],
    [INDEX, 10, 45, 10, 0, 0, 0],
  ]);
  expect(times.hour.waited).toEqual({ count: 10, sum: 45, highest: 10 });
  expect(times.day.waited.count).toBe(12);
  expect(times.day.ran).toEqual({ count: 0, sum: 0, highest: 0 });
  expect(asked.map(({ pathname }) => pathname)).toEqual(Array(4).fill('/base/api/v1/query_range'));
  expect(Object.fromEntries(asked[0]?.searchParams ?? [])).toEqual({
    query: 'sum by (le) (increase(berth_job_wait_seconds_bucket{cluster="a\\"b",vm_namespace="shop"}[300s]))',
    start: String((INDEX - 286) * 300),
    end: String((INDEX + 1) * 300),
    step: '300',
    timeout: '10s',
  });
});

it('asks about no time in which another namespace could have had the name', async () => {
  const { reader, asked } = prometheus(JOBS);
  await reader.read({ namespace: 'shop', since: NOW - 3_600_000 }, silent);
  expect(asked[0]?.searchParams.get('start')).toBe(String((INDEX - 10) * 300));
  const fresh = prometheus(JOBS);
  const { entries } = await fresh.reader.read({ namespace: 'shop', since: NOW - 1_000 }, silent);
  expect([entries, fresh.asked]).toEqual([[], []]);
});

it('uses an answer for many pages, each scope with its own', async () => {
  const { reader, asked } = prometheus(JOBS);
  await Promise.all([
    reader.read({}, silent),
    reader.read({}, silent),
    reader.read({ namespace: 'a' }, silent),
  ]);
  expect(asked).toHaveLength(8);
  expect(asked[0]?.searchParams.get('query')).toContain('{cluster="a\\"b"}');
});

it('says when Prometheus has no times of jobs, and what to check', async () => {
  const { reader } = prometheus({});
  const refusal = (await reader
    .read({ namespace: 'shop' }, silent)
    .catch((error: unknown) => error)) as Error;
  expect(refusal.message).toMatch(/no times of jobs of namespace shop\. .*scrapes the operator/);
});

const many = Array.from({ length: 21 }, (_, index) => ({ le: String(index), values: [] }));
const long = [{ le: '1', values: Array.from({ length: 289 }, (_, index) => at(index, 1)) }];

it.each([
  ['no JSON', '<html>'],
  ['an error', '{"status":"error","error":"x"}'],
  ['another type', '{"status":"success","data":{"resultType":"vector","result":[]}}'],
  ['a number without quotes', answer([{ le: '1', values: [[1, 1] as unknown as [number, string]] }])],
  ['too many series', answer(many)],
  ['too many values', answer(long)],
  ['too many bytes', `"${'x'.repeat(1024 * 1024)}"`],
  ['deep brackets', '['.repeat(64)],
])('refuses %s, and tells everybody nothing but what to check', async (_, text) => {
  const warn = vi.fn<(facts: { err: unknown }) => void>();
  const { reader } = prometheus({ berth: text });
  const refusal = await reader.read({}, { warn } as never).catch((error: PrometheusRefusal) => error.message);
  expect(refusal).toBe(
    'The answer of Prometheus cannot be used. An administrator must check prometheus.address of the HTTP API',
  );
  expect(warn).toHaveBeenCalledTimes(1);
});

it('leaves out values that are no numbers of jobs', async () => {
  const values: Values = [at(INDEX, Number.NaN), at(INDEX - 1, -4), [12.5, '3'], at(INDEX + 9, 3)];
  const { reader } = prometheus({ ...JOBS, wait_seconds_bucket: answer([{ le: '+Inf', values }]) });
  expect((await reader.read({}, silent)).day.waited.count).toBe(0);
});

it('tells nothing about the network when nobody answers', async () => {
  const ask = async () => await Promise.reject(new Error('connect ECONNREFUSED 10.1.2.3:9090'));
  const reader = new PrometheusReader(CONFIG, { ask, clock: () => NOW });
  const refusal = await reader.read({}, silent).catch((error: PrometheusRefusal) => error.message);
  expect(refusal).toBe(
    'The HTTP API gets no answer from Prometheus. An administrator finds the cause in the log of the HTTP API',
  );
});

it.each([
  ['https://prometheus.example/path', {}],
  ['http://prometheus.monitoring.svc:9090', {}],
  ['http://prometheus.monitoring.svc.cluster.local', {}],
  ['http://127.0.0.1:9090', { tokenFile: '/token' }],
  ['https://prometheus.example', { caFile: '/ca', tokenFile: '/token', labels: { cluster: 'a' } }],
])('takes the address %s', (address, more) => {
  expect(configSchema.safeParse({ prometheus: { address, ...more } }).success).toBe(true);
});

it.each([
  [{ address: 'http://prometheus.example' }, 'prometheus.address', 'must use https'],
  [{ address: 'http://svc.example' }, 'prometheus.address', 'must use https'],
  [{ address: 'ftp://127.0.0.1' }, 'prometheus.address', 'must be a URL with https or http'],
  [{ address: 'https://user:secret@a.example' }, 'prometheus.address', 'must have no user'],
  [{ address: 'https://a.example/?query=up' }, 'prometheus.address', 'must have no user, no query'],
  [{ address: 'http://a.b.svc', tokenFile: '/t' }, 'prometheus.tokenFile', 'could read the token'],
  [{ address: 'http://a.b.svc', caFile: '/t' }, 'prometheus.caFile', 'uses http'],
  [{ address: 'https://a', labels: { vm_namespace: 'x' } }, 'prometheus.labels', 'must not contain'],
  [{ address: 'https://a', labels: { 'a"b': 'x' } }, 'prometheus.labels.a"b', 'name of a label'],
])('refuses the configuration %j', (prometheusConfig, path, message) => {
  const { error } = configSchema.safeParse({ prometheus: prometheusConfig });
  const [issue] = error?.issues ?? [];
  expect(issue?.path.join('.')).toBe(path);
  expect(JSON.stringify(issue)).toContain(message);
});
