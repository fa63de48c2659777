import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { json } from 'node:stream/consumers';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { change } from './rolebinding.ts';
import { makeTerminal } from '../test/fixtures/terminals.ts';
import { makeFolder } from '../test/support/folder.ts';
import { writeContext } from '../test/fixtures/kubeconfig.ts';

let folder: string;
let server: Server;
/** RoleBindings that the API server has received. */
let written: { metadata: { namespace: string }; subjects: object[] }[];

beforeEach(async () => {
  folder = makeFolder();
  written = [];
  server = createServer((request, response) => {
    response.setHeader('content-type', 'application/json');
    if (request.method === 'GET') {
      response.statusCode = 404;
      response.end(JSON.stringify({ kind: 'Status', message: 'not found', reason: 'NotFound', code: 404 }));
      return;
    }
    void json(request).then((body) => {
      written.push(body as (typeof written)[number]);
      response.end(JSON.stringify(body));
    });
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
});

afterEach(async () => {
  server.closeAllConnections();
  server.close();
});

async function add(namespace: string, ...serviceaccount: string[]): Promise<void> {
  const { port } = server.address() as AddressInfo;
  const kubeconfig = await writeContext(folder, `http://127.0.0.1:${port}`);
  await mkdir(join(folder, 'berth'));
  await writeFile(join(folder, 'berth', 'config.yaml'), 'aliases: {namespacePrefix: ci-}\n');
  await change(
    makeTerminal({ environment: { XDG_CONFIG_HOME: folder } }),
    { kubeconfig, context: 'a', namespace, output: 'table' },
    { verb: 'add-subject', flags: { serviceaccount } },
  );
}

it('takes the other prefix of the settings in the namespace of a service account', async () => {
  await add('ci-team', 'ci-tools:runner', 'ci-default:runner', 'platform-own:runner', 'bot');
  const account = (namespace: string, name: string) => ({ kind: 'ServiceAccount', name, namespace });
  expect(written).toMatchObject([
    {
      metadata: { namespace: 'platform-team' },
      subjects: [
        account('platform-tools', 'runner'),
        account('platform-default', 'runner'),
        account('platform-own', 'runner'),
        account('platform-team', 'bot'),
      ],
    },
  ]);
});
