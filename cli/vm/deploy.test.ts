import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { estimator } from '../remaining.ts';
import { deploy, lineOf } from './deploy.ts';

const METADATA = { name: 'mac', namespace: 'a', uid: '1', resourceVersion: '1' };
const CREATED = { metadata: METADATA, spec: {} };
const RUNNING = { metadata: { ...METADATA, resourceVersion: '2' }, spec: {}, status: { phase: 'Running' } };

let folder: string;
let server: Server | undefined;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-deploy-'));
});

afterEach(async () => {
  server?.closeAllConnections();
  server?.close();
  await rm(folder, { recursive: true });
});

/** Deploys a VM at an API server whose VM runs at once. `keep` answers the requests that keep the VM. */
async function deployed(
  keep: (answer: (status: number, body: object) => void, socket: IncomingMessage['socket']) => void,
) {
  const calls: string[] = [];
  server = createServer((request: IncomingMessage, response: ServerResponse) => {
    const { method = '', url = '' } = request;
    calls.push(method);
    const answer = (status: number, body: object) =>
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    if (method === 'PATCH') {
      keep(answer, request.socket);
    } else if (method === 'GET') {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.write(`${JSON.stringify({ type: 'MODIFIED', object: RUNNING })}\n`);
    } else {
      answer(200, url.includes('selfsubjectreviews') ? { status: {} } : CREATED);
    }
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const kubeconfig = join(folder, 'kubeconfig');
  const document = {
    clusters: [{ name: 'a', cluster: { server: `http://127.0.0.1:${port}` } }],
    contexts: [{ name: 'a', context: { cluster: 'a', user: 'a', namespace: 'a' } }],
    users: [{ name: 'a', user: { token: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  const out = vi.fn<(text: string) => void>();
  const signal = AbortSignal.timeout(30_000);
  const terminal = {
    name: 'berth',
    environment: { HOME: folder },
    out,
    err: out,
    isForPeople: false,
    signal,
  };
  const globals = { kubeconfig, context: 'a', output: 'name' } as const;
  await deploy(terminal, globals, { name: 'mac', flags: { image: 'linux' } });
  return { calls, out };
}

it('keeps the VM although the API server is restarted when the VM runs', async () => {
  let attempts = 0;
  const { calls, out } = await deployed((answer, socket) => {
    attempts += 1;
    if (attempts === 1) {
      socket.destroy();
    } else if (attempts === 2) {
      answer(403, {
        message: 'vms.berth.dev "mac" is forbidden: User "ci" cannot patch',
        reason: 'Forbidden',
      });
    } else {
      answer(200, RUNNING);
    }
  });
  expect(attempts).toBe(3);
  expect(calls).not.toContain('DELETE');
  expect(out).toHaveBeenCalledWith('mac\n');
});

it('fails if somebody has deleted the VM before the command keeps it', async () => {
  const metadata = { ...RUNNING.metadata, deletionTimestamp: '2026-11-27T12:00:00Z' };
  const kept = deployed((answer) => answer(200, { ...RUNNING, metadata }));
  await expect(kept).rejects.toThrow('VM mac was deleted before it ran');
});

it('shows the part, the rate and the time that is left of a pull, and before it the words of the scheduler', () => {
  let now = 0;
  const estimate = estimator(() => now);
  const line = (status: object) => lineOf({ metadata: { name: 'mac' }, spec: {}, status } as VM, estimate);
  const scheduled = {
    type: 'Scheduled',
    status: 'False',
    reason: 'Unschedulable',
    message: 'No host is free',
  };
  expect(line({ phase: 'Pending', conditions: [scheduled] })).toBe('mac: No host is free');
  const pulling = (progressPercent: number) =>
    line({ phase: 'Pulling', progressPercent, progress: `Pulling ${progressPercent} % (80 MB/s)` });
  expect(pulling(0)).toBe('mac: Pulling 0 % (80 MB/s)');
  now = 60_000;
  expect(pulling(50)).toBe('mac: Pulling 50 % (80 MB/s), 60 s left');
  expect(line({ phase: 'Starting' })).toBe('mac: Starting');
});
