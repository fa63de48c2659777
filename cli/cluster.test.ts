import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { beforeEach, expect, it } from 'vitest';
import { VMS } from '../api/v1alpha1/resources.ts';
import { UNINTERRUPTED } from '../kube/client.ts';
import { ApiError } from '../kube/errors.ts';
import { withCluster } from './cluster.ts';
import { described, Interrupted } from './errors.ts';
import type { Globals } from './globals.ts';
import type { Terminal } from './terminal.ts';
import { makeTerminal } from '../test/fixtures/terminals.ts';
import { makeFolder } from '../test/support/folder.ts';
import { writeContext } from '../test/fixtures/kubeconfig.ts';

let folder: string;

beforeEach(() => {
  folder = makeFolder();
});

/** Returns the terminal and the flags of a command for the cluster with this API server. */
async function givenCluster(
  server: string,
  { signal } = new AbortController(),
): Promise<[Terminal, Globals]> {
  const kubeconfig = await writeContext(folder, server);
  return [
    makeTerminal({ environment: { HOME: folder }, signal }),
    { kubeconfig, context: 'a', output: 'table' },
  ];
}

/** Gives the context of the kubeconfig a user with this token. */
async function addToken(token: string): Promise<void> {
  await addUser({ token });
}

/** Gives the context of the kubeconfig this user. */
async function addUser(user: object): Promise<void> {
  const kubeconfig = join(folder, 'kubeconfig');
  const document = JSON.parse(await readFile(kubeconfig, 'utf8')) as object;
  const contexts = [{ name: 'a', context: { cluster: 'a', user: 'a' } }];
  const users = [{ name: 'a', user }];
  await writeFile(kubeconfig, JSON.stringify({ ...document, contexts, users }));
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

it('ends a request without a signal of its own as soon as the user interrupts the command', async () => {
  const interrupt = new AbortController();
  const server = createServer(() => interrupt.abort(new Interrupted()));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const cluster = await givenCluster(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, interrupt);
  const work = withCluster(...cluster, async ({ client }) => await client.get(VMS, { name: 'a' }));
  await expect(work).rejects.toThrow(Interrupted);
  server.close();
});

it('finishes a request that undoes a change although the user has interrupted the command', async () => {
  const interrupt = new AbortController();
  const server = createServer((_request, response) => {
    response.setHeader('content-type', 'application/json');
    response.end('{"metadata":{"name":"a"}}');
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const cluster = await givenCluster(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, interrupt);
  await withCluster(...cluster, async ({ client }) => {
    interrupt.abort(new Interrupted());
    const { metadata } = await client.get(VMS, { name: 'a' }, { signal: UNINTERRUPTED });
    expect(metadata.name).toBe('a');
  });
  server.close();
});

it('does not wait for a credential plug-in when the user interrupts the command', async () => {
  const interrupt = new AbortController();
  const cluster = await givenCluster('https://127.0.0.1:1', interrupt);
  const running = join(folder, 'running');
  await writeFile(running, '');
  // The program runs until the folder of the test is removed.
  const args = ['-c', `while [ -e ${running} ]; do sleep 0.1; done`];
  await addUser({ exec: { apiVersion: 'client.authentication.k8s.io/v1', command: 'sh', args } });
  const work = withCluster(...cluster, async ({ client }) => {
    const answer = client.get(VMS, { name: 'a' });
    interrupt.abort(new Interrupted());
    await answer;
  });
  await expect(work).rejects.toThrow(Interrupted);
});

it.each([
  [
    'a server that does not answer',
    () => Object.assign(new Error('connect ECONNREFUSED 127.0.0.1:1'), { code: 'ECONNREFUSED' }),
    'The API server https://127.0.0.1:1 does not answer: connect ECONNREFUSED 127.0.0.1:1. Check the network and the kubeconfig',
  ],
  [
    'a token that has expired',
    () => new ApiError('Unauthorized', { status: 401, reason: 'Unauthorized' }),
    'Unauthorized: The token expired at 1970-01-01T00:00:01.000Z. Sign in again',
  ],
])('names %s once if the command works on several objects', async (_, cause, expected) => {
  const [terminal, globals] = await givenCluster('https://127.0.0.1:1');
  const claims = Buffer.from('{"exp":1}').toString('base64url');
  await addToken(`e30.${claims}.e30`);
  const work = withCluster(terminal, globals, async () => {
    throw new AggregateError([cause(), cause()]);
  });
  const error: unknown = await work.catch((reason: unknown) => reason);
  expect(described(error).message).toBe(expected);
});
