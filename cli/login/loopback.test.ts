import { once } from 'node:events';
import { connect } from 'node:net';
import { expect, it } from 'vitest';
import { browserCommand, Loopback } from './login.ts';

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

it.each([
  [{ BROWSER: 'firefox --new-tab:lynx', SSH_CONNECTION: 'a' }, 'linux', ['firefox', '--new-tab']],
  [{ BROWSER: '' }, 'darwin', ['open']],
  [{ SSH_CONNECTION: '10.0.0.1 1 10.0.0.2 22' }, 'darwin', undefined],
  [{}, 'win32', ['rundll32', 'url.dll,FileProtocolHandler']],
  [{ DISPLAY: ':0' }, 'linux', ['xdg-open']],
  [{ WAYLAND_DISPLAY: 'wayland-0' }, 'linux', ['xdg-open']],
  [{ DISPLAY: ':10', SSH_CONNECTION: 'a' }, 'linux', undefined],
  [{}, 'linux', undefined],
])('in %j on %s it is %j', (environment, platform, command) => {
  expect(browserCommand(environment, platform)).toEqual(command);
});
