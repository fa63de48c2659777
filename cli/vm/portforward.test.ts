import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { portForward } from './portforward.ts';

let folder: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-forward-'));
});

afterEach(async () => await rm(folder, { recursive: true }));

it('ends when another VM has the name of the VM', async () => {
  let uid = 'first';
  const server = createServer((_request, response) => {
    response.setHeader('content-type', 'application/json');
    const metadata = { name: 'desk', namespace: 'a', uid };
    response.end(JSON.stringify({ metadata, spec: {}, status: { phase: 'Running' } }));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const kubeconfig = join(folder, 'kubeconfig');
  const document = {
    clusters: [{ name: 'a', cluster: { server: `http://127.0.0.1:${port}` } }],
    contexts: [{ name: 'a', context: { cluster: 'a', user: 'a' } }],
    users: [{ name: 'a', user: { token: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  const { promise: listening, resolve } = Promise.withResolvers<string>();
  const ignored = () => undefined;
  const signal = AbortSignal.timeout(30_000);
  const ended = portForward(
    { name: 'berth', environment: { HOME: folder }, out: resolve, err: ignored, isForPeople: false, signal },
    { kubeconfig, context: 'a', output: 'table' },
    { name: 'desk', pairs: [{ local: 0, remote: 22 }] },
  );
  const [, local] = /127\.0\.0\.1:(\d+)/.exec(await listening) ?? [];
  uid = 'second';
  const caller = connect(Number(local), '127.0.0.1').on('error', ignored);
  await expect(ended).rejects.toThrow('another VM has its name now');
  caller.destroy();
  server.closeAllConnections();
  server.close();
});
