import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { VMS } from '../api/v1alpha1/resources.ts';
import { CredentialError } from '../kube/errors.ts';
import { withCluster } from './cluster.ts';
import { Interrupted } from './errors.ts';
import type { Globals } from './globals.ts';
import type { Terminal } from './terminal.ts';

let folder: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-cluster-'));
});

afterEach(async () => await rm(folder, { recursive: true }));

/** Returns the terminal and the flags of a command for the cluster with this API server. */
async function givenCluster(
  server: string,
  { signal } = new AbortController(),
): Promise<[Terminal, Globals]> {
  const kubeconfig = join(folder, 'kubeconfig');
  const document = {
    clusters: [{ name: 'a', cluster: { server } }],
    contexts: [{ name: 'a', context: { cluster: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  const ignored = () => undefined;
  return [
    { name: 'berth', environment: { HOME: folder }, out: ignored, err: ignored, isForPeople: false, signal },
    { kubeconfig, context: 'a', output: 'table' },
  ];
}

it('asks for objects while it watches many', async () => {
  const server = createServer((request, response) => {
    response.setHeader('content-type', 'application/json');
    response.writeHead(200);
    if (request.url?.includes('watch') === true) {
      response.flushHeaders();
    } else {
      response.end('{"metadata":{"name":"a"}}');
    }
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  await withCluster(
    ...(await givenCluster(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)),
    async ({ client, watches }) => {
      const { signal } = new AbortController();
      await Promise.all(Array.from({ length: 64 }, async () => await watches.stream('/watch', signal)));
      const { metadata } = await client.get(
        VMS,
        { namespace: 'a', name: 'a' },
        { deadlineMilliseconds: 30_000 },
      );
      expect(metadata.name).toBe('a');
    },
  );
  server.closeAllConnections();
  server.close();
});

it('is interrupted when Ctrl+C has also ended the credential plug-in', async () => {
  const interrupt = new AbortController();
  const work = withCluster(...(await givenCluster('https://127.0.0.1:1', interrupt)), async () => {
    interrupt.abort(new Interrupted());
    throw new CredentialError('The credential plug-in ended with code 130', 130);
  });
  await expect(work).rejects.toThrow(Interrupted);
});
