import { PassThrough } from 'node:stream';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { KubeClient } from './client.ts';
import { Informer } from './informer.ts';
import { runtimeMetrics } from './metrics.ts';
import type { KubeObject, Resource } from './objects.ts';

const TYPE: Resource<KubeObject> = { apiVersion: 'v1', kind: 'Pod', plural: 'pods', namespaced: true };
/** Time limit for a new watch. The first wait of a watch is 0.8 to 1.6 s. */
const RECOVERY = { timeout: 10_000 };
const LAST_INITIAL = { 'k8s.io/initial-events-end': 'true' };

/** A watch that the informer opened. */
interface Watch {
  path: string;
  signal: AbortSignal;
  send: (type: string, object: object) => void;
  end: () => void;
}

let watches: Watch[];
let client: KubeClient;
let informer: Informer<KubeObject>;
let end: AbortController;
/** Lines of the log, at the levels that operators see by default. */
let logged: string[];

beforeEach(() => {
  vi.useFakeTimers();
  logged = [];
  watches = [];
  end = new AbortController();
  const stream = async (path: string, signal: AbortSignal) => {
    const body = new PassThrough();
    signal.addEventListener('abort', () => body.destroy(signal.reason as Error), { once: true });
    const send = (type: string, object: object) => void body.write(`${JSON.stringify({ type, object })}\n`);
    watches.push({ path, signal, send, end: () => void body.end() });
    return body;
  };
  const transport = { stream, metrics: runtimeMetrics(new Registry()) };
  client = { transport } as unknown as KubeClient;
  informer = started();
});

afterEach(() => {
  end.abort(new Error('the test has ended'));
  vi.useRealTimers();
});

function started(): Informer<KubeObject> {
  const logger = pino({ level: 'info' }, { write: (line) => void logged.push(line) });
  const informer = new Informer(client, TYPE, { logger });
  informer.start(end.signal);
  return informer;
}

function pod(name: string, resourceVersion: string): object {
  return { metadata: { name, namespace: 'n', resourceVersion } };
}

function lastInitial(resourceVersion: string): object {
  return { metadata: { name: '', resourceVersion, annotations: LAST_INITIAL } };
}

async function opened(count: number): Promise<Watch> {
  return await vi.waitFor(() => {
    expect(watches).toHaveLength(count);
    return watches.at(-1)!;
  }, RECOVERY);
}

async function reached(resourceVersion: string): Promise<void> {
  await vi.waitFor(() => expect(informer.cache.resourceVersion).toBe(resourceVersion), RECOVERY);
}

it('cuts a watch that is behind, but no read of all objects, and no watch that has just read them', async () => {
  const first = await opened(1);
  first.send('ADDED', pod('a', '8'));
  first.send('BOOKMARK', lastInitial('10'));
  await reached('10');
  first.send('ERROR', { kind: 'Status', code: 410, reason: 'Expired', message: 'too old' });
  const second = await opened(2);
  expect(second.path).toContain('sendInitialEvents=true');
  second.send('ADDED', pod('a', '8'));
  await vi.advanceTimersByTimeAsync(20_000);
  informer.cutIfStale('30');
  expect(second.signal.aborted, 'while all objects are read').toBe(false);
  second.send('BOOKMARK', lastInitial('20'));
  await reached('20');
  informer.cutIfStale('30');
  expect(second.signal.aborted, 'directly after the read').toBe(false);
  await vi.advanceTimersByTimeAsync(5_001);
  informer.cutIfStale('20');
  expect(second.signal.aborted, 'when the cache is not behind').toBe(false);
  informer.cutIfStale('30');
  expect(second.signal.aborted).toBe(true);
  expect((await opened(3)).path).toContain('resourceVersion=20');
  expect(logged.at(-1)).toContain('"reason":"behind","msg":"watch cut and resumed"');
});

it('reads all objects again when a resumed watch stays silent, because its place can be in the future after a restore of etcd', async () => {
  const first = await opened(1);
  first.send('ADDED', pod('a', '8'));
  first.send('BOOKMARK', lastInitial('10'));
  await reached('10');
  await vi.advanceTimersByTimeAsync(90_001);
  const second = await opened(2);
  expect(second.path, 'after a watch that had worked').toContain('resourceVersion=10');
  second.send('BOOKMARK', pod('', '12'));
  await reached('12');
  await vi.advanceTimersByTimeAsync(90_001);
  expect((await opened(3)).path, 'after another watch that had worked').toContain('resourceVersion=12');
  await vi.advanceTimersByTimeAsync(90_001);
  const fourth = await opened(4);
  expect(fourth.path, 'after a watch that was silent from its start').toContain('sendInitialEvents=true');
  expect(logged, 'because an API server may have nothing to tell').toEqual([]);
  fourth.send('BOOKMARK', lastInitial('3'));
  await reached('3');
  expect(informer.cache.list()).toEqual([]);
});

it('waits longer after each read of all objects that the server does not complete', async () => {
  const breaks = async (watch: Watch, milliseconds: number): Promise<void> => {
    watch.send('ADDED', pod('a', '8'));
    await vi.advanceTimersByTimeAsync(0);
    watch.end();
    await vi.advanceTimersByTimeAsync(milliseconds);
  };
  await breaks(await opened(1), 1_700);
  await breaks(await opened(2), 3_300);
  await breaks(await opened(3), 6_500);
  await breaks(await opened(4), 6_300);
  expect(watches).toHaveLength(4);
});

it('counts the objects of all caches of a type together', async () => {
  const first = await opened(1);
  first.send('ADDED', pod('a', '8'));
  first.send('ADDED', pod('b', '9'));
  first.send('BOOKMARK', lastInitial('10'));
  await reached('10');
  const other = started();
  const second = await opened(2);
  second.send('ADDED', pod('c', '7'));
  second.send('BOOKMARK', lastInitial('10'));
  await other.synced;
  const objects = async () => (await client.transport.metrics.storeObjects.get()).values;
  expect(await objects()).toMatchObject([{ labels: { resource: 'pods' }, value: 3 }]);
  first.send('DELETED', pod('a', '11'));
  await reached('11');
  expect(await objects()).toMatchObject([{ value: 2 }]);
});
