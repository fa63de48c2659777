import { EventEmitter } from 'node:events';
import type { ServerResponse } from 'node:http';
import { expect, it } from 'vitest';
import { type WaitEnd, WaitingRequests } from './waiting.ts';

class Response extends EventEmitter {
  closed = false;

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
  const waiting = new WaitingRequests(3);
  const connections = ['ann', 'ben', 'cid'].map((user) => ({ user, connection: response() }));
  const answers = connections.map(({ user, connection }) =>
    waiting.run(connection, { user, namespace: user }, untilEnd),
  );
  await expect(waiting.run(response(), { user: 'dan', namespace: 'dan' }, untilEnd)).rejects.toMatchObject({
    status: 429,
    message: '3 requests are already waiting. Try again later',
  });
  connections[0]?.connection.emit('close');
  expect(await answers[0]).toBe('gone');
  const next = response();
  const accepted = waiting.run(next, { user: 'dan', namespace: 'dan' }, untilEnd);
  next.emit('close');
  expect(await accepted).toBe('gone');
});

it('gives one user three quarters of the places, and names the bound', async () => {
  const waiting = new WaitingRequests(4);
  const [first] = [response(), response(), response()].map((connection) => {
    void waiting.run(connection, { user: 'ann', namespace: 'ann' }, untilEnd);
    return connection;
  });
  await expect(
    waiting.run(response(), { user: 'ann', namespace: 'ann' }, async () => 'accepted'),
  ).rejects.toMatchObject({
    status: 429,
    message: '3 requests of user ann are already waiting. Try again later',
  });
  void waiting.run(response(), { user: 'ben', namespace: 'ben' }, untilEnd);
  first?.emit('close');
  void waiting.run(response(), { user: 'ann', namespace: 'ann' }, untilEnd);
  expect(waiting.size).toBe(4);
});

it('gives the members of one namespace three quarters of the places', async () => {
  const waiting = new WaitingRequests(4);
  for (const user of ['ann', 'ben', 'cid']) {
    void waiting.run(response(), { user, namespace: 'ci' }, untilEnd);
  }
  await expect(
    waiting.run(response(), { user: 'dan', namespace: 'ci' }, async () => 'accepted'),
  ).rejects.toMatchObject({
    status: 429,
    message: '3 requests in namespace ci are already waiting. Try again later',
  });
  expect(await waiting.run(response(), { user: 'ann', namespace: 'other' }, async () => 'accepted')).toBe(
    'accepted',
  );
});

it('gives no place to a client that is gone already', async () => {
  const waiting = new WaitingRequests(3);
  const connection = Object.assign(response(), { closed: true });
  await expect(waiting.run(connection, { user: 'ann', namespace: 'ann' }, untilEnd)).rejects.toMatchObject({
    status: 408,
  });
  expect(waiting.size).toBe(0);
});

it('stops when each deployment has its answer, and accepts no other', async () => {
  const waiting = new WaitingRequests(3);
  const [first, last] = [response(), response()];
  const answers = [
    waiting.run(first, { user: 'ann', namespace: 'ann' }, untilEnd),
    waiting.run(last, { user: 'cid', namespace: 'cid' }, untilEnd),
  ];
  let stopped = false;
  const stop = waiting.stop().then(() => {
    stopped = true;
  });
  expect(await Promise.all(answers)).toEqual(['stopping', 'stopping']);
  first.emit('close');
  await new Promise(setImmediate);
  expect(stopped).toBe(false);
  await expect(waiting.run(response(), { user: 'ben', namespace: 'ben' }, untilEnd)).rejects.toMatchObject({
    status: 503,
  });
  last.emit('close');
  await stop;
  expect(stopped).toBe(true);
});
