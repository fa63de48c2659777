import { EventEmitter } from 'node:events';
import type { ServerResponse } from 'node:http';
import { expect, it } from 'vitest';
import { type WaitEnd, WaitingRequests } from './waiting.ts';

class Response extends EventEmitter {
  setTimeout(): void {}
}

function response(): ServerResponse {
  return new Response() as unknown as ServerResponse;
}

/** Waits until the controller ends it, and resolves with the reason. */
async function untilEnd({ signal }: AbortController): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  signal.addEventListener('abort', () => resolve((signal.reason as WaitEnd).why));
  return await promise;
}

it('ends a deployment whose client is gone, and refuses more than its limit', async () => {
  const waiting = new WaitingRequests(1);
  const first = response();
  const answer = waiting.run(first, untilEnd);
  await expect(waiting.run(response(), untilEnd)).rejects.toMatchObject({ status: 429 });
  first.emit('close');
  expect(await answer).toBe('gone');
  const next = response();
  const accepted = waiting.run(next, untilEnd);
  next.emit('close');
  expect(await accepted).toBe('gone');
});

it('stops when each deployment has its answer, and accepts no other', async () => {
  const waiting = new WaitingRequests(2);
  const connection = response();
  const answer = waiting.run(connection, untilEnd);
  let stopped = false;
  const stop = waiting.stop().then(() => {
    stopped = true;
  });
  expect(await answer).toBe('stopping');
  await new Promise(setImmediate);
  expect(stopped).toBe(false);
  await expect(waiting.run(response(), untilEnd)).rejects.toMatchObject({ status: 503 });
  connection.emit('close');
  await stop;
  expect(stopped).toBe(true);
});
