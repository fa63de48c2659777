import { once } from 'node:events';
import { request } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { pino } from 'pino';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { KubeClient } from '../../kube/client.ts';
import { Transport } from '../../kube/transport.ts';
import { CallerClient } from '../callers/caller.ts';
import { configSchema } from '../config.ts';
import { assemble } from '../server.ts';

const DEPLOYMENTS = 24;
/** A body of almost a mebibyte. Its values have one key, so the VM gets only the last one, and the API server accepts the VM. */
const BODY = Buffer.from(
  JSON.stringify({
    image: 'a',
    vmMetadata: { items: Array.from({ length: 30 }, () => ({ key: 'k', value: 'v'.repeat(32 * 1024) })) },
  }),
);

let server: Awaited<ReturnType<typeof assemble>>;
const ended = new AbortController();

beforeAll(async () => {
  server = await assemble({
    connection: { server: 'http://127.0.0.1:1' },
    config: configSchema.parse({ http: { tls: false } }),
    logger: pino({ level: 'silent' }),
  });
  await once(server.app.server.listen(0, '127.0.0.1'), 'listening');
  vi.spyOn(CallerClient.prototype, 'username').mockResolvedValue('ann');
  vi.spyOn(server.own.rights, 'require').mockResolvedValue();
  const metadata = { name: 'desk', namespace: 'platform-default', uid: '1', resourceVersion: '1' };
  vi.spyOn(KubeClient.prototype, 'create').mockResolvedValue({ metadata, spec: {} } as never);
  // No watch sends an event.
  vi.spyOn(Transport.prototype, 'stream').mockImplementation(async (_path, signal) => {
    await once(signal, 'abort');
    throw signal.reason;
  });
});

afterAll(async () => {
  ended.abort();
  vi.spyOn(KubeClient.prototype, 'delete').mockResolvedValue();
  await server.waiting.stop();
  await server.app.close();
  await server.close();
  vi.restoreAllMocks();
});

function deploy(): void {
  const { port } = server.app.server.address() as AddressInfo;
  const path = '/api/v1/namespaces/platform-default/vms';
  const headers = { authorization: 'Bearer token', 'content-length': BODY.length };
  request({ port, path, method: 'POST', headers, signal: ended.signal, agent: false })
    .on('error', () => undefined)
    .end(BODY);
}

it('keeps no body of a deployment that waits, because one user can wait for a thousand VMs', async () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const used = () => {
    collect();
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external;
  };
  deploy();
  await expect.poll(() => server.waiting.size).toBe(1);
  const before = used();
  for (let count = 0; count < DEPLOYMENTS; count += 1) {
    deploy();
  }
  await expect.poll(() => server.waiting.size).toBe(1 + DEPLOYMENTS);
  // The memory of a Buffer is free only some time after its collection.
  await expect.poll(() => (used() - before) / (DEPLOYMENTS * BODY.length)).toBeLessThan(1 / 4);
});
