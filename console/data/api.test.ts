import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Api } from './api.ts';

const { signal } = new AbortController();
const api = new Api('token', () => undefined);
let answer: ReadableStreamDefaultController<Uint8Array>;

beforeEach(() => {
  vi.useFakeTimers();
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      answer = controller;
    },
  });
  vi.stubGlobal('fetch', async (_path: string, request: { readonly signal: AbortSignal }) => {
    request.signal.addEventListener('abort', () => answer.error(request.signal.reason));
    return new Response(body);
  });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

function send(text: string): void {
  answer.enqueue(new TextEncoder().encode(text));
}

it('a watch is open when its first data has come, and not before', async () => {
  const onOpen = vi.fn();
  const event = api.watch('/console/watch/vms', { signal, onOpen }).next();
  await vi.advanceTimersByTimeAsync(1_000);
  expect(onOpen).not.toHaveBeenCalled();
  send('\n');
  send('{"type":"BOOKMARK"}\n');
  expect(await event).toEqual({ done: false, value: { type: 'BOOKMARK' } });
  expect(onOpen).toHaveBeenCalledOnce();
});

it('a watch without data for 90 seconds is given up', async () => {
  const events = api.watch('/console/watch/vms', { signal, onOpen: () => undefined });
  const first = events.next();
  await vi.advanceTimersByTimeAsync(89_000);
  send('\n{"type":"BOOKMARK"}\n');
  expect(await first).toMatchObject({ value: { type: 'BOOKMARK' } });
  const second = events.next();
  await vi.advanceTimersByTimeAsync(89_000);
  send('{"type":"ADDED"}\n');
  expect(await second).toMatchObject({ value: { type: 'ADDED' } });
  const failure = events.next().catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(90_000);
  expect(await failure).toMatchObject({ name: 'AbortError' });
});
