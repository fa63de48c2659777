import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { holdOpen } from '../../kube/serving/httpserver.ts';
import { type App, createApp } from '../http/app.ts';
import type { Services } from '../services.ts';
import { addTransferRoutes, type FileTransfers } from './routes.ts';
import type { UploadRequest } from './uploads.ts';

/** Time limit of the end of a connection, which ends at once. */
const DEADLINE_MILLISECONDS = 30_000;
const FORM = '--b\r\nContent-Disposition: form-data; name="f"; filename="disk.raw"\r\n\r\n';

let app: App;
let client: Socket;
/** Reads the form of the upload as {@link Uploads} does, and reports its end. */
let form: PromiseWithResolvers<string>;
/** What has arrived of the file. */
let content: string;

beforeEach(async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  form = Promise.withResolvers();
  content = '';
  app = createApp({ logger: pino({ level: 'silent' }), tls: false });
  app.decorateRequest('fullCaller', () => ({}) as never);
  const upload = async ({ read }: UploadRequest, response: ServerResponse) => {
    holdOpen(response);
    const { name, file } = await read().catch((error: unknown) => {
      form.reject(error);
      throw error;
    });
    form.resolve(name);
    for await (const chunk of file) {
      content += chunk.toString();
    }
    return await new Promise<never>(() => undefined);
  };
  const config = { namespaces: { default: 'platform-default' } };
  const transfers = { uploads: { upload } } as unknown as FileTransfers;
  addTransferRoutes(app, { config } as unknown as Services, transfers);
  await app.listen({ port: 0, host: '127.0.0.1' });
  client = connect((app.server.address() as AddressInfo).port, '127.0.0.1');
  client.on('error', () => undefined);
});

afterEach(async () => {
  vi.useRealTimers();
  client.destroy();
  await app.close();
});

async function begin(body: string): Promise<void> {
  const arrived = once(app.server, 'request');
  const headers = 'Host: a\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 10000';
  client.write(`POST /api/v1/namespaces/platform-ci/upload/image HTTP/1.1\r\n${headers}\r\n\r\n${body}`);
  await arrived;
}

it('an upload whose file does not begin within ten seconds ends, and frees its place', async () => {
  form.promise.catch(() => undefined);
  await begin(FORM.slice(0, 20));
  const closed = once(client.resume(), 'close', { signal: AbortSignal.timeout(DEADLINE_MILLISECONDS) });
  vi.advanceTimersByTime(10_000);
  await closed;
  await expect(form.promise).rejects.toThrow('the body is not valid');
});

it('the file of an upload may take longer', async () => {
  await begin(`${FORM}begun`);
  expect(await form.promise).toBe('disk');
  await expect.poll(() => content).toBe('begun');
  // The file itself may pause for 50 s.
  vi.advanceTimersByTime(45_000);
  client.write(' and more');
  await expect.poll(() => content).toBe('begun and more');
  expect(client.destroyed).toBe(false);
});
