import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { pause } from '../../base/time.ts';
import { EXIT, Interrupted } from '../errors.ts';
import { estimator } from '../progress.ts';
import { deploy, formatLine } from './deploy.ts';

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

type Answer = (status: number, body: object) => void;

interface Behaviour {
  /** Answers the requests that keep the VM. */
  readonly keep?: (answer: Answer, socket: IncomingMessage['socket']) => void;
  /** Version of the VM in the watch. */
  readonly version?: object;
  /** Called when the API server has received the request that creates the VM, and before it answers. */
  readonly onCreate?: (interrupt: AbortController) => Promise<void>;
}

/** Deploys a VM at an API server whose VM runs at once. `calls` receives the methods of all requests. */
async function deployed({ keep, version = RUNNING, onCreate }: Behaviour, calls: string[] = []) {
  const interrupt = new AbortController();
  const created = async (answer: Answer) => {
    await onCreate?.(interrupt);
    answer(200, CREATED);
  };
  server = createServer((request: IncomingMessage, response: ServerResponse) => {
    const { method = '', url = '' } = request;
    calls.push(method);
    const answer: Answer = (status, body) =>
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    if (method === 'PATCH') {
      keep?.(answer, request.socket);
    } else if (method === 'GET') {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.write(`${JSON.stringify({ type: 'MODIFIED', object: version })}\n`);
    } else if (method === 'POST' && !url.includes('selfsubjectreviews')) {
      void created(answer);
    } else {
      answer(200, { status: {} });
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
  const signal = AbortSignal.any([interrupt.signal, AbortSignal.timeout(30_000)]);
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
  const { calls, out } = await deployed({
    keep: (answer, socket) => {
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
    },
  });
  expect(attempts).toBe(3);
  expect(calls).not.toContain('DELETE');
  expect(out).toHaveBeenCalledWith('mac\n');
});

it('fails if somebody has deleted the VM before the command keeps it', async () => {
  const metadata = { ...RUNNING.metadata, deletionTimestamp: '2026-11-27T12:00:00Z' };
  const kept = deployed({ keep: (answer) => answer(200, { ...RUNNING, metadata }) });
  await expect(kept).rejects.toThrow('VM mac was deleted before it ran');
});

it('deletes the VM if the user interrupts the command while the API server creates the VM', async () => {
  const calls: string[] = [];
  const onCreate = async (interrupt: AbortController) => {
    interrupt.abort(new Interrupted());
    // A command that does not wait for the answer ends in this time.
    await pause(100);
  };
  const interrupted = deployed({ onCreate }, calls);
  await expect(interrupted).rejects.toThrow('Interrupted. VM mac was deleted');
  expect(calls.at(-1)).toBe('DELETE');
});

it('ends with the code for a time limit if the operator was the first to notice that the time was over', async () => {
  const failure = { reason: 'DeployTimeout', message: 'The VM was not Running 600 s after', time: '' };
  const late = deployed({ version: { ...RUNNING, status: { phase: 'Failed', failure } } });
  await expect(late).rejects.toMatchObject({
    exitCode: EXIT.noAnswer,
    message: 'The VM was not Running 600 s after. VM mac was deleted',
  });
});

it('shows the part, the rate and the time that is left of a pull, and before it the words of the scheduler', () => {
  let now = 0;
  const estimate = estimator(() => now);
  const line = (status: object) =>
    formatLine({ metadata: { name: 'mac' }, spec: {}, status } as VM, estimate);
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
