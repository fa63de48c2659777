import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { power } from './commands.ts';
import { makeTerminal } from '../../test/fixtures/terminals.ts';

const READY = { type: 'Ready', status: 'False', reason: 'GuestShutdown' };

let folder: string;
let server: Server;
let spec: object;
/** Values of `spec` in the changes that the API server has accepted. */
let writes: object[];
let reads: number;
let bothHaveRead: PromiseWithResolvers<void>;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-power-'));
  [spec, writes, reads, bothHaveRead] = [{}, [], 0, Promise.withResolvers<void>()];
  server = createServer((request, response) => void answer(request, response));
  await once(server.listen(0, '127.0.0.1'), 'listening');
});

/** Answers as an API server with one VM. Answers the first read only after the second one has begun. */
async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const patch = request.method === 'PATCH' ? ((await json(request)) as VM) : undefined;
  if (patch === undefined) {
    reads += 1;
    if (reads === 2) {
      bothHaveRead.resolve();
    }
    await bothHaveRead.promise;
  }
  const isConflict = (patch?.metadata.resourceVersion ?? version()) !== version();
  if (patch !== undefined && !isConflict) {
    writes.push(patch.spec);
    spec = { ...spec, ...patch.spec };
  }
  const metadata = { name: 'mac', namespace: 'a', resourceVersion: version() };
  const vm = { metadata, spec, status: { phase: 'Stopped', conditions: [READY] } };
  response.writeHead(isConflict ? 409 : 200, { 'content-type': 'application/json' });
  response.end(JSON.stringify(isConflict ? { code: 409, reason: 'Conflict' } : vm));
}

/** Returns the resourceVersion of the VM. */
function version(): string {
  return String(writes.length);
}

afterEach(async () => {
  server.closeAllConnections();
  server.close();
  await rm(folder, { recursive: true });
});

it('two commands that start a VM at the same time after its guest has shut down request one restart', async () => {
  const kubeconfig = join(folder, 'kubeconfig');
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const document = {
    clusters: [{ name: 'a', cluster: { server: url } }],
    contexts: [{ name: 'a', context: { cluster: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  const output: string[] = [];
  const out = (text: string) => void output.push(text);
  const terminal = makeTerminal({ environment: { HOME: folder }, out, err: out });
  const globals = { kubeconfig, context: 'a', output: 'table' } as const;
  const start = async () => await power(terminal, globals, { names: ['mac'], word: 'start' });
  await Promise.all([start(), start()]);
  expect(writes).toEqual([
    { powerState: 'Running', restartRequestedAt: expect.any(String) },
    { powerState: 'Running' },
  ]);
  expect(output).toEqual(Array.from({ length: 2 }, () => 'Requested start of vm mac\n'));
});
