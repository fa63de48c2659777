import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { beforeEach, expect, it } from 'vitest';
import { CommandError } from '../errors.ts';
import { login } from './login.ts';
import { makeTerminal } from '../../test/fixtures/terminals.ts';
import { makeFolder } from '../../test/support/folder.ts';

let folder: string;

beforeEach(() => {
  folder = makeFolder();
});

/** Returns the message with which a sign-in fails. */
async function failure(apiUrl: string): Promise<string> {
  const attempt = login(
    makeTerminal({ environment: { HOME: folder } }),
    { kubeconfig: join(folder, 'kubeconfig'), output: 'table' },
    { apiUrl },
  );
  const error: unknown = await attempt.catch((reason: unknown) => reason);
  return error instanceof CommandError ? error.message : '';
}

it('takes no namespace from the HTTP API that could be a command', async () => {
  const info = { apiEndpoint: 'https://cluster.example', namespaceDefault: '$(touch hit)' };
  const server = createServer((_request, response) => response.end(JSON.stringify(info)));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  expect(await failure(`http://127.0.0.1:${port}`)).toContain('no namespace can have the name');
  server.close();
});
