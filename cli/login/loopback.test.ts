import { once } from 'node:events';
import { connect } from 'node:net';
import { expect, it } from 'vitest';
import { Loopback } from './loopback.ts';

it('ends when the browser has its answer, even if other connections stay open', {
  // A server that waits for the connections ends them after 30 s.
  timeout: 20_000,
}, async () => {
  const loopback = await Loopback.open('mine');
  const { address } = loopback;
  const { port, hostname } = new URL(address);
  // Browsers open connections that they do not use.
  const spare = connect(Number(port), hostname);
  await once(spare, 'connect');
  const slow = connect(Number(port), hostname).on('error', () => undefined);
  slow.write('GET / HTTP/1.1\r\n');
  const refused = await fetch(`${address}?state=other`);
  const answer = fetch(`${address}?state=mine&code=a`);
  const { url, end } = await loopback.arrival(new AbortController().signal);
  end(true);
  await loopback[Symbol.asyncDispose]();
  expect([refused.status, (await answer).status, url.searchParams.get('code')]).toEqual([400, 200, 'a']);
  await Promise.all([spare, slow].map(async (socket) => socket.closed || (await once(socket, 'close'))));
});
