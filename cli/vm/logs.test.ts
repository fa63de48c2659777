import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { EXIT } from '../errors.ts';
import { logs } from './exec.ts';
import { makeTerminal } from '../../test/fixtures/terminals.ts';

const NAME = 'desk';
const METADATA = { name: NAME, namespace: 'a', uid: '1', resourceVersion: '1' };
const MISSING = {
  kind: 'Status',
  reason: 'NotFound',
  code: 404,
  message: `vms.berth.dev "${NAME}" not found`,
};

let folder: string;
let server: Server | undefined;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-logs-'));
});

afterEach(async () => {
  vi.restoreAllMocks();
  server?.closeAllConnections();
  server?.close();
  await rm(folder, { recursive: true });
});

/**
 * Follows the log of a VM at an API server that ends the log after one line. The API server does the same if the connection to the host
 * breaks. `later` is the VM after the end of the log. It is undefined if the VM no longer exists. Returns the text of the log.
 */
async function followed(later: object | undefined, follow = true): Promise<string> {
  let hasEnded = false;
  server = createServer(({ url = '' }, response) => {
    if (url.includes('/log?')) {
      hasEnded = true;
      response.end('the only line\n');
      return;
    }
    const vm = hasEnded ? later : { metadata: METADATA, spec: {}, status: { phase: 'Running' } };
    response.writeHead(vm === undefined ? 404 : 200, { 'content-type': 'application/json' });
    response.end(JSON.stringify(vm ?? (url.includes(NAME) ? MISSING : { items: [], metadata: {} })));
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
  let text = '';
  vi.spyOn(process.stdout, 'write').mockImplementation((piece) => {
    text += String(piece);
    return true;
  });
  const terminal = makeTerminal({ environment: { HOME: folder }, signal: AbortSignal.timeout(30_000) });
  const globals = { kubeconfig, context: 'a', output: 'table' } as const;
  await logs(terminal, globals, { name: NAME, flags: { follow } });
  return text;
}

it('fails if the log of a VM that still exists has ended, because the connection to its host was lost', async () => {
  const running = { metadata: METADATA, spec: {}, status: { phase: 'Running' } };
  await expect(followed(running)).rejects.toMatchObject({
    exitCode: EXIT.noAnswer,
    message: 'The log of VM desk ended, but the VM still exists. Run the command again',
  });
  expect(await followed(running, false)).toBe('the only line\n');
});

it.each([
  ['no longer exists', undefined],
  ['is being deleted', { metadata: { ...METADATA, deletionTimestamp: '2026-11-28T12:00:00Z' }, spec: {} }],
  ['was replaced', { metadata: { ...METADATA, uid: '2' }, spec: {}, status: { phase: 'Running' } }],
  ['has failed', { metadata: METADATA, spec: {}, status: { phase: 'Failed' } }],
  // After the end of its time, a VM has this phase until the operator sees that its host has removed the machine.
  [
    'fails',
    { metadata: METADATA, spec: {}, status: { phase: 'Stopping', failure: { reason: 'DeadlineExceeded' } } },
  ],
])('succeeds if the log of a VM that %s has ended', async (_, later) => {
  expect(await followed(later)).toBe('the only line\n');
});
