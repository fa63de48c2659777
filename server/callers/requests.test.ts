/** Tests the ends of requests, over real connections. */
import { once } from 'node:events';
import { connect } from 'node:net';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { type ListeningServer, listen } from '../../kube/serving/httpserver.ts';
import { type App, createApp } from '../http/app.ts';
import { Callers } from './caller.ts';
import { addCallers } from './requests.ts';

/** Length of an answer that is too long for the buffers of the kernel. */
const LONG = 24 * 1024 * 1024;
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };

let app: App;
let running: ListeningServer;
/** Signals of the requests. */
const ended: AbortSignal[] = [];

beforeAll(async () => {
  app = createApp({ logger: pino({ level: 'silent' }), tls: false });
  // Nothing listens there, and no test gets that far.
  addCallers(app, new Callers({ server: 'http://127.0.0.1:1' }, new Registry()));
  app.get('/long', ({ caller }) => {
    ended.push(caller().ended);
    return 'x'.repeat(LONG);
  });
  app.get('/never', async ({ caller }) => {
    ended.push(caller().ended);
    await new Promise(() => undefined);
  });
  await app.ready();
  running = await listen(app.server, '127.0.0.1:0');
});

afterAll(async () => {
  await running?.close();
});

it.each(['/long', '/never'])(
  'the signal of a request aborts when its answer is written, or when its client is gone: %s',
  async (path) => {
    ended.length = 0;
    const socket = connect(running.port, '127.0.0.1');
    socket.write(`GET ${path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\n\r\n`);
    if (path === '/long') {
      await once(socket, 'readable');
    }
    await vi.waitFor(() => expect(ended).toHaveLength(1), WAIT);
    expect(ended[0]?.aborted).toBe(path === '/long');
    socket.destroy();
    await vi.waitFor(() => expect(ended[0]?.aborted).toBe(true), WAIT);
  },
);
