import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { DEV_ROLE } from '../api/v1alpha1/names.ts';
import type { Globals } from './globals.ts';
import { Interrupted } from './errors.ts';
import { add } from './registry.ts';
import { create, remove } from './serviceaccount.ts';
import type { Terminal } from './terminal.ts';
import { makeTerminal } from '../test/fixtures/terminals.ts';
import { makeFolder } from '../test/support/folder.ts';
import { writeContext } from '../test/fixtures/kubeconfig.ts';

const CONFIG_MAP = '/api/v1/namespaces/n/configmaps';
const ACCOUNTS = '/api/v1/namespaces/n/serviceaccounts';
const BINDINGS = '/apis/rbac.authorization.k8s.io/v1/namespaces/n/rolebindings';
const SUBJECT = { kind: 'ServiceAccount', name: 'a', namespace: 'n' };
const BINDING = {
  metadata: { name: DEV_ROLE, resourceVersion: '1' },
  roleRef: { kind: 'ClusterRole', name: DEV_ROLE },
  subjects: [SUBJECT],
};

let folder: string;

beforeEach(() => {
  folder = makeFolder();
});

afterEach(async () => {
  vi.restoreAllMocks();
});

/** Runs a command that the user interrupts during its first change. Resolves with the changes that the API server got, and with the error. */
async function changesOf(
  command: (terminal: Terminal, globals: Globals) => Promise<void>,
  bindings: readonly object[],
): Promise<{ changes: string[]; error: unknown }> {
  const interrupt = new AbortController();
  const changes: string[] = [];
  const server = createServer((request, response) => {
    if (request.method !== 'GET') {
      changes.push(`${request.method} ${request.url?.replace(/\?.*/, '')}`);
      interrupt.abort(new Interrupted());
    }
    answer(request, response, bindings);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const error = await command(...(await givenCluster(`http://127.0.0.1:${port}`, interrupt.signal))).catch(
    (reason: unknown) => reason,
  );
  server.close();
  return { changes, error };
}

function answer(
  { method, url }: IncomingMessage,
  response: ServerResponse,
  bindings: readonly object[],
): void {
  const found = url?.startsWith(BINDINGS) === true ? bindings[0] : undefined;
  const isMissing = found === undefined && (method === 'GET' || method === 'PATCH');
  response.writeHead(isMissing ? 404 : 200, { 'content-type': 'application/json' });
  response.end(JSON.stringify(isMissing ? { code: 404 } : (found ?? { metadata: { uid: 'u' } })));
}

async function givenCluster(server: string, signal: AbortSignal): Promise<[Terminal, Globals]> {
  const kubeconfig = await writeContext(folder, server);
  return [
    makeTerminal({ environment: { HOME: folder }, signal }),
    { kubeconfig, context: 'a', namespace: 'n', output: 'table' },
  ];
}

it('completes a credential for a registry whose addition the user interrupts', async () => {
  const input = Readable.from(['secret\n']) as unknown as typeof process.stdin;
  vi.spyOn(process, 'stdin', 'get').mockReturnValue(input);
  const flags = { username: 'ann', passwordStdin: true, replace: true };
  const { changes } = await changesOf(
    async (terminal, globals) => await add(terminal, globals, { server: 'https://r.example', flags }),
    [],
  );
  expect(changes.map((change) => change.replace(/secrets\/.*/, 'secrets/…'))).toEqual([
    'DELETE /api/v1/namespaces/n/secrets/…',
    'POST /api/v1/namespaces/n/secrets',
    expect.stringMatching(`^PATCH ${CONFIG_MAP}/`),
    `POST ${CONFIG_MAP}`,
  ]);
});

it('gives a service account its role although the user interrupts the creation', async () => {
  const { changes } = await changesOf(async (...call) => await create(...call, ['a']), []);
  expect(changes).toEqual([`POST ${ACCOUNTS}`, `POST ${BINDINGS}`]);
});

it('takes the role of a service account although the user interrupts the deletion', async () => {
  const { changes } = await changesOf(async (...call) => await remove(...call, ['a']), [BINDING]);
  expect(changes).toEqual([`DELETE ${ACCOUNTS}/a`, `PATCH ${BINDINGS}/${DEV_ROLE}`]);
});

it('begins no further change after the user interrupts the command', async () => {
  const { changes, error } = await changesOf(async (...call) => await remove(...call, ['a', 'b']), [BINDING]);
  expect(changes).toEqual([`DELETE ${ACCOUNTS}/a`, `PATCH ${BINDINGS}/${DEV_ROLE}`]);
  expect(error).toBeInstanceOf(Interrupted);
});
