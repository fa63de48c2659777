import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import type { Format } from '../output.ts';
import { goalIn } from './goal.ts';
import { wait } from './wait.ts';

let folder: string;
let server: Server;
/** Text that the commands have written to both output streams. */
let written: string;

beforeEach(async () => {
  written = '';
  folder = await mkdtemp(join(tmpdir(), 'berth-wait-'));
  // The namespace has no VM.
  server = createServer(({ url = '' }, response) => {
    const isList = url.split('?')[0]?.endsWith('/vms') === true;
    const message = `vms.berth.dev "${url.split('/').at(-1)}" not found`;
    response.writeHead(isList ? 200 : 404, { 'content-type': 'application/json' });
    response.end(JSON.stringify(isList ? { items: [], metadata: {} } : { message, reason: 'NotFound' }));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
});

afterEach(async () => {
  server.closeAllConnections();
  server.close();
  await rm(folder, { recursive: true });
});

/** Waits until the VMs `a` and `b` have reached the state. */
async function waitFor(state: string, output: Format): Promise<void> {
  const kubeconfig = join(folder, 'kubeconfig');
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const document = {
    clusters: [{ name: 'a', cluster: { server: url } }],
    contexts: [{ name: 'a', context: { cluster: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  const out = (text: string) => void (written += text);
  const { signal } = new AbortController();
  const terminal = {
    name: 'berth',
    environment: { HOME: folder },
    out,
    err: out,
    isForPeople: false,
    signal,
  };
  const globals = { kubeconfig, context: 'a', output };
  await wait(terminal, globals, { names: ['a', 'b'], goal: goalIn(state), timeout: 60_000 });
}

it.each<[Format, string]>([
  ['json', '[]\n'],
  ['yaml', '[]\n'],
  ['name', ''],
  ['table', ''],
])('as %s, writes %j if all VMs were gone before the command', async (output, expected) => {
  await waitFor('deleted', output);
  expect(written).toBe(expected);
});

it('writes no list if the wait for each VM has failed', async () => {
  await expect(waitFor('running', 'json')).rejects.toThrow(AggregateError);
  expect(written).toBe('');
});
